"""`apublish`: the event loop goes on, requests are shared, errors and cancellation are as they should be."""

import asyncio
import runpy
import sys
import threading
from collections import Counter
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from celery import Celery, _state, group
from celery.exceptions import OperationalError
from support.processes import SOON

from celery_sqs_visibility import apublish, publish, publish_batch
from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.errors import RequestRefusedError
from celery_sqs_visibility.transport import broker_clients

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/fastapi/main.py"


class SlowSQS(FakeSQS):
    """Takes nothing until the test says so."""

    def __init__(self):
        super().__init__()
        self.gate = threading.Event()
        self.sending = threading.Event()
        self.error = None

    def send(self, *arguments):
        self.sending.set()
        assert self.gate.wait(SOON)
        if self.error:
            raise self.error
        return super().send(*arguments)

    @property
    def sent(self):
        return Counter(action for action, _ in self.calls if action.startswith("Send"))


async def until(happened):
    while not happened():  # noqa: ASYNC110 - what happens does so in a thread
        await asyncio.sleep(0)


@pytest.fixture
def sqs(monkeypatch):
    sqs = SlowSQS()
    monkeypatch.setattr(broker_clients, "shared_sqs", lambda _settings: sqs)
    return sqs


def own_context(sqs):
    """Options that no other test of this process has, and so no context."""
    return {"queue_name_prefix": f"aio-{id(sqs)}-"}


@pytest.fixture
def app(sqs):
    app = Celery("aio", set_as_current=False, broker_transport="celery_sqs_visibility")
    app.conf.broker_transport_options = own_context(sqs)
    yield app
    sqs.gate.set()
    app.close()


def test_the_event_loop_goes_on_and_what_is_awaited_together_shares_requests(app, sqs):
    async def main():
        first = asyncio.create_task(apublish(app.signature("task")))
        await until(sqs.sending.is_set)
        others = asyncio.gather(*(apublish(app.signature("task", (number,))) for number in range(3)))
        (traffic,) = app.connection_for_write().transport.context.send.__self__._traffic.values()
        await until(lambda: len(traffic.waiting) == 3)
        sqs.gate.set()
        return [await first, *await others]

    results = asyncio.run(main())
    assert len({result.id for result in results}) == 4
    assert sqs.sent == {"SendMessage": 1, "SendMessageBatch": 1}


def test_options_and_canvases_are_those_of_apply_async(app, sqs):
    sqs.gate.set()
    assert asyncio.run(apublish(app.signature("task"), task_id="mine", countdown=60)).id == "mine"
    result = asyncio.run(apublish(group([app.signature("a"), app.signature("b")], app=app)))
    assert len(result.results) == 2


def test_the_error_is_that_of_apply_async(app, sqs):
    sqs.gate.set()
    sqs.error = RequestRefusedError("no")
    with pytest.raises(OperationalError, match="no"):
        asyncio.run(apublish(app.signature("task")))


def test_what_is_cancelled_is_sent_if_it_had_begun_and_not_otherwise(app, sqs, monkeypatch):
    monkeypatch.setattr(publish, "THREADS", 1)
    publish._threads.cache_clear()

    async def main():
        begun = asyncio.create_task(apublish(app.signature("begun")))
        await until(sqs.sending.is_set)
        waiting = asyncio.create_task(apublish(app.signature("waiting")))
        await asyncio.sleep(0)
        for task in (begun, waiting):
            task.cancel()
        assert await asyncio.gather(begun, waiting, return_exceptions=True) != [None, None]
        sqs.gate.set()

    try:
        asyncio.run(main())
        asyncio.run(apublish(app.signature("later")))
    finally:
        publish._threads.cache_clear()
    assert sqs.sent == {"SendMessage": 2}


def test_a_block_around_takes_it_and_context_variables_go_along(app, sqs):
    sqs.gate.set()
    variable = ContextVar("variable", default="")
    seen = []

    class Signature:
        def apply_async(self):
            seen.append((variable.get(), threading.current_thread() is threading.main_thread()))

    async def main():
        variable.set("of the coroutine")
        await apublish(Signature())
        with publish_batch(app):
            await asyncio.gather(*(apublish(app.signature("task")) for _ in range(10)))

    asyncio.run(main())
    assert seen == [("of the coroutine", False)]
    assert sqs.sent == {"SendMessageBatch": 1}


def test_the_example_publishes(sqs, monkeypatch):
    sqs.gate.set()
    routes = {}
    fastapi = ModuleType("fastapi")
    fastapi.FastAPI = lambda: SimpleNamespace(
        post=lambda path, **_: lambda route: routes.setdefault(path, route)
    )
    monkeypatch.setitem(sys.modules, "fastapi", fastapi)
    monkeypatch.setattr(_state._tls, "current_app", None)
    app = runpy.run_path(str(EXAMPLE))["celery"]
    app.conf.broker_transport_options = own_context(sqs)
    answer = asyncio.run(routes["/images/{key}"]("a.png"))
    assert set(answer) == {"task"}
    assert sqs.sent == {"SendMessage": 1}
    app.close()

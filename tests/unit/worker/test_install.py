"""The bootsteps are in every worker of our transport, however it is named, whatever was imported first."""

import subprocess
import sys

import pytest

SLOW = pytest.mark.slow("each imports Celery anew")

#: As under gevent and eventlet: Celery does not look at the transport before it builds its blueprints.
WORKER = """
{first}
from celery import Celery
app = Celery("one")
{settings}
from celery.worker import WorkController
worker = WorkController(app=app, pool_cls="solo", use_eventloop={eventloop}, hostname="w@h")
print(*sorted(step.name for step in worker.consumer.steps), sep="\\n")
"""

THE_ONE = "app.conf.broker_transport = 'celery_sqs_visibility'"

#: What a process imports first.
IMPORTS = [
    "",
    "import celery_sqs_visibility.worker",
    "from celery_sqs_visibility import VisibilityTask",
]
#: Through which parts of Celery, kombu and the package it may also begin.
MORE_IMPORTS = [
    "import kombu",
    "import kombu.serialization",
    "import kombu.transport",
    "import kombu.messaging",
    "from kombu import Connection, Queue, Exchange",
    "import celery.app.base",
    "import celery.utils.serialization",
    "import celery.signals",
    "import celery.worker.consumer.consumer",
    "import celery.backends.rpc",
    "import celery_sqs_visibility.alias",
    "from celery_sqs_visibility import Transport",
    "from celery_sqs_visibility import publish_batch, subscribe, message_lost",
    "import kombu.serialization; kombu.Connection(transport='celery_sqs_visibility').transport",
]

NAMED = {
    "broker_transport": THE_ONE,
    "a namespace": (
        "class settings: PROJ_BROKER_TRANSPORT = 'celery_sqs_visibility'\n"
        "app.config_from_object(settings, namespace='PROJ')"
    ),
    "old upper case": (
        "class settings: BROKER_TRANSPORT = 'celery_sqs_visibility'\napp.config_from_object(settings)"
    ),
    "broker_url": f"{THE_ONE}; app.conf.broker_url = 'sqs://'",
    "broker_read_url": f"{THE_ONE}; app.conf.broker_read_url = 'sqs://k:s@127.0.0.1:9'",
    "a path": "app.conf.broker_transport = 'celery_sqs_visibility:Transport'",
    "an app that is not current": (
        "app = Celery('other', set_as_current=False); "
        "app.conf.update(broker_transport='celery_sqs_visibility')"
    ),
}

OURS = {
    f"celery_sqs_visibility.{step}"
    for step in ("worker.bootsteps.Deliveries", "worker.bootsteps.Endings", "operate.worker_step.Operations")
}


def steps(first="", settings=THE_ONE, *, eventloop=False):
    code = WORKER.format(first=first, settings=settings, eventloop=eventloop)
    command = [sys.executable, "-c", code]
    return set(
        subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout.split()
    )


@pytest.mark.parametrize("first", [*IMPORTS, *(pytest.param(each, marks=SLOW) for each in MORE_IMPORTS)])
def test_whatever_is_imported_first(first):
    assert steps(first) >= OURS


@pytest.mark.parametrize(
    ("settings", "eventloop"), [*((each, False) for each in NAMED.values()), (THE_ONE, None)]
)
def test_however_the_transport_is_named_and_with_an_event_loop(settings, eventloop):
    assert steps(settings=settings, eventloop=eventloop) >= OURS


def test_in_an_embedded_worker_and_in_one_that_is_made_after_another():
    code = f"""
from celery import Celery
from celery.contrib.testing.worker import TestWorkController
for number in range(2):
    app = Celery(str(number), set_as_current=False)
    {THE_ONE}
    worker = TestWorkController(app=app, pool_cls="solo", use_eventloop=False, hostname="w@h")
    assert {OURS!r} <= set(step.name for step in worker.consumer.steps)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("first", ["", "import celery_sqs_visibility.worker"])
def test_not_in_the_worker_of_another_broker(first):
    assert not steps(first, "app.conf.broker_url = 'memory://'") & OURS

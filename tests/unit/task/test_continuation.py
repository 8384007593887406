"""`continue_later()`: another message goes on with the task, and with what is to follow it."""

from __future__ import annotations

import pytest
from celery import states
from celery.exceptions import Retry
from celery.signals import before_task_publish
from kombu import Queue
from kombu.common import Broadcast
from kombu.exceptions import OperationalError
from support.factories import sqs_facts, trace

from celery_sqs_visibility.task.context import LIMIT_HEADER
from celery_sqs_visibility.task.successors import Continuation
from celery_sqs_visibility.task.tracing import VisibilityRetry

LINKED = [{"task": "next", "args": [], "kwargs": {}, "options": {}}]
FOLLOWS = {"callbacks": LINKED, "errbacks": LINKED, "chain": LINKED, "chord": {"task": "body"}}
FAMILY = {"root_id": "root", "parent_id": "parent", "group": "group", "group_index": 7}
DOWN = OperationalError("SQS is down")


@pytest.fixture
def published(app, monkeypatch):
    """What the app has published: (task, args, kwargs, options)."""
    sent, publish = [], app.send_task

    def send_task(name, args=None, kwargs=None, **options):
        sent.append((name, args, kwargs, options))
        return publish(name, args, kwargs, **options)

    monkeypatch.setattr(app, "send_task", send_task)
    return sent


@pytest.fixture
def sent_to(app):
    """Where the app would have sent what it publishes: (exchange, routing key, names of declared queues)."""
    seen = []

    def note(exchange, routing_key, declare, **_):
        seen.append((exchange, routing_key, [queue.name for queue in declare or ()]))

    before_task_publish.connect(note)
    yield seen
    before_task_publish.disconnect(note)


@pytest.fixture
def make(app):
    """`make(start=20)`: a task that is continued with these arguments as long as `start` is 0."""

    def make(inside_handler=None, **changes):
        @app.task(
            shared=False, bind=True, name="parts", error_visibility_timeout=60, autoretry_for=(OSError,)
        )
        def parts(self, start=0):
            if start:
                return start
            if inside_handler is None:
                self.visibility.continue_later(**changes)
            try:
                raise inside_handler
            except type(inside_handler):
                self.visibility.continue_later(**changes)

        return parts

    return make


@pytest.mark.parametrize(("args", "sent"), [((), ((), {"start": 20})), ((0,), ((20,), {}))])
def test_the_same_task_is_published_with_the_arguments_changed_and_attempts_anew(make, published, args, sent):
    info = trace(make(start=20), args, id="a", retries=2).info
    assert (info.state, type(info.retval)) == (states.RETRY, Continuation)
    ((name, *given, options),) = published
    assert (name, tuple(given), options["task_id"], options["retries"]) == ("parts", sent, "a", 0)


def test_what_is_to_follow_the_task_and_its_limits_go_along(make, published):
    request = {
        "timelimit": [90, 60],
        "expires": "2030-01-01T00:00:00+00:00",
        "headers": {"tenant": "t", LIMIT_HEADER: 9},
        "delivery_info": {"exchange": "", "routing_key": "imports", "priority": 3},
        "sqs": sqs_facts(queue="imports"),
        "properties": {"MessageGroupId": "g"},
        "ignore_result": True,
    }
    trace(make(start=20), **request, **FOLLOWS, **FAMILY)
    options = published[0][3]
    wanted = {"link": LINKED, "link_error": LINKED, "chain": LINKED, "chord": {"task": "body"}}
    wanted |= {"root_id": "root", "parent_id": "parent", "group_id": "group", "group_index": 7}
    wanted |= {"time_limit": 90, "soft_time_limit": 60, "expires": request["expires"]}
    wanted |= {"routing_key": "imports", "priority": 3, "MessageGroupId": "g", "ignore_result": True}
    assert {name: options.get(name) for name in wanted} == wanted
    assert options["headers"] == {"tenant": "t"}, "a limit for the attempts so far is not for those to come"


def came_from(exchange, routing_key):
    """A request of a message in a worker's `Broadcast` queue."""
    info = {"exchange": exchange, "routing_key": routing_key}
    return {"delivery_info": info, "sqs": sqs_facts(queue="bcast.1")}


@pytest.mark.parametrize("came_by", [("news", ""), ("", "bcast.1")], ids=["the topic", "its own queue"])
@pytest.mark.parametrize("route", [None, {"queue": "news"}, {"exchange": "news", "routing_key": "x"}])
def test_a_broadcast_goes_on_in_the_queue_that_it_came_from_whatever_the_route(
    app, make, sent_to, route, came_by
):
    app.conf.task_queues = [Queue("celery"), Broadcast("news", queue="bcast.1")]
    app.conf.task_routes = {"parts": route} if route else {}
    trace(make(start=20), **came_from(*came_by))
    assert sent_to == [("", "bcast.1", [])]


@pytest.mark.parametrize(
    ("options", "goes_to"),
    [({}, ("", "bcast.1", [])), ({"queue": "celery"}, ("", "celery", ["celery"]))],
)
def test_a_published_retry_of_a_broadcast_stays_in_its_queue_unless_it_names_one(
    app, sent_to, options, goes_to
):
    @app.task(shared=False, bind=True, name="parts")
    def parts(self):
        self.retry(args=(), **options)

    trace(parts, **came_from("news", ""))
    assert sent_to == [goes_to]


@pytest.mark.parametrize(
    ("retries", "state"), [(0, states.RETRY), (3, states.FAILURE)], ids=["attempts left", "the last attempt"]
)
def test_what_cannot_be_sent_is_a_failure_that_comes_back(make, app, monkeypatch, retries, state):
    def fail(*_args, **_options):
        raise DOWN

    monkeypatch.setattr(app, "send_task", fail)
    info = trace(make(start=20), retries=retries).info
    assert info.state == state
    if state == states.RETRY:
        assert (type(info.retval), info.retval.delay) == (VisibilityRetry, 60)
    else:
        assert info.retval is DOWN


def test_it_is_no_failed_attempt_in_the_log_not_even_within_a_handler(make, published, caplog):
    caplog.set_level("INFO")
    trace(make(inside_handler=TimeoutError("slow"), start=20))
    assert "failed at attempt" not in caplog.text
    assert "followed by another" in caplog.text
    assert len(published) == 1


def test_off_sqs_it_is_published_likewise(make, published):
    info = trace(make(start=20), sqs=None).info
    assert (info.state, type(info.retval)) == (states.RETRY, Continuation)
    assert len(published) == 1


def test_eagerly_it_goes_on_at_once_and_called_directly_it_raises(make, published):
    task = make(start=20)
    assert task.apply().get() == 20
    with pytest.raises(Retry, match="called directly"):
        task()
    assert published == []


def test_it_survives_the_way_from_child_to_parent(make, published):
    retry = trace(make(start=20), sqs=sqs_facts()).info.retval
    again, arguments = retry.__reduce__()[:2]
    assert str(again(*arguments)) == str(retry)

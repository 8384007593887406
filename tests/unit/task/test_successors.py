"""Messages in place of a run's own: continuations, and whether a successor was published."""

import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from inspect import signature
from types import SimpleNamespace

import pytest
from celery import group, states
from celery.exceptions import Ignore, Retry
from celery.signals import after_task_publish, before_task_publish
from hypothesis import given
from hypothesis import strategies as st
from kombu import Queue
from kombu.common import Broadcast
from kombu.exceptions import OperationalError
from support.factories import sqs_facts, trace

from celery_sqs_visibility import PublishError, VisibilityTask
from celery_sqs_visibility.delivery import lease_table
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.task.context import LIMIT_HEADER
from celery_sqs_visibility.task.retries import VisibilityRetry
from celery_sqs_visibility.task.successors import Continuation, changed_arguments

TROUBLE = ValueError("no")
ASKED_FOR = {"args": (1,), "countdown": 7}

WAYS = {
    "other arguments": lambda task: task.retry(args=(1,), countdown=7),
    "other keyword arguments": lambda task: task.retry(kwargs={"x": 1}, countdown=7),
    "another queue": lambda task: task.retry(queue="other", countdown=7),
    "a higher limit": lambda task: task.retry(max_retries=9, countdown=7),
    "continue_later()": lambda task: task.visibility.continue_later(x=1),
    "replace()": lambda task: task.replace(task.s()),
    "replace() by a chain": lambda task: task.replace(task.s() | task.s()),
    "replace() by a group": lambda task: task.replace(group(task.s(), task.s())),
}


class Singleton(VisibilityTask):
    """As celery-singleton's: another task of these arguments waits already."""

    def apply_async(self, *_args, **_options):
        return self.app.AsyncResult("the-one-that-waits")


class AfterCommit(VisibilityTask):
    """Publishes when a transaction is committed, and never if it is rolled back."""

    def __init__(self):
        self.waiting = []

    def apply_async(self, *args, **options):
        self.waiting.append(lambda: super(AfterCommit, self).apply_async(*args, **options))

    def commit(self):
        while self.waiting:
            self.waiting.pop(0)()


class ElsewherePublishing(VisibilityTask):
    """Publishes in another thread, as from a coroutine."""

    def apply_async(self, *args, **options):
        with ThreadPoolExecutor() as threads:
            return threads.submit(super().apply_async, *args, **options).result()


class Renaming(VisibilityTask):
    """Publishes under an id of its own."""

    def apply_async(self, *args, **options):
        return super().apply_async(*args, **{**options, "task_id": "another"})


@pytest.fixture(autouse=True)
def left():
    """The ids of the tasks whose messages have left this process."""
    ids = []

    def note(headers, **_):
        ids.append(headers["id"])

    after_task_publish.connect(note)
    yield ids
    after_task_publish.disconnect(note)


@pytest.fixture
def make(app):
    def make(base, way, **options):
        def ending(self, *_args, x=0):
            way(self)

        options = {"max_retries": 1, "error_visibility_timeout": 60, **options}
        return app.task(ending, base=base, bind=True, shared=False, name="ending", **options)

    return make


@pytest.fixture
def lost_lease(monkeypatch, leases):
    monkeypatch.setattr(lease_table, "lease_table", lambda: leases)
    lease = leases.take(SYSTEM_CLOCK.monotonic() + 60, print, math.inf)
    lease.lost = True
    return lease


def end_of(task, **request):
    info = trace(task, **request).info
    return (info.state, info.retval)


@pytest.mark.parametrize("over", [True, False], ids=["given back", "lost"])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_run_whose_message_another_worker_has_sends_no_successor(app, make, left, lost_lease, way, over):
    if over:
        lost_lease.end()
    state, _ = end_of(make(VisibilityTask, way), id="a", visibility_lease=lost_lease.key)
    assert (left, state) == ([], states.REJECTED)
    assert app.backend.get_state("a") == states.PENDING


@pytest.mark.parametrize("base", [Singleton, AfterCommit])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_run_whose_successor_was_not_published_comes_back_by_its_own_message(make, left, base, way):
    state, retry = end_of(make(base, way))
    assert (left, state, type(retry)) == ([], states.RETRY, VisibilityRetry)
    assert retry.delay in (7, 60)


@pytest.mark.parametrize("base", [VisibilityTask, ElsewherePublishing])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("root", ["root", None])
@pytest.mark.parametrize("protocol", [1, 2])
def test_one_whose_successor_has_left_is_over(app, make, left, base, way, root, protocol):
    app.conf.task_protocol = protocol
    left.clear()
    state, ended = end_of(make(base, way), root_id=root)
    assert (state, type(ended)) in [
        (states.RETRY, Retry), (states.RETRY, Continuation), (states.IGNORED, Ignore),
    ]  # fmt: skip


AGAIN = {name: way for name, way in WAYS.items() if not name.startswith("replace()")}


@pytest.fixture
def steps(app, monkeypatch):
    """What is stored, and what leaves, in their order."""
    steps = []

    def store_result(_id, result, state, traceback=None, **_options):
        steps.append((state, result, traceback and traceback.splitlines()[-1]))

    def note(sender, **_):
        steps.append(sender)

    monkeypatch.setattr(app.backend, "store_result", store_result)
    after_task_publish.connect(note)
    yield steps
    after_task_publish.disconnect(note)


@pytest.mark.parametrize("way", AGAIN.values(), ids=AGAIN)
def test_its_key_is_free_only_then_for_a_duplicate_with_its_id(make, steps, way):
    run = SimpleNamespace(end=lambda _ttl, succeeded: steps.append(("freed", succeeded)))
    trace(make(VisibilityTask, way), visibility_run=run)
    assert steps == [(states.RETRY, None, None), ("freed", False), "ending"]


def test_the_error_of_a_published_retry_is_stored_with_its_traceback(make, steps):
    def fail(_task):
        raise TROUBLE

    trace(make(VisibilityTask, fail, retry_kwargs={"queue": "other"}))
    assert steps == [(states.RETRY, TROUBLE, "ValueError: no"), "ending"]


def test_the_error_that_kept_a_successor_back_is_stored_then(make, steps):
    trace(make(Singleton, WAYS["continue_later()"]))
    assert [step[0] for step in steps] == [states.RETRY, states.RETRY]
    assert isinstance(steps[1][1], PublishError)


def retry_later(task):
    raise task.retry(throw=False, **ASKED_FOR)


@pytest.mark.parametrize(
    ("way", "request_"),
    [(retry_later, {}), (WAYS["continue_later()"], {"sqs": None})],
    ids=["not raised at once", "off SQS"],
)
def test_else_celery_stores_it_when_the_run_is_over(make, steps, way, request_):
    trace(make(VisibilityTask, way), **request_)
    assert [step if step == "ending" else step[0] for step in steps] == ["ending", states.RETRY]


def test_a_successor_is_sent_whether_or_not_retry_can_be_stored(app, make, left, monkeypatch, caplog):
    monkeypatch.setattr(app.backend, "store_result", lambda *_, **__: 1 // 0)
    state, ended = end_of(make(VisibilityTask, WAYS["continue_later()"]), id="a")
    assert (left, state, type(ended)) == (["a"], states.RETRY, Continuation)
    assert "state RETRY of task ending[a] could not be stored; the run goes on" in caplog.text


def test_a_message_of_another_task_is_none_of_it(make, left):
    state, retry = end_of(make(Renaming, WAYS["other arguments"]), id="a")
    assert (left, state, type(retry)) == (["another"], states.RETRY, VisibilityRetry)


def test_a_successor_that_leaves_before_the_run_is_over_has_left(make, left):
    def retry_and_commit(task):
        retry = task.retry(throw=False, **ASKED_FOR)
        task.commit()
        raise retry

    state, ended = end_of(make(AfterCommit, retry_and_commit), id="a")
    assert (left, state, type(ended)) == (["a"], states.RETRY, Retry)


def test_so_it_is_with_the_retry_of_an_error_by_retry_kwargs(make, left):
    def fail(_task):
        raise TROUBLE

    state, retry = end_of(make(Singleton, fail, retry_kwargs={"queue": "other", "countdown": 7}))
    assert (left, state, type(retry), retry.exc, retry.delay) == (
        [], states.RETRY, VisibilityRetry, TROUBLE, 7,
    )  # fmt: skip


@pytest.mark.parametrize("way", ["other arguments", "continue_later()"])
@pytest.mark.parametrize(
    "request_",
    [{"retries": 3}, {"sqs": sqs_facts(receive_count=2, max_receive_count=2)}],
    ids=["no attempts left", "no receives left"],
)
def test_at_the_last_attempt_it_has_failed(make, way, request_):
    state, error = end_of(make(Singleton, WAYS[way], max_retries=3), **request_)
    assert state == states.FAILURE
    if way == "continue_later()" or "sqs" in request_:
        assert isinstance(error, PublishError)
        assert "returned without having published" in str(error)


def test_what_the_task_makes_of_the_retry_itself_stands(make):
    def give_up(task):
        with suppress(Retry):
            task.retry(**ASKED_FOR)

    assert trace(make(Singleton, give_up)).info is None


def test_it_is_said_once_a_task_with_what_to_do(make, caplog):
    task = make(Singleton, WAYS["other arguments"])
    for _ in range(2):
        trace(task)
    told = [each.getMessage() for each in caplog.records if "the message of the run" in each.getMessage()]
    assert len(told) == 1
    assert told[0].startswith("apply_async of task ending returned without having published")
    assert "self.request.id" in told[0]


def test_of_an_app_that_runs_all_tasks_eagerly_nothing_is_awaited(app, make):
    app.conf.task_always_eager = True
    assert type(end_of(make(Singleton, WAYS["other arguments"]))[1]) is Retry


LINKED = [{"task": "next", "args": [], "kwargs": {}, "options": {}}]
FOLLOWS = {"callbacks": LINKED, "errbacks": LINKED, "chain": LINKED, "chord": {"task": "body"}}
FAMILY = {"root_id": "root", "parent_id": "parent", "group": "group", "group_index": 7}
DOWN = OperationalError("SQS is down")


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
def make_parts(app):
    """`make_parts(start=20)`: a task that is continued with these arguments as long as `start` is 0."""

    def make_parts(inside_handler=None, **changes):
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

    return make_parts


@pytest.mark.parametrize(("args", "sent"), [((), ((), {"start": 20})), ((0,), ((20,), {}))])
def test_the_same_task_is_published_with_the_arguments_changed_and_attempts_anew(
    make_parts, published, args, sent
):
    info = trace(make_parts(start=20), args, id="a", retries=2).info
    assert (info.state, type(info.retval)) == (states.RETRY, Continuation)
    ((name, *given, options),) = published
    assert (name, tuple(given), options["task_id"], options["retries"]) == ("parts", sent, "a", 0)


def test_its_end_is_pickled_on_its_way_to_the_main_process(make_parts, published):
    ended = trace(make_parts(start=20), sqs=sqs_facts()).info.retval
    again, arguments = ended.__reduce__()[:2]
    assert str(again(*arguments)) == str(ended)


def test_what_is_to_follow_the_task_and_its_limits_go_along(make_parts, published):
    request = {
        "timelimit": [90, 60],
        "expires": "2030-01-01T00:00:00+00:00",
        "headers": {"tenant": "t", LIMIT_HEADER: 9},
        "delivery_info": {"exchange": "", "routing_key": "imports", "priority": 3},
        "sqs": sqs_facts(queue="imports"),
        "properties": {"MessageGroupId": "g"},
        "ignore_result": True,
    }
    trace(make_parts(start=20), **request, **FOLLOWS, **FAMILY)
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
    app, make_parts, sent_to, route, came_by
):
    app.conf.task_queues = [Queue("celery"), Broadcast("news", queue="bcast.1")]
    app.conf.task_routes = {"parts": route} if route else {}
    trace(make_parts(start=20), **came_from(*came_by))
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
def test_what_cannot_be_sent_is_a_failure_that_comes_back(make_parts, app, monkeypatch, retries, state):
    def fail(*_args, **_options):
        raise DOWN

    monkeypatch.setattr(app, "send_task", fail)
    info = trace(make_parts(start=20), retries=retries).info
    assert info.state == state
    if state == states.RETRY:
        assert (type(info.retval), info.retval.delay) == (VisibilityRetry, 60)
    else:
        assert info.retval is DOWN


def test_it_is_no_failed_attempt_in_the_log_not_even_within_a_handler(make_parts, published, caplog):
    caplog.set_level("INFO")
    trace(make_parts(inside_handler=TimeoutError("slow"), start=20))
    assert "failed at attempt" not in caplog.text
    assert "followed by another" in caplog.text
    assert len(published) == 1


def test_eagerly_it_goes_on_at_once_and_called_directly_it_raises(make_parts, published):
    task = make_parts(start=20)
    assert task.apply().get() == 20
    with pytest.raises(Retry, match="called directly"):
        task()
    assert published == []


NAMES = ("bucket", "start", "size")
VALUES = st.integers()


def import_objects(bucket, start=0, *, size=1):
    return {"bucket": bucket, "start": start, "size": size}


@given(st.tuples(VALUES, VALUES, VALUES), st.integers(0, 2), st.dictionaries(st.sampled_from(NAMES), VALUES))
def test_what_is_changed_is_changed_whether_it_was_positional_or_not(values, positional, changes):
    args, kwargs = values[:positional], dict(zip(NAMES[positional:], values[positional:], strict=True))
    changed_args, changed = changed_arguments(signature(import_objects), args, kwargs, changes)
    assert import_objects(*changed_args, **changed) == dict(zip(NAMES, values, strict=True)) | changes
    assert len(changed_args) == positional


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda *items, **more: (items, more), ((1, 2), {"items": 3})),
        (lambda items, /, *rest, **more: (items, rest, more), (1, (2,), {"items": 3})),
    ],
    ids=["a variable number", "positional only"],
)
def test_what_cannot_be_meant_by_a_name_stays(function, expected):
    args, kwargs = changed_arguments(signature(function), (1, 2), {}, {"items": 3})
    assert function(*args, **kwargs) == expected

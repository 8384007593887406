"""Requests of tasks with a brake tell it how runs end, and a failed try costs no attempt."""

from types import SimpleNamespace

import pytest
from celery.exceptions import Ignore, Retry, Terminated, TimeLimitExceeded, WorkerLostError
from celery.utils.serialization import UnpickleableExceptionWrapper
from celery.worker import state
from support.factories import FakeHolder, exc_info, held_delivery, request

from celery_sqs_visibility.core.settlements import Delete, Hide
from celery_sqs_visibility.events import Failed, subscribe
from celery_sqs_visibility.policy.brake import Start
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.policy.eta import LEAD_SECONDS
from celery_sqs_visibility.stores.port import Processed
from celery_sqs_visibility.task.base import VisibilityTask
from celery_sqs_visibility.task.exclusive import NotRun
from celery_sqs_visibility.task.retries import VisibilityRetry
from celery_sqs_visibility.worker.braked_request import is_of

START = Start(7, forgiven=False)


class FakeBrakes:
    def __init__(self):
        self.ends, self.waits = [], False

    def wait(self, request):
        self.asked = request
        return self.waits

    def end(self, *told):
        self.ends.append(told)


@pytest.fixture
def make(app):
    """`make(brake="bank")`: a request of a task that a brake lets start."""

    def make(*, copies=True, forgiven=False, receive_count=1, max_receive_count=None, **options):
        options = {"brake_on": (OSError,), "max_retries": 3, **options}

        @app.task(name="pay", base=VisibilityTask, shared=False, **options)
        def pay():
            """A task."""

        app.finalize()
        holder = FakeHolder(max_receive_count=max_receive_count)
        delivery = held_delivery(holder, receive_count=receive_count)
        made = request(app.tasks["pay"], delivery)
        made.worker.brakes = FakeBrakes()
        made.settled, made.copies = holder.settled, []

        def renewal(eta, retries, _otherwise=None):
            made.copies.append((eta - SYSTEM_CLOCK.wall(), retries))
            return COPY if copies else None

        made.message.renewal = renewal
        made.begin(START._replace(forgiven=forgiven))
        made.copies.clear()
        return made

    return make


class Copy:
    """Stands for the settlement by a copy: `put_off` replaces its cause."""


COPY = Copy()


@pytest.fixture(autouse=True)
def _copies_have_a_cause(monkeypatch):
    monkeypatch.setattr(
        "celery_sqs_visibility.worker.request.replace",
        lambda made, **changes: (made, changes["why"].name) if made is COPY else made,
    )


def retried(exc, delay=4.0):
    return exc_info(VisibilityRetry(None, exc, delay))


def test_it_waits_if_its_brake_says_so_and_it_is_not_revoked(make):
    made = make()
    assert not made.revoked()
    made.worker.brakes.waits = True
    assert made.revoked()
    assert made.worker.brakes.asked is made
    made.worker.brakes = None
    assert not made.revoked(), "as in Lambda"


def test_a_revoked_one_says_nothing_and_lets_another_be_tried(make):
    made = make()
    state.revoked.add(made.id)
    assert made.revoked()
    assert [told for _, _, told, _ in made.worker.brakes.ends] == [None]
    assert made.settled == [Delete()]


def test_one_whose_task_is_paused_lets_another_be_tried(make):
    made = make()
    made.worker.waits_for_resume = lambda _request: True
    assert made.revoked()
    assert [told for _, _, told, _ in made.worker.brakes.ends] == [None]


def test_a_brake_has_the_name_of_its_task_or_a_shared_one(make):
    assert make().brake_name == "pay"


def test_a_run_without_its_key_says_nothing_and_lets_another_be_tried(make):
    made = make(exclusive=True)
    made.worker.key_leases = SimpleNamespace(
        store=SimpleNamespace(error=""), add=lambda _lease: None, release=lambda *_: None
    )
    assert made.dispatch()
    made.on_failure(exc_info(NotRun(Processed())), return_ok=True)
    assert [told for _, _, told, _ in made.worker.brakes.ends] == [None]
    assert made.settled == [Delete()]


def test_a_shared_name(make):
    made = make(brake="bank")
    made.acknowledge()
    assert made.worker.brakes.ends == [("bank", START, False, "")]
    assert made.settled == [Delete()]


@pytest.mark.parametrize(
    ("exc", "failed"),
    [
        (ConnectionError("down"), True),
        (KeyError("a bug"), False),
        (Ignore(), False),
        (WorkerLostError("gone"), None),
        (TimeLimitExceeded(3), None),
        (Terminated("SIGKILL"), None),
        (NotRun("its key"), None),
    ],
)
def test_how_a_run_ends_tells_whether_the_dependency_fails(make, exc, failed):
    made = make()
    made.on_failure(exc_info(exc), return_ok=True)
    ((name, start, told, error),) = made.worker.brakes.ends
    assert (name, start, told) == ("pay", START, failed)
    assert error == (repr(exc) if failed else "")


@pytest.mark.parametrize("retry", [VisibilityRetry, Retry])
def test_a_retry_tells_what_it_is_for(make, retry):
    made = make()
    made.on_failure(exc_info(retry(None, ConnectionError("down"), 4.0)))
    assert [told for _, _, told, _ in made.worker.brakes.ends] == [True]


def test_lost_runs_count_where_the_task_says_so(make):
    made = make(brake_on=(TimeLimitExceeded,))
    made.on_failure(exc_info(TimeLimitExceeded(3)))
    assert [told for _, _, told, _ in made.worker.brakes.ends] == [True]


def test_an_end_is_told_once(make):
    made = make()
    made.acknowledge()
    made.on_failure(exc_info(OSError()), return_ok=True)
    assert len(made.worker.brakes.ends) == 1


def test_without_a_start_nothing_is_told(make):
    made = make()
    made.brake_start = None
    made.acknowledge()
    assert made.worker.brakes.ends == []


def test_a_run_that_does_not_begin_after_all_says_nothing(make):
    made = make()
    made.delivery.holder.may_run = False
    assert not made.dispatch()
    assert made.worker.brakes.ends == [("pay", START, None, "")]


def test_a_run_that_begins_is_told_when_it_ends(make):
    made = make()
    assert made.dispatch()
    assert made.worker.brakes.ends == []


def test_a_failure_is_an_attempt_unless_it_is_forgiven(make):
    made = make()
    made.on_failure(retried(OSError()))
    assert made.settled == [Hide(4)]
    assert "visibility_try" not in made.request_dict


def test_a_failed_try_comes_back_as_a_copy_with_as_many_attempts_as_before(make, system_clock):
    made = make(forgiven=True, receive_count=3)
    assert made.request_dict["visibility_try"]
    assert made.context.visibility_try
    made.on_failure(retried(OSError()))
    assert made.settled == [(COPY, "BRAKE")]
    ((wait, retries),) = made.copies
    assert (wait, retries) == (LEAD_SECONDS + 4, 2)


@pytest.mark.parametrize(("forgiven", "delay"), [(True, LEAD_SECONDS + 4), (False, 4)])
def test_a_failure_that_is_not_the_last_is_told_as_such(make, forgiven, delay):
    told = []
    end = subscribe(told.append, Failed)
    try:
        make(forgiven=forgiven).on_failure(retried(OSError("down")))
    finally:
        end()
    (event,) = told
    assert (event.delay, event.last) == (pytest.approx(delay), False)
    assert "down" in event.error


def test_a_failure_at_the_last_attempt_is_told_and_does_not_come_back(make):
    made, given_up = make(), []
    made.message.give_up = lambda reason, *_, **__: given_up.append(reason)
    made.on_failure(exc_info(OSError("down")), return_ok=True)
    assert [told for _, _, told, _ in made.worker.brakes.ends] == [True]
    assert (len(given_up), made.settled) == (1, [])


def test_at_its_last_receive_too(make):
    made = make(forgiven=True, receive_count=3, max_receive_count=3)
    made.on_failure(retried(OSError(), None))
    assert made.settled == [(COPY, "BRAKE")]


def test_a_try_that_fails_otherwise_is_an_attempt(make):
    made = make(forgiven=True)
    made.on_failure(retried(KeyError()))
    assert made.settled == [Hide(4)]


def test_a_lost_try_is_forgiven_where_the_task_says_so(make):
    made = make(forgiven=True, brake_on=(TimeLimitExceeded,), max_retries=0)
    made.on_failure(exc_info(TimeLimitExceeded(3)))
    assert made.settled == [(COPY, "BRAKE")]


def test_where_there_can_be_no_copy_it_is_an_attempt(make):
    made = make(forgiven=True, copies=False)
    assert "visibility_try" not in made.request_dict
    made.on_failure(retried(OSError()))
    assert made.settled == [Hide(4)]


def test_if_the_copy_cannot_be_made_after_all_the_message_is_hidden(make):
    made = make(forgiven=True)
    made.message.renewal = lambda *_: None
    made.on_failure(retried(OSError()))
    assert made.settled == [Hide(4)]


def test_a_later_start_may_not_be_forgiven_any_more(make):
    made = make(forgiven=True)
    made.begin(START)
    assert not made.request_dict["visibility_try"]
    made.on_failure(retried(OSError()))
    assert made.settled == [Hide(4)]


@pytest.mark.parametrize(
    ("exc", "expected"),
    [
        (ConnectionError(), True),
        (None, False),
        (UnpickleableExceptionWrapper("builtins", "ConnectionError", (), "text"), True),
        (UnpickleableExceptionWrapper("builtins", "KeyError", (), "text"), False),
        (UnpickleableExceptionWrapper("no.such.module", "ConnectionError", (), "text"), False),
        (UnpickleableExceptionWrapper("builtins", "print", (), "text"), False),
    ],
)
def test_an_exception_that_cannot_be_pickled_is_known_by_its_class(exc, expected):
    assert is_of(exc, (OSError,)) is expected

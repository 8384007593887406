"""What a request of a `VisibilityTask` decides: come back, fail for good, or not run at all."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace

import pytest
from celery import signals, states
from celery.concurrency.solo import TaskPool as SoloPool
from celery.exceptions import Ignore, NotRegistered, Reject, Terminated, TimeLimitExceeded, WorkerLostError
from celery.utils.serialization import UnpickleableExceptionWrapper
from celery.worker import state
from celery.worker.request import Request
from support.factories import AFTER_AN_ERROR, FakeHolder, exc_info, held_delivery, noop, request

from celery_sqs_visibility import InactivityError
from celery_sqs_visibility.core.settlements import RELEASE, Delete, Hide, Lapse
from celery_sqs_visibility.delivery.lease_table import INACTIVE, UNWATCHED
from celery_sqs_visibility.events import Failed, subscribe
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.task.base import VisibilityTask
from celery_sqs_visibility.task.chord_end import COUNTED, note_counted
from celery_sqs_visibility.task.retries import VisibilityRetry
from celery_sqs_visibility.worker import worker_context
from celery_sqs_visibility.worker.visibility_request import (
    KILLED_WITHIN_SECONDS,
    RELEASES_FORGIVEN,
    StoredResult,
    chord_claim_seconds,
    described,
)

LOST = WorkerLostError("its process is gone")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LAST, NOT_RETRIED, BEFORE = (
    "failed at its last attempt",
    "failed, and is not to be retried",
    "was given up before",
)
STORED_FAILURE = BEFORE, {"exception": "ValueError: no", "traceback": "Traceback: no"}
CHORD = {"task": "body", "args": [], "kwargs": {}, "options": {}}


@pytest.fixture
def failures():
    seen = []
    forget = subscribe(seen.append, Failed)
    yield seen
    forget()


@pytest.fixture
def down(monkeypatch):
    """The result backend is down: Celery's own handling of a failure raises."""

    def fail(*_):
        raise ConnectionError("the result backend is down")

    monkeypatch.setattr(Request, "on_failure", fail)


@pytest.fixture
def claim(app, monkeypatch):
    """Whoever publishes the body of a chord has 30 seconds for it."""
    monkeypatch.setattr(app.backend, "_chord_publish_claim_expires", lambda join, _chord: 30, raising=False)
    app.conf.result_chord_join_timeout = 5


@pytest.fixture
def make(app):
    """`make(max_retries=3, facts={"receive_count": 2})`: a request of a task with these options."""

    def make(*, facts=None, processes=True, given_up=False, max_receive_count=None, chord=None, **options):
        handled = []

        class Task(VisibilityTask):
            def on_retry(self, exc, *_):
                handled.append(("on_retry", type(exc)))

            def on_failure(self, exc, *_):
                handled.append(("on_failure", type(exc)))

        task = app.task(
            noop, base=Task, name="task", shared=False, **{"error_visibility_timeout": 9, **options}
        )
        holder = FakeHolder(max_receive_count=max_receive_count, given_up=given_up)
        made = request(
            app.tasks[task.name], held_delivery(holder, **(facts or {})), processes=processes, chord=chord
        )
        made.holder, made.handled = holder, handled
        made.time_start, made.worker_pid = 1.0, 4711
        state.active_requests.add(made)
        return made

    return make


def reason(one):
    """Why it was given up; the only settlement."""
    [(text, _)] = one.holder.settled
    return text


def test_what_others_have_stored_of_a_broadcast_does_not_end_it_here(make, app):
    one = make(facts={"receive_count": 2}, max_retries=None, store_errors_even_if_ignored=True)
    app.backend.mark_as_failure(one.id, ValueError("no"))
    one.message.is_broadcast = True
    assert not one.revoked()
    assert one.holder.settled == []


@pytest.mark.parametrize(
    ("raised", "told"), [(ValueError("no"), "ValueError: no"), (None, "MaxRetriesExceededError: Can't retry")]
)
def test_what_was_received_for_the_last_time_during_its_run_fails(make, failures, raised, told):
    """Its child knows only of the receive before, and SQS would move the message without a reason."""
    one = make(facts={"receive_count": 2}, max_receive_count=3)
    one.delivery.facts = replace(one.delivery.facts, receive_count=3)
    one.on_retry(exc_info(VisibilityRetry(None, raised, 5)))
    [(text, attributes)] = one.holder.settled
    assert text == "failed at its last attempt"
    assert told in attributes["exception"]
    assert "VisibilityRetry" in attributes["traceback"], "the child's"
    assert [kind for kind, _ in one.handled] == ["on_failure"]
    assert [failed.last for failed in failures] == [True]


@pytest.mark.parametrize(("delay", "settled"), [(2.4, Hide(3)), (0, Hide(0)), (None, Lapse())])
def test_it_comes_back_when_its_child_says(make, failures, delay, settled):
    one = make(facts={"receive_count": 2})
    one.on_retry(exc_info(VisibilityRetry(None, ValueError("no"), delay)))
    assert one.holder.settled == [settled]
    [failed] = failures
    assert (failed.attempt, failed.delay, failed.last) == (2, delay, False)
    assert "ValueError('no')" in failed.error


def test_a_retry_without_an_exception_is_told_by_its_time(make, failures):
    one = make()
    one.on_retry(exc_info(VisibilityRetry(None, None, 4)))
    assert [failed.error for failed in failures] == ["Retry in 4 s"]


def test_a_failure_that_its_child_decided_is_stored_and_then_given_up(make, failures, monkeypatch):
    one = make(facts={"receive_count": 4}, max_retries=3)
    exc = ValueError("no")

    def on_failure(self, *_):
        assert self.acknowledged, "Celery must not delete it before it is given up"
        assert self.holder.settled == []

    monkeypatch.setattr(Request, "on_failure", on_failure)
    one.on_failure(exc_info(exc), return_ok=True)
    [(text, attributes)] = one.holder.settled
    assert text == LAST
    assert attributes["exception"] == "ValueError: no"
    assert attributes["attempts"] == "4"
    assert attributes["traceback"].startswith("Traceback")
    assert failures[0].last


@pytest.mark.usefixtures("down")
def test_a_failure_that_cannot_be_stored_comes_back(make):
    one = make(facts={"receive_count": 4}, max_retries=3)
    with pytest.raises(ConnectionError):
        one.on_failure(exc_info(ValueError("no")), return_ok=True)
    assert one.holder.settled == [AFTER_AN_ERROR]


@pytest.mark.usefixtures("down")
def test_what_cannot_be_failed_unrun_comes_back_and_raises_nothing(make, app, caplog):
    one = make(facts={"receive_count": 9}, max_retries=1)
    stored(app, "STARTED")
    assert one.revoked()
    assert one.holder.settled == [AFTER_AN_ERROR]
    assert "could not be failed, and comes back" in caplog.text


@pytest.mark.parametrize(("exc", "settled"), [(Ignore(), Delete()), (Reject("no", requeue=True), RELEASE)])
def test_celerys_own_ways_to_end_keep_their_meaning(make, failures, exc, settled):
    one = make()
    one.on_failure(exc_info(exc), return_ok=True)
    assert one.holder.settled == [settled]
    assert failures == []


@pytest.mark.parametrize(
    ("options", "settled"),
    [
        ({"max_retries": 3, "facts": {"receive_count": 3}}, Hide(9)),
        ({"max_retries": 3, "facts": {"receive_count": 4}}, LAST),
        ({"max_retries": None, "facts": {"receive_count": 99}}, Hide(9)),
        ({"max_retries": None, "facts": {"receive_count": 5}, "max_receive_count": 5}, LAST),
        ({"dont_autoretry_for": (WorkerLostError,)}, NOT_RETRIED),
        ({"autoretry_for": (OSError,)}, Hide(9)),  # a lost run says nothing of the task's own errors
    ],
)
def test_a_lost_run_comes_back_while_it_has_attempts(make, options, settled):
    one = make(**options)
    one.on_failure(exc_info(LOST))
    assert (reason(one) if isinstance(settled, str) else one.holder.settled) in (settled, [settled])
    assert one not in state.active_requests


def test_a_lost_run_that_comes_back_is_reported_as_its_child_would_have(make, app, failures):
    sent, seen = [], []
    receiver = signals.task_retry.connect(lambda **facts: seen.append(facts["reason"]), weak=False)
    one = make()
    one.send_event = lambda name, **_: sent.append(name)
    one.on_failure(exc_info(LOST))
    signals.task_retry.disconnect(receiver)
    assert app.AsyncResult(one.id).status == "RETRY"
    assert sent == ["task-retried"]
    assert one.handled == [("on_retry", WorkerLostError)]
    assert [str(each) for each in seen] == [str(VisibilityRetry(None, LOST, 9))]
    assert [(failed.attempt, failed.delay, failed.last) for failed in failures] == [(1, 9, False)]


def test_it_comes_back_once_retry_is_stored_which_would_replace_its_next_state(make, monkeypatch):
    one, before = make(error_visibility_timeout=0), []
    monkeypatch.setattr(
        one.task.backend, "mark_as_retry", lambda *_, **__: before.append(list(one.holder.settled))
    )
    one.on_failure(exc_info(LOST))
    assert (before, one.holder.settled) == ([[]], [Hide(0)])


@pytest.mark.parametrize(("left", "states"), [(60, ["RETRY"]), (0, [])], ids=["held", "lost"])
def test_a_lost_run_whose_message_is_lost_leaves_the_state_to_another(make, monkeypatch, left, states):
    one, stored = make(), []
    monkeypatch.setattr(one.task.backend, "store_result", lambda *args, **_: stored.append(args[2]))
    one.delivery.deadline = SYSTEM_CLOCK.monotonic() + left
    one.on_failure(exc_info(LOST))
    assert stored == states


@pytest.mark.parametrize("exc", [LOST, TimeLimitExceeded(5)])
def test_a_lost_run_that_comes_back_has_one_warning(make, caplog, exc):
    one = make(facts={"receive_count": 2})
    one.on_failure(exc_info(exc))
    if isinstance(exc, TimeLimitExceeded):
        one.on_timeout(soft=False, timeout=5)
    (line,) = caplog.records
    assert (line.levelname, line.exc_info) == ("WARNING", None)
    assert line.getMessage() == f"Task task[task-id] failed at attempt 2 of 4 and comes back in 9 s: {exc!r}"


def test_a_run_past_its_hard_time_limit_at_the_last_attempt_is_celerys_error_alone(make, caplog):
    one = make(max_retries=0)
    one.on_failure(exc_info(TimeLimitExceeded(5)))
    one.on_timeout(soft=False, timeout=5)
    errors = [line.getMessage() for line in caplog.records if line.levelname == "ERROR"]
    assert errors == ["Task handler raised error: TimeLimitExceeded(5)"]
    assert "Task task[task-id] exceeded its hard time limit (5s)" in caplog.text


@pytest.mark.parametrize(("processes", "kind"), [(True, WorkerLostError), (False, SystemExit)])
def test_the_exit_of_a_process_is_a_lost_run(make, processes, kind):
    one = make(processes=processes, ignore_result=True)
    one.on_failure(exc_info(SystemExit(3)))
    assert one.holder.settled == [Hide(9)]
    assert one.handled == [("on_retry", kind)]


@pytest.mark.parametrize(("delay", "hidden"), [(0, Hide(1)), (9, Hide(9)), (None, Hide(30))])
def test_a_run_past_its_hard_time_limit_is_hidden_until_its_process_is_killed(make, app, delay, hidden):
    app.conf.broker_url = "celery-sqs-visibility://"
    app.conf.broker_transport_options = {"error_visibility_timeout": 30}
    one = make(error_visibility_timeout=delay)
    one.on_timeout(soft=True, timeout=5)
    assert one.holder.settled == [], "a soft one is the child's business"
    one.on_failure(exc_info(TimeLimitExceeded(5)))
    one.on_timeout(soft=False, timeout=5)
    assert one.holder.settled == [hidden]


def test_where_a_pool_reports_a_hard_time_limit_once_the_run_fails_and_its_handlers_are_called(make):
    one = make(processes=False, max_retries=0)
    one.on_timeout(soft=False, timeout=5)
    assert reason(one) == LAST
    assert one.handled == [("on_failure", TimeLimitExceeded)]


@pytest.mark.parametrize(
    ("receive_count", "parks", "published", "retries"),
    [(1, 0, 0, 0), (3, 0, 0, 2), (3, 1, 0, 1), (2, 0, 4, 5)],
)
def test_its_retries_are_its_receives_and_what_messages_before_it_used_up(
    app, receive_count, parks, published, retries
):
    task = app.tasks[app.task(noop, base=VisibilityTask, name="task", shared=False).name]
    delivery = held_delivery(FakeHolder(), receive_count=receive_count)
    delivery.parkings = parks
    assert request(task, delivery, retries=published).request_dict["retries"] == retries
    assert task.acks_late


def stored(app, status, result=None, *, done=None, traceback=None):
    """Have the result backend know that of the task."""
    meta = {"status": status, "result": result, "traceback": traceback}
    meta["date_done"] = None if done is None else done.isoformat()
    app.backend.get_task_meta = lambda _id, cache=True: meta


def test_what_was_given_up_before_is_not_run(make):
    one = make(given_up=True, facts={"receive_count": 2})
    assert one.revoked()
    assert reason(one) == BEFORE
    assert one not in state.active_requests


@pytest.mark.parametrize(
    ("minutes", "receive_count", "status", "settled"),
    [
        (-1, 3, "FAILURE", [STORED_FAILURE]),
        (1, 3, "FAILURE", []),  # an older message's with that task id
        (-1, 3, "SUCCESS", []),
        (None, 3, "FAILURE", []),
        (None, 3 + RELEASES_FORGIVEN, "STARTED", [LAST]),
        (None, 2 + RELEASES_FORGIVEN, "STARTED", []),  # it may have been released only
        (None, 3 + RELEASES_FORGIVEN, "PENDING", []),
    ],
)
def test_what_failed_before_or_began_its_last_attempt_is_given_up_without_a_run(
    make, app, minutes, receive_count, status, settled
):
    first = 0.0 if minutes is None else (NOON + timedelta(minutes=minutes)).timestamp()
    one = make(facts={"receive_count": receive_count, "first_received": first}, max_retries=1)
    stored(app, status, ValueError("no"), done=NOON, traceback="Traceback: no")
    assert one.revoked() is bool(settled)
    assert one.holder.settled == settled or [reason(one)] == settled


@pytest.mark.parametrize(
    ("options", "asks"),
    [
        ({"facts": {"receive_count": 1}, "max_retries": 0}, False),
        ({"facts": {"receive_count": 2}, "max_retries": 3}, False),
        ({"facts": {"receive_count": 5}, "max_retries": 3}, True),
        ({"facts": {"receive_count": 2}, "max_retries": None}, True),
        ({"facts": {"receive_count": 2}, "autoretry_for": (OSError,)}, True),
        ({"facts": {"receive_count": 5}, "max_retries": 3, "ignore_result": True}, False),
    ],
)
def test_the_result_backend_is_asked_only_where_it_may_know_more(make, app, options, asks):
    asked = []
    one = make(**options)
    app.backend.get_task_meta = lambda task_id, cache: asked.append(task_id) or {}
    assert not one.revoked()
    assert bool(asked) is asks


def test_without_a_chord_no_backend_is_looked_for_on_the_main_thread(make, monkeypatch):
    """To make one may take a connection, and that may hang."""

    def backend(_task):
        raise AssertionError("the backend is asked for")

    one = make(facts={"receive_count": 1})
    monkeypatch.setattr(type(one.task), "backend", property(backend))
    assert not one.revoked()


@pytest.mark.usefixtures("claim")
@pytest.mark.parametrize(
    ("chord", "beyond", "settled"),
    [
        (None, 0, Delete()),  # Celery 5.7 deletes it: its success is stored
        (CHORD, 0, Hide(40)),
        (CHORD, RELEASES_FORGIVEN + 1, Delete()),
    ],
)
def test_a_run_lost_after_its_success_comes_back_for_its_chord_once_the_claim_on_that_is_over(
    make, monkeypatch, chord, beyond, settled
):
    one = make(chord=chord, facts={"receive_count": 2 + beyond}, max_retries=1)
    one._success_was_stored = lambda: True
    monkeypatch.setattr(Request, "on_failure", lambda self, *_: self.acknowledge())
    one.on_failure(exc_info(LOST))
    assert one.holder.settled == [settled]


@pytest.mark.usefixtures("claim")
@pytest.mark.parametrize(("ago", "runs"), [(0, False), (45, True)])
def test_while_a_lost_run_may_keep_others_from_its_chord_the_message_is_hidden(
    make, app, system_clock, ago, runs
):
    one = make(chord=CHORD, facts={"receive_count": 2})
    stored(app, "SUCCESS", done=datetime.fromtimestamp(system_clock.wall() - ago, UTC))
    assert one.revoked() is not runs
    if not runs:
        [hidden] = one.holder.settled
        assert 30 < hidden.seconds <= 40


def test_the_task_hears_of_a_lost_run_that_comes_back_with_its_arguments(make, monkeypatch):
    one, told, requests = make(), [], []

    def on_retry(task, *args):
        told.append(args)
        requests.append(task.request.id)

    monkeypatch.setattr(type(one.task), "on_retry", on_retry)
    failure = exc_info(LOST)
    one.on_failure(failure)
    ((exc, task_id, args, kwargs, info),) = told
    assert requests == [one.id]
    assert (task_id, args, kwargs) == (one.id, one.args, one.kwargs)
    assert kwargs is not None
    assert isinstance(exc, WorkerLostError)
    assert info is failure


def test_a_message_from_another_broker_is_run_and_its_failure_is_no_event(make, failures):
    one = make()
    one.delivery = None
    assert not one.revoked()
    one.on_failure(exc_info(LOST))
    assert one.holder.settled == failures == []


def test_a_failure_for_good_of_what_was_acknowledged_before_gives_nothing_up(make, failures):
    one = make(max_retries=3, facts={"receive_count": 4})
    one.acknowledged = True
    one.on_failure(exc_info(LOST))
    assert one.holder.settled == []
    assert [failure.last for failure in failures] == [True]


def test_a_backend_that_claims_no_chord_keeps_nobody_from_it(make):
    assert chord_claim_seconds(make().task, CHORD) == 0.0


def test_what_was_acknowledged_before_is_run_however_often_it_was_received(make):
    one = make(max_retries=0, facts={"receive_count": 2})
    one.acknowledged = True
    assert not one.revoked()


@pytest.mark.parametrize(
    ("mark", "settled"), [("_already_cancelled", [RELEASE]), ("_already_revoked", [Delete()])]
)
def test_the_loss_of_a_run_that_was_cancelled_or_revoked_is_no_failure(make, failures, mark, settled):
    one = make()
    setattr(one, mark, True)
    one.on_failure(exc_info(LOST))
    assert one.holder.settled == settled
    assert failures == []


@pytest.mark.parametrize("retries_left", [True, False])
def test_a_handler_of_a_run_that_was_lost_has_its_request_and_its_error_is_logged(make, caplog, retries_left):
    def raising(task, *_args):
        handled.append(task.request.id)
        raise AttributeError("start")

    def hear(**facts):
        told.append(facts)

    handled, told = [], []
    handlers = dict.fromkeys(("on_retry", "on_failure", "after_return"), raising)
    one = make(max_retries=3 if retries_left else 0, **handlers)
    signals.task_retry.connect(hear)
    one.on_timeout(soft=False, timeout=5)
    signals.task_retry.disconnect(hear)
    assert handled == ["task-id"] * (1 if retries_left else 2)
    assert len(told) == retries_left
    assert ("failed at attempt 1 of 4" in caplog.text) is retries_left
    assert "of task task failed; the outcome stays as stored" in caplog.text
    assert one.task.request_stack.top is None


@pytest.mark.parametrize("counted", [True, False])
def test_the_lost_run_of_a_chords_member_that_was_counted_before_does_not_count(
    make, app, monkeypatch, counted
):
    seen = []
    monkeypatch.setattr(app.backend, "on_chord_part_return", lambda *args: seen.append(args[1]))
    one = make(max_retries=0, chord=CHORD)
    app.backend.delete(app.backend.get_key_for_task(one.id, COUNTED))
    if counted:
        note_counted(one.task, one.id)
    one.on_timeout(soft=False, timeout=5)
    assert seen == [states.FAILURE] * (not counted)


class Trouble(Exception):
    """A user's own."""


class MuteError(Exception):
    """Cannot say what it is."""

    def __str__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("exc", "text"),
    [
        (ValueError("no"), "ValueError: no"),
        (KeyError("a"), "KeyError: 'a'"),
        (Trouble("in vain"), f"{__name__}.Trouble: in vain"),
        (UnpickleableExceptionWrapper("proj.errors", "Locked", ("a", 2)), "proj.errors.Locked: a, 2"),
    ],
)
def test_an_exception_is_described_by_type_and_message(exc, text):
    assert described(exc) == text


def test_an_exception_that_cannot_say_what_it_is_is_described_all_the_same():
    assert described(MuteError()).startswith(f"{__name__}.MuteError: ")


@pytest.mark.parametrize(
    ("meta", "at"),
    [
        *[
            ({"date_done": done}, NOON.timestamp())
            for done in (
                NOON,
                NOON.isoformat(),
                NOON.isoformat().replace("+00:00", "Z"),
                NOON.replace(tzinfo=None),  # SQL and MongoDB
                NOON.replace(tzinfo=None).isoformat(),
                NOON.astimezone(timezone(timedelta(hours=5))).isoformat(),
            )
        ],
        *[(meta, None) for meta in ({}, {"date_done": None}, {"date_done": 7}, {"date_done": "yesterday"})],
    ],
)
def test_the_time_of_an_outcome_without_a_zone_is_utc_and_one_that_cannot_be_read_is_not_known(meta, at):
    assert StoredResult(meta).done_at == at


@pytest.mark.parametrize(("error", "failed"), [(Trouble("in vain"), True), (NotRegistered("t"), False)])
def test_a_task_that_another_worker_did_not_know_has_not_failed(error, failed):
    facts = SimpleNamespace(first_received=NOON.timestamp() - 1)
    delivery = SimpleNamespace(facts=facts, moved_from=None)
    meta = {"status": states.FAILURE, "result": error, "date_done": NOON}
    assert StoredResult(meta).is_failure_of(delivery) is failed


@pytest.mark.parametrize("uri", ["rpc://", "redis://"])
def test_a_backend_that_cannot_tell_or_does_not_answer_tells_nothing(uri):
    def get_task_meta(*_, **__):
        assert uri != "rpc://", "asking would make a queue"
        raise ConnectionError

    backend = SimpleNamespace(as_uri=lambda: uri, get_task_meta=get_task_meta)
    assert StoredResult.read(SimpleNamespace(backend=backend), "id").status is None


LIMIT = 30
KILLED = (4711, 9)


@pytest.fixture
def make_silent(app, leases):
    """`make_silent(facts={...})`: a request whose run was silent; `steps` says what follows."""

    def make_silent(*, processes=True, facts=None, **options):
        steps = []

        class Task(VisibilityTask):
            def on_failure(self, exc, *_):
                steps.append(("on_failure", type(exc)))

        options = {"error_visibility_timeout": 9, "inactivity_timeout": LIMIT, **options}
        app.task(noop, base=Task, name="task", shared=False, **options)
        holder = FakeHolder()
        delivery = held_delivery(holder, **(facts or {}))
        made = request(app.tasks["task"], delivery, processes=processes)
        delivery.lease = leases.take(delivery.deadline, pytest.fail)
        delivery.lease.last_sign = INACTIVE
        made.holder, made.steps, holder.settled = holder, steps, steps
        made.worker.pool.terminate_job = lambda pid, signal: steps.append((pid, signal))
        made.time_start, made.worker_pid = 1.0, 4711
        state.active_requests.add(made)
        return made

    return make_silent


def end(one):
    """As the supervisor does."""
    one.delivery.inactivity.end_run()


@pytest.mark.parametrize("processes", [True, False])
def test_it_comes_back_and_a_process_is_killed_first_a_greenlet_last(make_silent, app, processes, caplog):
    one = make_silent(processes=processes)
    end(one)
    steps = [KILLED, Hide(9)]
    assert one.steps == (steps if processes else steps[::-1])
    assert app.AsyncResult(one.id).status == "RETRY"
    assert "failed at attempt 1 of 4 and comes back in 9 s: InactivityError(" in caplog.text
    one.on_failure(exc_info(Terminated(9)))  # the pool tells of its end
    assert len(one.steps) == 2


def test_at_the_last_attempt_it_is_given_up_and_errbacks_hear_of_it(make_silent, app):
    failed = []
    receiver = signals.task_failure.connect(lambda exception, **_: failed.append(exception), weak=False)
    one = make_silent(facts={"receive_count": 4})
    end(one)
    signals.task_failure.disconnect(receiver)
    killed, (reason, attributes), handler = one.steps
    assert (killed, reason, handler) == (
        KILLED,
        "failed at its last attempt",
        ("on_failure", InactivityError),
    )
    assert attributes["exception"].endswith("InactivityError: no sign of life for 30 s (inactivity_timeout)")
    assert [type(exc) for exc in failed] == [InactivityError]
    assert app.AsyncResult(one.id).status == "FAILURE"


def test_a_task_that_excludes_it_fails_for_good(make_silent):
    one = make_silent(dont_autoretry_for=(InactivityError,))
    end(one)
    assert one.steps[1][0] == "failed, and is not to be retried"


def test_its_message_is_hidden_until_the_run_is_gone(make_silent):
    one = make_silent(error_visibility_timeout=0)
    end(one)
    assert one.steps[1] == Hide(KILLED_WITHIN_SECONDS)


def test_what_has_ended_is_not_ended_again(make_silent):
    read, code_over, settled = make_silent(), make_silent(), make_silent()
    state.task_ready(read)
    code_over.delivery.lease.last_sign = UNWATCHED
    settled.acknowledge()
    settled.delivery.lease = None  # as a settlement leaves it
    for one in (read, code_over, settled):
        end(one)
    assert read.steps == code_over.steps == []
    assert settled.steps == [Delete()]


def test_where_the_pool_cannot_end_it_one_warning_says_what_follows(make_silent, caplog):
    one = make_silent(processes=False)
    one.worker.pool = SoloPool()
    end(one)
    assert one.steps == []
    assert "has shown no life for 30 s, and its pool has no way to end it" in caplog.text


def test_in_processes_it_is_ended_where_results_are_read(make_silent, monkeypatch, leases):
    monkeypatch.setattr(worker_context, "lease_table", lambda: leases)
    one, called = make_silent(), []
    one.worker.hub = SimpleNamespace(call_soon=called.append)
    end(one)
    assert one.steps == []
    called[0]()
    assert one.steps == [KILLED, Hide(9)]


def test_an_error_leaves_neither_the_event_loop_nor_the_message(make_silent, monkeypatch, caplog):
    one = make_silent()
    monkeypatch.setattr(one.task.backend, "mark_as_retry", lambda *_, **__: 1 // 0)
    end(one)
    assert one.steps == [KILLED, Hide(9)]
    assert "could not be ended" in caplog.text


def test_a_silent_run_whose_failure_cannot_be_stored_comes_back(make_silent, monkeypatch):
    one = make_silent(max_retries=0)
    monkeypatch.setattr(one.task.backend, "mark_as_failure", lambda *_, **__: 1 // 0)
    end(one)
    assert one.steps[1] == AFTER_AN_ERROR


def test_a_task_that_declares_nothing_is_not_watched(make_silent):
    assert make_silent(inactivity_timeout=None).delivery.inactivity is None

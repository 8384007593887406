"""What becomes of a message whose run did not take place, in the worker's main process."""

import pickle
from types import SimpleNamespace

import pytest
from celery.events.state import State
from celery.exceptions import ImproperlyConfigured, Terminated, TimeLimitExceeded, WorkerLostError
from celery.worker import state
from support.factories import (
    FakeHolder,
    exc_info,
    held_delivery,
    request,
)

from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.core.settlements import RELEASE, Delete, Hide, Lapse, Why
from celery_sqs_visibility.delivery.pump import Pump
from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.stores.port import Processed, Processing
from celery_sqs_visibility.task.base import VisibilityTask
from celery_sqs_visibility.task.exclusive import NotRun, Spent, Unanswered
from celery_sqs_visibility.worker import exclusive_request
from celery_sqs_visibility.worker.exclusive_request import open_key_leases

COPY = OutgoingMessage("copy")


def nothing():
    """A task."""


def of_all(args, kwargs):
    return "all"


class FakeKeyLeases:
    def __init__(self):
        self.added, self.released = [], []
        self.unanswered = []
        self.store = SimpleNamespace(error="", unanswered=lambda *told: self.unanswered.append(told))

    def add(self, lease):
        self.added.append(lease)

    def release(self, lease, delay):
        self.released.append((lease, delay))


@pytest.fixture
def make(app, monkeypatch):
    """`make(exclusive=True)`: a request of a task, with what happens to its message."""

    def make(*, copies=True, receive_count=1, max_receive_count=None, headers=None, **options):
        task = app.task(name="one", base=VisibilityTask, shared=False, **{"exclusive": True, **options})(
            nothing
        )
        app.finalize()
        holder = FakeHolder(max_receive_count=max_receive_count)
        made = request(
            app.tasks[task.name], held_delivery(holder, receive_count=receive_count), **headers or {}
        )
        made.worker.key_leases = FakeKeyLeases()
        made.asked = []

        def renewal(eta, retries, otherwise):
            made.asked.append((eta - SYSTEM_CLOCK.wall(), retries))
            return ("a copy", otherwise) if copies else None

        monkeypatch.setattr(made.message, "renewal", renewal, raising=False)
        made.settled = holder.settled
        return made

    return make


def end(made, why):
    made.dispatch()
    return made.on_failure(exc_info(NotRun(why)), return_ok=True)


def test_a_run_is_told_its_key_and_a_name_of_its_own(make):
    made, again = make(), make()
    for each in (made, again):
        each.dispatch()
        each.dispatch()  # as where Celery writes it to a process again
    told = [each._request_dict["visibility_exclusive"] for each in (made, again)]
    assert [each["key"] for each in told] == ["one:task-id"] * 2
    assert told[0]["owner"] != told[1]["owner"]
    assert told[0]["owner"].startswith("id/")
    assert [lease.owner for lease in made.worker.key_leases.added] == [told[0]["owner"]]


@pytest.mark.parametrize(("exclusive", "key"), [(True, "one:task-id@q"), (lambda args, kwargs: "k", "one:k")])
def test_a_broadcast_is_run_by_each_worker_unless_a_callable_says_otherwise(make, exclusive, key):
    made = make(exclusive=exclusive)
    made.message.is_broadcast = True
    made.dispatch()
    assert made._request_dict["visibility_exclusive"]["key"] == key


def test_an_error_of_the_callable_travels_to_the_run(make):
    made = make(exclusive=lambda args, kwargs: args[0])
    made.dispatch()
    assert "IndexError" in made._request_dict["visibility_exclusive"]["error"]
    assert made.worker.key_leases.added == []


def test_a_task_that_is_not_exclusive_is_told_nothing(make):
    made = make(exclusive=False)
    made.dispatch()
    assert "visibility_exclusive" not in made._request_dict


@pytest.mark.parametrize("exclusive", [True, False])
def test_a_run_that_may_go_on_is_not_failed_by_what_was_received_often(make, app, exclusive):
    """As where its message is lost, or was published twice: the result is STARTED still."""
    made = make(receive_count=9, exclusive=exclusive, max_retries=1)
    app.backend.get_task_meta = lambda _id, cache=True: {"status": "STARTED"}
    assert made.revoked() is not exclusive
    assert bool(made.settled) is not exclusive
    if exclusive:
        made.dispatch()
        assert made._request_dict["visibility_exclusive"]["spent"]
        made.on_failure(exc_info(NotRun(Spent())), return_ok=True)
    ((reason, attributes),) = made.settled
    assert reason == "failed at its last attempt"
    assert "the runs before were lost" in attributes["exception"]


def test_a_lost_run_had_the_attempts_that_its_key_knows(make):
    made = make(receive_count=9, max_retries=3, error_visibility_timeout=5)
    made.dispatch()
    made.delivery.lease = SimpleNamespace(retries=1, key=None)
    made.on_failure(exc_info(WorkerLostError("gone")))
    assert made.settled == [Hide(5)], "an attempt, and not the last"


@pytest.mark.parametrize(("earlier", "shown"), [([], "REVOKED"), (["succeeded"], "SUCCESS")])
def test_monitors_see_a_skipped_task_end_and_keep_an_earlier_success(make, monkeypatch, earlier, shown):
    sent, monitor = [], State()
    made = make()
    monkeypatch.setattr(made, "send_event", lambda kind, **fields: sent.append({"type": kind, **fields}))
    made.on_accepted(1, 0.0)
    end(made, Processed())
    for number, event in enumerate([*({"type": f"task-{each}"} for each in earlier), *sent], 1):
        at = {"timestamp": number, "local_received": number, "clock": number}
        monitor.event({"uuid": made.id, "hostname": "a@host", **event, **at})
    assert [event["type"] for event in sent] == ["task-started", "task-revoked"]
    assert monitor.tasks[made.id].state == shown


def test_a_processed_key_has_the_message_deleted(make, caplog):
    caplog.set_level("INFO")
    made = make()
    end(made, Processed())
    assert made.settled == [Delete()]
    assert "Task one[task-id] skipped: its key 'one:task-id' was processed before" in caplog.text


@pytest.mark.parametrize(
    ("exclusive", "headers", "warned"),
    [
        (of_all, {"group": "group-id"}, "the group that it is part of"),
        (of_all, {"chord": {"task": "body"}}, "the chord that it is part of"),
        (of_all, {}, ""),
        (True, {"group": "group-id"}, ""),
    ],
)
def test_a_skipped_part_of_a_canvas_is_warned_of_unless_the_task_itself_was_processed(
    make, caplog, exclusive, headers, warned
):
    made = make(exclusive=exclusive, headers=headers)
    end(made, Processed())
    assert (warned in caplog.text, len(caplog.records)) == (True, bool(warned))


@pytest.mark.parametrize(
    "why", [Processing(29.5, "another-message/run"), "the store is down", Unanswered("no answer", 7.0)]
)
def test_a_message_that_waits_goes_on_as_a_copy_with_the_attempts_it_had(make, system_clock, why, caplog):
    caplog.set_level("INFO")
    made = make(receive_count=3)
    caplog.clear()
    end(made, why)
    assert made.settled == [("a copy", Hide(30, Why.KEY))]
    ((seconds, retries),) = made.asked
    assert seconds == 30
    assert retries == 2  # and not three: this receive was no attempt
    assert {record.sqs["key"] for record in caplog.records if hasattr(record, "sqs")} == {
        made._ownership["key"]
    }


def test_a_run_that_had_no_answer_from_the_store_tells_the_main_process(make):
    made = make()
    end(made, pickle.loads(pickle.dumps(NotRun(Unanswered("no answer", 7.0)))).why)
    assert made.worker.key_leases.unanswered == [("no answer", 7.0)]


def test_while_the_store_does_not_answer_a_message_waits_and_takes_no_process(make, caplog):
    made = make()
    made.worker.key_leases.store.error = "no answer"
    state.task_reserved(made)
    assert not made.dispatch()
    assert made.settled == [("a copy", Hide(30, Why.KEY))]
    assert made not in state.reserved_requests
    assert "was not run, and comes back in 30 s: its key cannot be acquired: no answer" in caplog.text


@pytest.mark.parametrize(
    ("receive_count", "most", "seconds"),
    [(1, 10, 30), (5, 10, 37), (8, 10, 300), (9, 10, 600), (10, 10, 600), (12, 10, 600), (8, None, 30)],
)
def test_what_cannot_be_copied_waits_for_the_store_the_longer_the_fewer_receives_are_left(
    make, caplog, receive_count, most, seconds
):
    """Each wait is a receive, and after the last one that is allowed SQS moves the message, unrun."""
    made = make(copies=False, receive_count=receive_count, max_receive_count=most)
    end(made, "the store is down")
    assert made.settled == [Hide(seconds, Why.KEY)]
    assert f"was not run, and comes back in {seconds} s" in caplog.text


@pytest.mark.parametrize("options", [{"exclusive": False}, {"exclusive": lambda args, kwargs: args[0]}])
def test_what_acquires_no_key_does_not_wait_for_the_store(make, options):
    made = make(**options)
    made.worker.key_leases.store.error = "no answer"
    assert made.dispatch()
    assert made.settled == []


@pytest.mark.parametrize(("owner", "copies"), [("id/run", True), ("another-message/run", False)])
def test_a_message_that_cannot_be_copied_or_is_run_elsewhere_is_hidden(make, owner, copies):
    made = make(copies=copies)
    end(made, Processing(29.5, owner))
    assert made.settled == [Hide(30, Why.KEY)]


@pytest.mark.parametrize(("error", "delay"), [(WorkerLostError("gone"), 0.0), (TimeLimitExceeded(5), 0.5)])
def test_a_run_that_is_gone_has_its_key_released(make, error, delay):
    made = make()
    made.dispatch()
    made.on_failure(exc_info(error))
    (lease,) = made.worker.key_leases.added
    assert made.worker.key_leases.released == [(lease, delay)]


@pytest.mark.parametrize(
    ("left", "order"),
    [(1, ["stored", "freed", Lapse()]), (0, ["stored", "given up", "freed"])],
    ids=["retried", "failed"],
)
def test_the_key_of_a_lost_run_is_free_once_its_state_is_stored(make, monkeypatch, left, order):
    made, steps = make(max_retries=left), []
    monkeypatch.setattr(made.task.backend, "store_result", lambda *_, **__: steps.append("stored"))
    monkeypatch.setattr(made.worker.key_leases, "release", lambda *_: steps.append("freed"))
    monkeypatch.setattr(made, "give_up", lambda *_, **__: steps.append("given up"))
    monkeypatch.setattr(made, "settle", steps.append)
    made.dispatch()
    made.on_failure(exc_info(WorkerLostError("gone")))
    assert steps == order


def cancel(made, pool):
    made.cancel(pool)


def end_lost(made, _pool):
    made.end_lost_run(made.delivery.handle)


@pytest.mark.parametrize("kill", [cancel, lambda made, pool: made.terminate(pool), end_lost])
def test_a_run_that_is_killed_has_its_key_released_within_a_second(make, kill):
    made = make(when_lost="terminate")
    made.dispatch()
    made.on_accepted(1, SYSTEM_CLOCK.monotonic())
    state.active_requests.add(made)
    kill(made, made.worker.pool)
    assert [delay for _, delay in made.worker.key_leases.released] == [1]
    made.on_failure(exc_info(Terminated(-15)))  # now its process is gone
    assert [delay for _, delay in made.worker.key_leases.released] == [1, 0]


@pytest.mark.parametrize(("processes", "delays"), [(True, [1, 0]), (False, [1])])
def test_of_a_shutdown_the_key_of_a_killed_process_is_free_at_once(make, processes, delays):
    made = make()
    made.worker.has_processes = processes
    made.dispatch()
    made.end_in_shutdown()
    assert made.is_killed_before_its_key_is_free is processes
    assert [delay for _, delay in made.worker.key_leases.released] == delays


def test_a_pool_that_cannot_end_a_run_leaves_it_its_key(make):
    made = make()
    made.dispatch()
    made.worker.pool = None
    made.cancel(None)
    assert made.worker.key_leases.released == []


def test_a_process_that_was_killed_for_another_run_releases_the_key(make):
    made = make()
    made.dispatch()
    made.on_failure(exc_info(Terminated(-15)))
    assert (made.settled, [delay for _, delay in made.worker.key_leases.released]) == ([RELEASE], [0])


def test_a_failure_that_its_child_decided_releases_nothing_here(make):
    made = make(max_retries=0)
    made.dispatch()
    made.on_failure(exc_info(ValueError()), return_ok=True)
    assert made.worker.key_leases.released == []


def test_a_failure_that_celery_decides_is_an_event_unless_it_says_otherwise(make):
    told = []
    for options in ({}, {"send_failed_event": False}):
        made = make(max_retries=0)
        made.eventer = SimpleNamespace(
            enabled=True, groups=set(), send=lambda kind, **fields: told.append((kind, fields["uuid"]))
        )
        made.dispatch()
        made.on_failure(exc_info(ValueError()), **options)
        assert told == [("task-failed", made.id)]


class Context:
    """Of a broker; its store cannot be opened, or is not named."""

    def __init__(self, error=None):
        self._error = error

    @property
    def coordination_store(self):
        if self._error:
            raise self._error


@pytest.mark.parametrize(
    ("context", "sentence"),
    [(Context(), "task 'one' is exclusive, and no store"), (Context(OptionError("no redis")), "no redis")],
)
def test_a_worker_with_exclusive_tasks_and_no_store_is_refused(make, context, sentence):
    task = make().task
    with pytest.raises(ImproperlyConfigured, match=sentence):
        open_key_leases(context, [task])


def test_a_worker_without_exclusive_tasks_needs_no_store(make):
    assert open_key_leases(Context(), [make(exclusive=False).task, SimpleNamespace(exclusive=True)]) is None


def test_a_task_that_is_registered_after_the_start_runs_without_a_key_of_the_worker(make):
    made = make()
    made.worker.key_leases = None
    end(made, Unanswered("no answer", 7.0))
    assert "visibility_exclusive" not in made.request_dict
    assert made.settled == [("a copy", Hide(30, Why.KEY))]


def test_what_is_revoked_before_it_begins_has_no_key_to_release(make):
    made = make()
    made.dispatch()
    made.terminate(None)
    assert made.worker.key_leases.released == []


def test_where_no_run_shares_memory_with_the_worker_none_is_told_of_the_store(make, monkeypatch):
    monkeypatch.setattr(exclusive_request, "lease_table", lambda: None)
    store = object()
    assert open_key_leases(SimpleNamespace(coordination_store=store, pump=Pump()), [make().task])

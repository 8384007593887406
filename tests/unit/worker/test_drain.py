"""A drain gives every run its time and no more, and ends the process only where something still runs."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace

import pytest
from celery.worker import state

from celery_sqs_visibility.worker import drain as drains
from celery_sqs_visibility.worker.drain import GRACE_VARIABLE, Drain

ORPHAN = SimpleNamespace(
    facts=SimpleNamespace(task="task", task_id="id", message_id="m"), queue=SimpleNamespace(name="q")
)


class Consumer:
    """A queue consumer that notes what it is told."""

    def __init__(self, *, orphans=()):
        self.calls = []
        self.orphans = list(orphans)

    def wait_until_empty(self, _seconds):
        return not self.orphans

    def stop_polling(self):
        self.calls.append("stop_polling")

    def end_by(self, until, polls_until):
        self.ends = until, polls_until

    def give_back_unstarted(self):
        self.calls.append("give_back_unstarted")
        return []

    def wait_for_polls(self, until):
        self.calls.append("wait_for_polls")
        return True

    def hand_back(self):
        self.calls.append("hand_back")
        return self.orphans


@pytest.fixture
def run(monkeypatch):
    """`run(consumer, ...)`: drain it with these arguments of `begin`; the status it ends with, if it does."""
    statuses = []

    monkeypatch.setattr(drains.os, "_exit", statuses.append)
    monkeypatch.setattr(drains, "active_children", list)
    monkeypatch.setattr(drains, "END_SECONDS", 0.1)
    monkeypatch.setattr(drains, "RECHECK_SECONDS", 0.05)

    def run(consumer, *args, shutdown_timeout=0.2, tasks_consumer=None, then=None, at_once=None, **kwargs):
        broker = SimpleNamespace(
            options=SimpleNamespace(shutdown_timeout=shutdown_timeout, longest_poll=20, supports_fanout=True),
            end_broadcasts=lambda: consumer.calls.append("end_broadcasts"),
            end_control=lambda: consumer.calls.append("end_control"),
            receiving=SimpleNamespace(
                worker_queue_consumers=[consumer],
                queue_consumers=[consumer, *([tasks_consumer] if tasks_consumer else [])],
            ),
            release_keys=None,
        )
        connection = SimpleNamespace(transport=SimpleNamespace(context=broker))
        drain = Drain(
            SimpleNamespace(connection=connection, controller=SimpleNamespace(pidlock=None, pool=None))
        )
        drain.begin(*args, **kwargs)
        drain.start()
        if at_once is not None:
            at_once(drain)
        if then is not None:
            assert drain._drained.wait(20)
            then(drain)
        while drain._thread.is_alive() and not (drain._drained.is_set() and drain._orders.empty()):
            drain._thread.join(0.01)
        if state.active_requests:
            drain._thread.join(0.5)
        drain.cancel()
        drain._thread.join(20)
        assert not drain._thread.is_alive()
        return sorted(set(statuses))  # a thread that lives on may end its process again

    return run


@pytest.fixture
def runs():
    """`runs(acknowledged_early=...)`: a request whose run goes on."""
    requests = []

    def begin(*, acknowledged_early):
        delivery = SimpleNamespace(acknowledged_early=acknowledged_early)
        request = Run()
        request.delivery = delivery
        requests.append(request)
        state.active_requests.add(request)
        return request

    yield begin
    for request in requests:
        state.active_requests.discard(request)


class Run:
    """A request that is none of ours: it is counted, and cannot be ended."""

    name, id = "task", "id"


ALL = ["stop_polling", "give_back_unstarted", "wait_for_polls", "give_back_unstarted", "hand_back"]


def grow_cold(drain):
    drain.begin(0, cold=True)


@pytest.mark.parametrize("then", [None, grow_cold, Drain.hurry])
def test_a_worker_without_runs_is_left_to_celery(run, then):
    consumer = Consumer()
    assert run(consumer, then=then) == []
    assert consumer.calls == ALL


@pytest.mark.parametrize(("cold", "status"), [(False, 0), (True, 1)])
def test_a_process_that_does_not_end_though_its_runs_were_ended_is_ended_after_its_bound(
    run, runs, caplog, cold, status
):
    runs(acknowledged_early=False)
    consumer, of_a_task = Consumer(orphans=[ORPHAN]), Consumer()
    assert run(consumer, cold=cold, tasks_consumer=of_a_task) == [status]
    assert consumer.calls == [*ALL, "end_control", "end_broadcasts"]
    assert of_a_task.calls == ["stop_polling", "hand_back"], "a consumer inside a task goes on until then"
    assert "shutdown: time is up, ending within 0.1 s" in caplog.text
    assert "lost" not in caplog.text


def test_a_second_signal_ends_the_wait_for_polls(run):
    class Polling(Consumer):
        """Its poll takes long."""

        def wait_for_polls(self, until):
            super().wait_for_polls(until)
            return False

    consumer = Polling()
    started = time.monotonic()
    assert run(consumer, shutdown_timeout=30, at_once=Drain.hurry) == []
    assert time.monotonic() - started < 4.5, "as long as a cold shutdown waits for them"
    assert consumer.ends[1] <= time.monotonic()


def test_a_run_whose_message_is_lost_has_its_time_too(run, runs):
    runs(acknowledged_early=False)
    asked = time.monotonic()
    assert run(Consumer(), 0.3) == [0]
    assert time.monotonic() - asked >= 0.3, "nothing is held, and all the same it is not ended before"


@pytest.mark.parametrize(
    ("ends", "grace", "statuses"),
    [
        ({"timeout": 0.1}, "", []),
        ({"timeout": 0.1}, "2.1", [0]),
        ({"timeout": 0.1, "then": Drain.hurry}, "", [0]),
        ({"timeout": 0.1, "cold": True}, "", [1]),
        ({"then": grow_cold}, "", [1]),
        ({"timeout": math.inf, "then": Drain.hurry}, "", []),
    ],
    ids=["warm", "a short grace", "a second signal", "cold", "cold after warm", "without an end"],
)
def test_a_run_that_was_acknowledged_early_is_waited_for_unless_time_is_short(
    run, runs, caplog, monkeypatch, ends, grace, statuses
):
    monkeypatch.setenv(GRACE_VARIABLE, grace)
    runs(acknowledged_early=True)
    assert run(Consumer(), **ends) == statuses
    lost = "shutdown: lost: it was acknowledged when it began, and does not end in time (task=task task_id=id"
    assert caplog.text.count(lost) == len(statuses)


def test_a_cold_shutdown_leaves_time_for_polls_where_it_leaves_none_for_runs(run):
    consumer = Consumer(orphans=[ORPHAN])
    run(consumer, 0, cold=True)
    ends, polls = consumer.ends
    assert ends == polls
    warm = Consumer(orphans=[ORPHAN])
    run(warm, 0)
    assert warm.ends[0] < ends + 4, "a warm one has no longer than its timeout"

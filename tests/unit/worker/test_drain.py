"""A drain gives every run its time and no more, and ends the process only where something still runs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from celery.worker import state

from celery_sqs_visibility.worker import drain as drains
from celery_sqs_visibility.worker.drain import Drain

ORPHAN = SimpleNamespace(
    facts=SimpleNamespace(task="task", task_id="id", message_id="m"), queue=SimpleNamespace(name="q")
)


class Consumer:
    """A queue consumer that notes what it is told."""

    def __init__(self, *, orphans=()):
        self.calls = []
        self.orphans = list(orphans)
        self.ledger = SimpleNamespace(wait_until_empty=lambda _seconds: not self.orphans)

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

    def run(consumer, *args, shutdown_timeout=0.2, tasks_consumer=None, then_cold=False, **kwargs):
        broker = SimpleNamespace(
            options=SimpleNamespace(shutdown_timeout=shutdown_timeout, longest_poll=20, supports_fanout=True),
            end_broadcasts=lambda: consumer.calls.append("end_broadcasts"),
            end_control=lambda: consumer.calls.append("end_control"),
            worker_queue_consumers=[consumer],
            release_keys=None,
            queue_consumers=[consumer, *([tasks_consumer] if tasks_consumer else [])],
        )
        connection = SimpleNamespace(transport=SimpleNamespace(context=broker))
        drain = Drain(SimpleNamespace(connection=connection, controller=SimpleNamespace(pidlock=None)))
        drain.begin(*args, **kwargs)
        drain.start()
        if then_cold:
            assert drain._drained.wait(20)
            drain.begin(0, cold=True)
        drain.cancel()
        drain._thread.join(20)
        return statuses

    return run


ALL = ["stop_polling", "give_back_unstarted", "wait_for_polls", "give_back_unstarted", "hand_back"]


@pytest.mark.parametrize("then_cold", [False, True])
def test_a_worker_without_runs_is_left_to_celery(run, then_cold):
    consumer = Consumer()
    assert run(consumer, then_cold=then_cold) == []
    assert consumer.calls == ALL


@pytest.mark.parametrize(("cold", "status"), [(False, 0), (True, 1)])
def test_what_runs_when_the_time_is_up_is_handed_back_and_the_process_ends(run, cold, status):
    consumer, of_a_task = Consumer(orphans=[ORPHAN]), Consumer()
    assert run(consumer, cold=cold, tasks_consumer=of_a_task) == [status]
    assert consumer.calls == [*ALL, "end_control", "end_broadcasts"]
    assert of_a_task.calls == ["stop_polling", "hand_back"], "a consumer inside a task goes on until then"


class Early:
    """A run that was acknowledged when it began."""


@pytest.mark.parametrize(
    ("ends", "statuses", "hand_backs"),
    [({"timeout": 0.1}, [], 1), ({"timeout": 0.1, "cold": True}, [1], 1), ({"then_cold": True}, [1], 2)],
    ids=["warm", "cold", "cold after warm"],
)
def test_a_cold_shutdown_ends_what_was_acknowledged_early_too(run, ends, statuses, hand_backs):
    early = Early()
    state.active_requests.add(early)
    consumer = Consumer()
    assert run(consumer, **ends) == statuses
    assert consumer.calls.count("hand_back") == hand_backs


def test_a_cold_shutdown_leaves_time_for_polls_where_it_leaves_none_for_runs(run):
    consumer = Consumer(orphans=[ORPHAN])
    run(consumer, 0, cold=True)
    ends, polls = consumer.ends
    assert ends == polls
    warm = Consumer(orphans=[ORPHAN])
    run(warm, 0)
    assert warm.ends[0] < ends + 4, "a warm one has no longer than its timeout"

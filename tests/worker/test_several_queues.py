"""Queues of one worker with options of their own: urgent ones first, none starves, some run few at once."""

from __future__ import annotations

import itertools
import time
import uuid

import pytest

from celery_sqs_visibility import publish_batch

SLACK_SECONDS = 0.5


class TwoQueues:
    """A site whose worker consumes the queues `high` and `low`, with these options."""

    def __init__(self, site, high=None, low=None, **options):
        name = uuid.uuid4().hex
        self.high, self.low = names = [f"{name}-high", f"{name}-low"]
        self.site, self.diary = site, site.diary
        queues = dict(zip(names, (high or {}, low or {}), strict=True))
        site.config["broker_transport_options"] |= {"queues": queues, **options}

    def start(self, **options):
        return self.site.start(queues=[self.high, self.low], **options)

    def send(self, queue, task, keys, *args):
        with publish_batch(self.site.app):
            for key in keys:
                self.site.app.send_task(f"work.{task}", (key, *args), queue=queue)

    def seconds_until_begun(self, key):
        """Of a task that is sent to the queue `high` now."""
        self.send(self.high, "quick", [key])
        sent = time.monotonic()
        (begun,) = self.diary.wait_for("started", key=key)
        return begun["monotonic"] - sent


@pytest.mark.parametrize(
    ("pool", "order", "seconds"),
    [
        ("prefork", "strict", 1.2),
        ("prefork", "weighted", 0.2),
        ("threads", "strict", 0.2),
        ("threads", "weighted", 1.2),
    ],
)
def test_an_urgent_task_waits_for_one_run_of_a_busy_queue_at_the_most(make_site, pool, order, seconds):
    queues = TwoQueues(make_site(), high={"weight": 8}, queue_order=order)
    queues.start(pool=pool, concurrency=2)
    queues.send(queues.low, "slow", range(round(12 / seconds)), seconds)
    queues.diary.wait_for("started", 4)
    for key in "ab":
        assert queues.seconds_until_begun(key) < seconds + SLACK_SECONDS


def test_a_warm_shutdown_of_a_full_worker_is_quiet_and_settles_what_ran(make_site):
    queues = TwoQueues(make_site(wait_time_seconds=1), high={"weight": 8}, queue_order="strict")
    worker = queues.start(concurrency=2)
    queues.send(queues.low, "slow", range(4), 2)
    queues.diary.wait_for("started", 2)
    worker.terminate()
    assert worker.wait_exit(30) == 0
    assert "ERROR" not in worker.log
    calls = queues.site.proxy.calls("DeleteMessageBatch")
    deleted = [entry for call in calls for entry in call.request["Entries"]]
    assert len(deleted) == 2


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_both_have_their_share_of_the_slots_however_many_wait(make_site, pool):
    queues = TwoQueues(make_site(), high={"weight": 3}, low={"weight": 1})
    for queue in (queues.low, queues.high):
        queues.send(queue, "slow", [f"{queue[-4:]}{number}" for number in range(60)], 0.05)
    queues.start(pool=pool, concurrency=2)
    starts = queues.diary.wait_for("started", 60)[10:60]
    high = sum(entry["key"].startswith("high") for entry in starts)
    assert 25 <= high <= 45, "three quarters, as far as the polls bring them"


def test_a_failed_task_waits_for_the_delay_of_its_queue(make_site):
    queues = TwoQueues(make_site(error_visibility_timeout=30), high={"error_visibility_timeout": [2, 30]})
    queues.start()
    queues.send(queues.high, "plain", ["a"])
    queues.diary.wait_for("done", key="a")
    assert queues.site.changes() == [2]


def test_of_a_queue_no_more_run_at_once_than_it_allows_and_others_can_have_the_rest(make_site):
    queues = TwoQueues(make_site(), low={"max_running": 1, "visibility_timeout": 77})
    for _ in range(2):
        queues.start(pool="threads", concurrency=4)
    queues.send(queues.low, "slow", range(6), 0.5)
    assert queues.seconds_until_begun("a") < SLACK_SECONDS
    done = queues.diary.wait_for("done", 6)
    pids = {entry["key"]: entry["pid"] for entry in queues.diary.entries("started")}
    assert len({pids[entry["key"]] for entry in done}) == 2
    for pid in {entry["pid"] for entry in done}:
        own = [entry["monotonic"] for entry in done if entry["pid"] == pid]
        assert all(after - before >= 0.5 for before, after in itertools.pairwise(own))
    polls = queues.site.proxy.calls("ReceiveMessage", queue=queues.low)
    assert {(poll.request["MaxNumberOfMessages"], poll.request["VisibilityTimeout"]) for poll in polls} == {
        (1, 77)
    }


def test_the_last_queue_of_a_strict_order_is_polled_while_those_before_it_wait_for_messages(make_site):
    """One slot, three queues; and the polls of the first two do not end at the same time."""
    name = uuid.uuid4().hex
    names = [f"{name}-{place}" for place in ("first", "second", "last")]
    site = make_site(
        {"worker_prefetch_multiplier": 1},
        queue_order="strict",
        queues={each: {} for each in names},
        wait_time_seconds=1,
    )
    site.start(queues=names, concurrency=1)
    for number in range(3):
        for queue in (names[0], names[-1]):
            site.proxy.wait_for_calls("ReceiveMessage", queue=names[1])
            site.app.send_task("work.quick", (key := f"{queue} {number}",), queue=queue)
            site.diary.wait_for("started", key=key)
            site.proxy.clear()

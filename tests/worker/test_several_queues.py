"""Queues of one worker with options of their own: urgent ones first, and some run few at once."""

import itertools
import time
import uuid

import pytest

from celery_sqs_visibility import publish_batch


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

    def overtaken_by(self, key):
        """How many tasks of the other queue begin before one that is sent to the queue `high` now."""
        self.send(self.high, "quick", [key])
        sent = time.monotonic()
        (begun,) = self.diary.wait_for("started", key=key)
        slow = self.diary.entries("started", task="work.slow")
        return sum(sent < entry["monotonic"] < begun["monotonic"] for entry in slow)


@pytest.mark.parametrize(
    ("pool", "order", "seconds"),
    [
        ("prefork", "strict", 1.2),
        ("prefork", "weighted", 0.2),
        ("threads", "strict", 0.2),
        ("threads", "weighted", 1.2),
    ],
)
def test_an_urgent_task_waits_for_a_slot_alone(make_site, pool, order, seconds):
    queues = TwoQueues(make_site(), high={"weight": 8}, queue_order=order)
    queues.start(pool=pool, concurrency=2)
    queues.send(queues.low, "slow", range(round(12 / seconds)), seconds)
    queues.diary.wait_for("started", 4)
    for key in "ab":
        assert queues.overtaken_by(key) <= 2, "each slot may just have been given away"


def test_of_a_queue_no_more_run_at_once_than_it_allows_and_others_can_have_the_rest(make_site):
    queues = TwoQueues(make_site(), low={"max_running": 1, "visibility_timeout": 77})
    for _ in range(2):
        queues.start(pool="threads", concurrency=4)
    queues.send(queues.low, "slow", range(6), 0.5)
    queues.overtaken_by("a")
    assert queues.diary.count("done", task="work.slow") < 6, "it has not waited for those"
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

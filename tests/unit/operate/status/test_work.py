"""What workers say of a queue."""

from __future__ import annotations

import pytest

from celery_sqs_visibility.operate.status.work import QueueWork, work_of


def worker(slots, busy, **queues):
    """An answer to `sqs_queues`; `queues` are numbers of runs, negative ones of paused queues."""
    return {
        "slots": slots,
        "busy": busy,
        "queues": {
            name: {
                "paused": runs < 0,
                "held": abs(runs) + 1,
                "running": abs(runs),
                "waited": float(abs(runs)),
            }
            for name, runs in queues.items()
        },
    }


def test_the_workers_that_consume_a_queue_are_summed_up():
    answers = {
        "a": worker(4, 3, orders=1, mail=2),
        "b": worker(2, 2, orders=2),
        "c": worker(8, 8, mail=8),
        "d": {"error": "KeyError('sqs_queues')"},
    }
    work = work_of("orders", answers)
    assert (work.workers, work.slots, work.free) == (2, 6, 1)
    assert (work.running, work.held, work.waited, work.others) == (3, 5, 2.0, {"mail": 2})


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ({}, "NO WORKER that answered consumes it"),
        ({"a": worker(4, 4, mail=4)}, "NO WORKER that answered consumes it"),
        ({"a": worker(4, 0, orders=-1), "b": worker(4, 0, orders=-1)}, "it is paused"),
        ({"a": worker(4, 0, orders=-1), "b": worker(4, 3, orders=3)}, None),
        ({"a": worker(4, 4, orders=1, reports=3)}, "slots are taken by reports (3 of 4)"),
        ({"a": worker(4, 4, orders=3, reports=1)}, "all slots are taken (3 of 4 by its own tasks)"),
    ],
    ids=["no worker", "no consumer", "paused", "free", "others", "own"],
)
def test_a_queue_says_why_its_messages_wait(answers, why):
    assert work_of("orders", answers).why_waiting() == why


def test_a_worker_of_an_older_release_tells_less():
    answers = {"a": {"slots": 1, "busy": 0, "queues": {"q": {"paused": False, "held": 0}}}}
    assert work_of("q", answers) == QueueWork(workers=1, slots=1, free=1, others={})

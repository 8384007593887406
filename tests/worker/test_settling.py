"""Receiving and settling: in order, by few threads, with one reservation for all queues."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from support.processes import wait_until


@pytest.mark.own_pool
def test_an_idle_worker_keeps_no_more_threads_than_it_needs(make_site):
    site = make_site(wait_time_seconds=1)
    for key in range(200):
        site.send("quick", key)
    worker = site.start(pool="prefork", concurrency=2)
    site.diary.wait_for("started", 200, timeout=60)
    # Celery's own; one that polls, settles, extends, watches these, waits for the shutdown, and for probes.
    wait_until(lambda: threads_of(worker) <= 7, 20, lambda: f"{threads_of(worker)} threads to become 7")


def threads_of(worker):
    return len(list(Path(f"/proc/{worker.pid}/task").iterdir()))


@pytest.mark.own_pool
def test_messages_are_handed_over_in_order(make_site):
    site = make_site(wait_time_seconds=1)
    for key in range(30):
        site.send("quick", key)
    site.start(pool="solo", concurrency=1, prefetch_multiplier=10)
    site.diary.wait_for("started", 30, timeout=60)
    started = [entry["sqs"]["message_id"] for entry in site.diary.entries("started")]
    polls = site.proxy.calls("ReceiveMessage", queue=site.queue)
    places = [
        [started.index(message["MessageId"]) for message in poll.response.get("Messages", [])]
        for poll in polls
    ]
    assert sorted(itertools.chain(*places)) == list(range(30))
    assert all(its_places == sorted(its_places) for its_places in places)  # some polls overlap


def test_all_queues_share_one_reservation(make_site, start_worker):
    site = make_site(wait_time_seconds=1)
    queues = [f"{site.queue}-{number}" for number in range(8)]
    for name in queues:
        for _ in range(2):
            site.app.send_task("work.slow", (name, 1), queue=name)
    start_worker("work", config=site.config, queues=queues, concurrency=4, prefetch_multiplier=1)
    done = [entry["monotonic"] for entry in site.diary.wait_for("done", 16, timeout=60)]
    calls = (call for name in queues for call in site.proxy.calls("ReceiveMessage", queue=name))
    polls = [call for call in calls if call.finished]
    for poll in polls:
        received = sum(
            len(each.response.get("Messages", [])) for each in polls if each.finished <= poll.finished
        )
        held = received - sum(at < poll.finished for at in done)
        # Four run. A poll of an idle queue takes no room from another: five of these are one more than there
        # are slots, and may bring one message each.
        assert held <= 4 + 5, "of sixteen"
    assert {entry["key"] for entry in site.diary.entries("done")} == set(queues)

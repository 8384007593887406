"""No sleep delays a retry, an idle queue costs next to nothing, and a shutdown waits for no sleep."""

from __future__ import annotations

import time
from itertools import pairwise


def receives(site):
    return site.proxy.calls("ReceiveMessage", queue=site.queue)


def test_a_retry_is_on_time_though_polling_sleeps_for_a_minute(make_site):
    site = make_site(polling_interval=60, wait_time_seconds=0)
    site.send("number", "a")
    site.start()
    site.diary.wait_for("failing", key="a")
    polls_before = len(receives(site))
    site.diary.wait_for("done", key="a")
    (gap,) = site.gaps("a")
    assert 2 <= gap < 2.5
    # One poll brings it back; one or two more find out that the queue is empty after a message was found.
    assert len(receives(site)) - polls_before <= 3


def test_an_idle_queues_interval_grows_and_collapses_at_the_first_message(make_site):
    site = make_site(polling_interval=0.2, polling_interval_max=3, wait_time_seconds=0)
    site.start()
    site.proxy.wait_for_calls("ReceiveMessage", 6)
    polls = [call.started for call in receives(site)]
    sleeps = [later - earlier for earlier, later in pairwise(polls)]
    assert all(later > earlier - 0.2 for earlier, later in pairwise(sleeps))
    assert sleeps[0] < 1
    assert sleeps[-1] > 2.5
    site.send("quick", "a")
    site.diary.wait_for("started", key="a")
    awake = len(receives(site))
    site.proxy.wait_for(lambda _: len(receives(site)) >= awake + 3)
    polls = [call.started for call in receives(site)][awake - 1 :]
    assert polls[2] - polls[0] < 1.5


def test_polls_are_long_by_default(make_site):
    site = make_site()
    site.start()
    site.proxy.wait_for(lambda _: site.proxy.in_flight("ReceiveMessage"))
    (poll,) = site.proxy.in_flight("ReceiveMessage")
    assert poll.request["WaitTimeSeconds"] == 20
    assert poll.request["VisibilityTimeout"] == 30


def test_shutdown_waits_for_no_sleep(make_site):
    site = make_site(polling_interval=600, wait_time_seconds=0)
    worker = site.start()
    site.proxy.wait_for_calls("ReceiveMessage", 1)
    asked = time.monotonic()
    worker.terminate()
    assert worker.wait_exit(20) == 0
    assert time.monotonic() - asked < 6


def test_shutdown_gives_back_what_has_not_started(make_site):
    site = make_site(visibility_timeout=60)
    for key in range(6):
        site.send("slow", key, 2)
    worker = site.start(concurrency=1, prefetch_multiplier=6)
    site.diary.wait_for("started")
    worker.terminate()
    assert worker.wait_exit(30) == 0
    ran = site.diary.count("started")
    assert ran < 6
    assert site.diary.count("done") == ran
    assert site.counts() == (6 - ran, 0)


def test_a_message_with_a_far_eta_waits_in_sqs_and_starts_on_time_at_its_first_attempt(make_site):
    site = make_site(visibility_timeout=2)
    site.start()
    sent = time.time()
    site.send("number", "a", countdown=15)
    site.diary.wait_for("done", key="a")
    first, second = site.diary.entries("started", key="a")
    assert 0 <= first["time"] - sent - 15 < 1
    assert (first["retries"], first["redelivered"]) == (0, False)
    assert (second["retries"], second["redelivered"]) == (1, True)
    assert first["sqs"]["receive_count"] == 2
    parked = site.proxy.calls("ChangeMessageVisibilityBatch")[0]
    assert parked.request["Entries"][0]["VisibilityTimeout"] in range(6, 11)

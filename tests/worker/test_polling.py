"""No sleep delays a retry, an idle queue costs next to nothing, and a shutdown waits for no sleep."""

from __future__ import annotations

import json
import time
from http import HTTPStatus
from itertools import pairwise

import pytest
from support.faults import error, json_answer

from celery_sqs_visibility.aws.queues import HIDDEN
from celery_sqs_visibility.policy.polling import FOLLOW_UP_SECONDS
from celery_sqs_visibility.policy.quotas import IN_FLIGHT_MESSAGES


def receives(site):
    return site.proxy.calls("ReceiveMessage", queue=site.queue)


def test_no_sleep_of_ten_minutes_delays_a_retry_or_a_shutdown(make_site):
    site = make_site(polling_interval=600, wait_time_seconds=0)
    site.send("number", "a")
    worker = site.start()
    site.diary.wait_for("failing", key="a")
    polls_before = len(receives(site))
    site.diary.wait_for("done", key="a")
    (gap,) = site.gaps("a")
    assert 2 <= gap < 15
    # One poll brings it back; one or two more find out that the queue is empty after a message was found.
    assert len(receives(site)) - polls_before <= 3 + len(FOLLOW_UP_SECONDS)
    asked = time.monotonic()
    worker.terminate()
    assert worker.wait_exit(60) == 0
    assert time.monotonic() - asked < 60


def test_an_idle_queues_interval_grows_and_collapses_at_the_first_message(make_site):
    site = make_site(polling_interval=0.2, polling_interval_max=3, wait_time_seconds=0)
    site.start()
    site.proxy.wait_for_calls("ReceiveMessage", 6)
    polls = [call.started for call in receives(site)]
    sleeps = [later - earlier for earlier, later in pairwise(polls)]
    assert all(sleep > least - 0.05 for sleep, least in zip(sleeps, [0.2, 1, 2, 3, 3], strict=False))
    assert sleeps[0] < sleeps[-1]
    site.begin("a")
    (brings_it,) = site.brought()
    site.proxy.wait_for(lambda _: sum(call.started > brings_it.started for call in receives(site)) >= 2)
    later = [call.started for call in receives(site) if call.started > brings_it.started]
    assert later[1] - brings_it.started < 2.5, "and not two sleeps of 3 s"


def nothing_at_once(_request, _forward, _removed):
    """As SQS answers for a FIFO queue at its limit of messages in flight, however long it was to wait."""
    return json_answer(HTTPStatus.OK, {})


@pytest.mark.parametrize("wait", [0, 20])
def test_an_idle_queue_whose_polls_end_at_once_is_polled_once_a_second(make_site, wait):
    site = make_site(wait_time_seconds=wait)
    site.proxy.inject(nothing_at_once, "ReceiveMessage")
    site.start()
    site.proxy.wait_for_calls("ReceiveMessage", 1)
    before, began = len(receives(site)), time.monotonic()
    time.sleep(5)
    polls, seconds = len(receives(site)) - before, time.monotonic() - began
    assert polls <= seconds + 1, f"{polls} in {seconds:.1f} s"
    site.proxy.clear_faults()
    site.begin("a")


def test_a_message_with_a_far_eta_waits_in_sqs_and_starts_on_time_at_its_first_attempt(make_site):
    site = make_site(visibility_timeout=6, heartbeat_interval=5)
    site.start()
    sent = time.time()
    site.send("number", "a", countdown=20, delay_seconds=0)
    site.diary.wait_for("done", key="a", timeout=60)
    first, second = site.diary.entries("started", key="a")
    assert 0 <= first["time"] - sent - 20 < 5
    assert (first["retries"], first["redelivered"]) == (0, False)
    assert (second["retries"], second["redelivered"]) == (1, True)
    assert first["sqs"]["receive_count"] == 2
    parked = site.proxy.calls("ChangeMessageVisibilityBatch")[0]
    assert parked.request["Entries"][0]["VisibilityTimeout"] in range(8, 16)


QUOTA = 12


def test_a_worker_whose_hidden_retries_use_up_the_quota_in_flight_says_who_holds_them(make_site):
    """The server has a quota of 12, and counts each message as ten thousand: the worker knows SQS's."""
    site = make_site(wait_time_seconds=1)
    site.create_queue_with_dead_letters(9)

    def within_quota(request, forward, _removed):
        full = site.counts()[1] >= QUOTA
        return json_answer(HTTPStatus.OK, {}) if full else forward(request)

    def counting(request, forward, _removed):
        answer = forward(request)
        found = json.loads(answer.body)
        if HIDDEN in (attributes := found.get("Attributes", {})):
            attributes[HIDDEN] = str(int(attributes[HIDDEN]) * IN_FLIGHT_MESSAGES // QUOTA)
        return json_answer(answer.status, found)

    site.proxy.inject(within_quota, "ReceiveMessage", queue=site.queue)
    site.proxy.inject(counting, "GetQueueAttributes", queue=site.queue)
    with site.proxy.inject(
        error("InternalFailure", 500), "GetQueueAttributes", queue=site.queue
    ):  # or it asks in 5 minutes
        worker = site.start()
        for key in range(QUOTA):
            site.send("retrying", key, 600)
        site.proxy.wait_for(lambda _: len(site.changes()) == QUOTA)
    site.send("quick", "waits")
    worker.wait_for_log("messages in flight")
    (line,) = [line for line in worker.log.splitlines() if "messages in flight" in line]
    assert f"WARNING/MainProcess] queue '{site.queue}' has {IN_FLIGHT_MESSAGES} messages in flight" in line
    assert f"This worker holds 0 of them, and has hidden {QUOTA} or more for a retry" in line
    assert site.counts() == (1, QUOTA)
    assert not site.diary.count("started", key="waits")

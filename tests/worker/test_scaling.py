"""The formulae of docs/scaling.md, held against what real workers ask of SQS."""

from __future__ import annotations

import time

import pytest
from support.scaling import scaling


def brought(site):
    return [
        call for call in site.proxy.calls("ReceiveMessage", queue=site.queue) if call.response.get("Messages")
    ]


def entries(site, action):
    """How many entries each request of that action had."""
    return [len(call.request["Entries"]) for call in site.proxy.calls(action)]


@pytest.mark.own_pool
def test_a_hundred_quick_tasks_cost_ten_receives_and_ten_deletes(make_site):
    work = scaling.Workload("quick", 0.05, slots=10, multiplier=0, settle_window=5)
    site = make_site(settle_window=work.settle_window)
    for key in range(200):  # behind a hundred there is a backlog, or several polls would share the last ten
        site.send("quick", key)
    each = scaling.calls(work)
    assert site.proxy.count("SendMessage") == 200 * each.send
    site.start(pool="threads", concurrency=work.slots, prefetch_multiplier=work.multiplier)
    site.diary.wait_for("started", 200, timeout=60)
    site.proxy.wait_for(lambda _: sum(entries(site, "DeleteMessageBatch")) == 200)
    first = sorted(brought(site), key=lambda call: call.started)[: round(100 * each.receive)]
    assert sum(len(call.response["Messages"]) for call in first) == 100
    assert entries(site, "DeleteMessageBatch") == [10] * round(200 * each.delete)
    assert site.proxy.count("ChangeMessageVisibilityBatch") == each.change_visibility == 0


@pytest.mark.own_pool
def test_a_task_of_a_fifo_queue_costs_three_requests(make_fifo_site):
    work = scaling.Workload("quick", 0.05, slots=4, settle_window=0, fifo=True)
    site = make_fifo_site(settle_window=0)
    for key in range(60):
        site.app.send_task("work.quick", (key,), MessageGroupId=f"group-{key % 20}")
    site.start(pool="threads", concurrency=4)
    site.diary.wait_for("started", 60, timeout=60)
    site.proxy.wait_for(lambda _: sum(entries(site, "DeleteMessageBatch")) == 60)
    each = scaling.calls(work)
    assert site.proxy.count("SendMessage") == 60 * each.send
    assert [len(call.response["Messages"]) for call in brought(site)] == [1] * round(60 * each.receive)
    assert len(entries(site, "DeleteMessageBatch")) <= round(60 * each.delete)
    polls = site.proxy.count("ReceiveMessage")
    # Where a second poll found no other group, there is none for a second.
    assert polls <= 60 + 20, "few polls are in vain"


@pytest.mark.own_pool
def test_a_task_of_nine_seconds_is_received_extended_and_deleted_as_computed(make_site):
    # Its extensions are farther from its end than a busy machine is late.
    work = scaling.Workload("slow", 9, slots=1, multiplier=1, visibility_timeout=6, settle_window=0)
    site = make_site(visibility_timeout=6, settle_window=0)
    site.start(pool="threads", concurrency=1, prefetch_multiplier=1)
    site.send("slow", "a", work.seconds)
    site.diary.wait_for("done", key="a", timeout=60)
    site.proxy.wait_for_calls("DeleteMessageBatch")
    assert len(brought(site)) == scaling.calls(work).receive == 1
    assert entries(site, "ChangeMessageVisibilityBatch") == [1] * scaling.extensions(9, 6)
    assert scaling.calls(work).change_visibility == scaling.extensions(9, 6) == 2
    assert len(entries(site, "DeleteMessageBatch")) == scaling.calls(work).delete == 1


@pytest.mark.own_pool
def test_tasks_of_one_worker_share_the_requests_that_extend_them(make_site):
    work = scaling.Workload("slow", 9, slots=10, multiplier=1, visibility_timeout=6)
    site = make_site(visibility_timeout=6)
    for key in range(10):
        site.send("slow", key, work.seconds)
    site.start(pool="threads", concurrency=10, prefetch_multiplier=1)
    site.diary.wait_for("done", 10, timeout=60)
    extensions = entries(site, "ChangeMessageVisibilityBatch")
    assert extensions == [10] * scaling.extensions(9, 6)
    assert len(extensions) == 10 * scaling.calls(work).change_visibility


def test_a_retry_costs_a_hide_and_a_receive_more(make_site):
    work = scaling.Workload("number", 1, slots=1, multiplier=1, settle_window=0, retries=1)
    site = make_site(settle_window=0)
    site.start(concurrency=1, prefetch_multiplier=1)
    site.send("number", "a")
    site.diary.wait_for("done", key="a")
    site.proxy.wait_for_calls("DeleteMessageBatch")
    each = scaling.calls(work)
    assert len(brought(site)) == each.receive == 2
    assert site.proxy.count("ChangeMessageVisibilityBatch") == each.change_visibility == 1
    assert site.proxy.count("DeleteMessageBatch") == each.delete == 1


def test_an_idle_worker_polls_as_often_as_its_polls_are_long(make_site):
    """At the defaults, of 20 seconds, that is three a minute; here twenty times as fast."""
    site = make_site(wait_time_seconds=1)
    site.start()
    site.proxy.wait_for_calls("ReceiveMessage", 1)
    polls, began = site.proxy.count("ReceiveMessage"), time.monotonic()
    time.sleep(10)
    polls = site.proxy.count("ReceiveMessage") - polls
    assert polls <= scaling.idle_polls(1) * (time.monotonic() - began) / 60 + 1
    assert {call.action for call in site.proxy.calls(queue=site.queue)} <= {
        "ReceiveMessage",
        "GetQueueUrl",
        "GetQueueAttributes",
        "CreateQueue",
    }
    assert site.proxy.count("GetQueueAttributes") <= 1

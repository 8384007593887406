"""What a worker holds stays hidden, so that timeouts can be short and crashes cheap."""

from __future__ import annotations

import threading
import time

import pytest
from support.faults import hold_request, latency


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent", "eventlet"])
def test_tasks_four_times_as_long_as_their_timeout_run_once_with_two_workers(make_site, pool):
    site = make_site(visibility_timeout=3, heartbeat_interval=2)
    tasks = 2 if pool == "solo" else 4
    for key in range(tasks):
        site.send("slow", key, 12)
    for number in range(2):
        site.start(pool=pool, concurrency=2, prefetch_multiplier=1, name=f"worker{number}")
    site.diary.wait_for("done", tasks, timeout=60)
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert site.diary.count("started") == tasks


def test_buffered_and_reserved_messages_are_extended_too(make_site):
    site = make_site({"worker_prefetch_multiplier": 0}, visibility_timeout=5, heartbeat_interval=4)
    for key in range(8):
        site.send("slow", key, 1.5)
    first = site.start(concurrency=1)
    site.proxy.wait_for(lambda _: site.counts()[0] == 0)
    site.start(concurrency=1, prefetch_multiplier=1)
    site.diary.wait_for("done", 8, timeout=60)
    assert site.diary.count("started") == 8
    assert "message lost" not in first.log


def test_once_the_main_thread_stands_still_for_good_others_get_what_has_not_begun(make_site):
    """As with a lock that a killed process of billiard's held."""
    site = make_site(visibility_timeout=4, heartbeat_interval=3)
    first = site.start("standing", name="first", concurrency=2)  # so that it receives beside a run
    site.app.send_task("standing.sleep", ("runs", 8))
    site.diary.wait_for("started", key="runs")
    for key in ("stop", "waits"):
        site.app.send_task("standing.sleep", (key, 0))
    site.diary.wait_for("stands still")
    site.start("standing", name="second", concurrency=1)
    for key in ("stop", "waits"):
        site.diary.wait_for("done", key=key)
    site.diary.wait_for("done", key="runs")
    assert site.diary.count("started", key="runs") == 1, "what has begun is extended on"
    first.wait_for_log("Celery's main thread stands still, so it was not extended any longer")


@pytest.mark.parametrize(("timeout", "interval"), [(8, 5), (20, None)])
def test_an_sqs_that_answers_slowly_extends_in_time(make_site, timeout, interval):
    options = {} if interval is None else {"heartbeat_interval": interval}
    site = make_site(visibility_timeout=timeout, **options)
    worker = site.start(concurrency=1)
    site.proxy.inject(latency(1.7))
    site.send("slow", "a", timeout * 1.5)
    site.diary.wait_for("done", key="a", timeout=90)
    assert (site.diary.count("started"), worker.log.count("message lost")) == (1, 0), worker.log


def test_a_late_extension_cannot_overwrite_a_retry_delay(make_site):
    client = {"client-config": {"read_timeout": 20}}
    site = make_site(visibility_timeout=20, heartbeat_interval=18, **client)
    site.start()
    site.send("slow", "warm-up", 0)
    site.diary.wait_for("done", key="warm-up")
    # The first extension, due 2 s after the receive, arrives when the task has failed, with a delay of 1 s.
    arrives = threading.Event()
    site.proxy.inject(hold_request(arrives), "ChangeMessageVisibilityBatch", times=1)
    site.app.send_task("work.slow_then_failing", ("a", 6))
    site.diary.wait_for("failing", key="a")
    time.sleep(1)
    arrives.set()
    site.diary.wait_for("done", key="a", timeout=40)
    extension, hide = site.proxy.calls("ChangeMessageVisibilityBatch")[:2]
    assert [entry["VisibilityTimeout"] for entry in extension.request["Entries"]] == [20]
    assert [entry["VisibilityTimeout"] for entry in hide.request["Entries"]] == [1]
    assert hide.started >= extension.finished
    (gap,) = site.gaps("a")
    assert gap < 15, "the hide, sent after the extension had returned, is what counts"


def test_a_killed_workers_message_is_back_after_its_visibility_timeout(make_site):
    # A dead worker's long poll lives on at SQS, and would take the message once more.
    site = make_site(visibility_timeout=4, heartbeat_interval=3, wait_time_seconds=1)
    doomed = site.start()
    site.send("slow", "a", 6)
    site.diary.wait_for("started", key="a")
    doomed.kill()
    site.start()
    ready = time.monotonic()
    start, again = site.diary.wait_for("started", 2, key="a")
    site.diary.wait_for("done", key="a")
    assert again["retries"] == 1
    # Killed at its latest a moment after the start.
    assert again["monotonic"] - max(start["monotonic"] + 4, ready) < 10


def test_without_heartbeat_a_long_task_is_handed_out_again(make_site):
    site = make_site(visibility_timeout=2, heartbeat_interval=0)
    for _ in range(2):
        site.start(concurrency=1, prefetch_multiplier=1)
    site.send("slow", "a", 15)
    site.diary.wait_for("started", 2, key="a")  # in the other worker: who has it does not run it twice
    assert site.proxy.count("ChangeMessageVisibilityBatch") == 0

"""What a running task knows of its message, in every pool; and what happens when its lease is lost."""

from __future__ import annotations

import signal
import threading
import time

import pytest
from support.faults import error, fail_entries, hold_request

POOLS = ["prefork", "threads", "solo", "gevent", "eventlet"]
CAN_END_A_RUN = ["prefork", "gevent", "eventlet"]


def start(site, **options):
    return site.start("leases", **options)


def cannot_extend(site):
    """From now on; what is injected ends with `remove()`."""
    return site.proxy.inject(error("AccessDenied", 403), "ChangeMessageVisibilityBatch")


def cannot_come_back(site):
    """From now on the worker receives nothing."""
    return site.proxy.inject(error("InternalError", 500), "ReceiveMessage")


def send(site, task, *args):
    return site.app.send_task(f"leases.{task}", args)


def start_and_lose(site, task, *args, **options):
    """A worker that is to lose the message of what it runs, the result, and the faults that see to it."""
    unextended = cannot_extend(site)
    result = send(site, task, "a", *args)
    worker = start(site, concurrency=1, **options)
    site.diary.wait_for("started")
    return worker, result, [unextended, cannot_come_back(site)]


@pytest.mark.parametrize("pool", POOLS)
def test_a_task_that_sees_the_shutdown_begin_gives_its_message_back(make_site, pool, reliability):
    site = make_site(visibility_timeout=60, wait_time_seconds=1)
    send(site, "cooperative", "a", 60)
    worker = start(site, pool=pool, concurrency=1)
    site.diary.wait_for("started")
    asked = time.monotonic()
    worker.terminate()
    seconds = site.diary.wait_for("saved", timeout=20)[0]["monotonic"] - asked
    assert worker.wait_exit(20) == 0
    assert "orphaned" not in worker.log
    assert site.counts() == (1, 0)
    (entry,) = site.diary.entries("started")
    assert not entry["stopping"]
    start(site, pool=pool, concurrency=1)
    again = site.diary.wait_for("started", 2)[1]
    assert not again["stopping"]
    reliability(
        "SIGTERM: the task stops itself", "it sees `stopping`", ["a"], ended="saved", runs=2, seconds=seconds
    )


@pytest.mark.parametrize("pool", POOLS)
def test_a_task_sees_its_lease_renewed(make_site, pool):
    site = make_site(visibility_timeout=6, heartbeat_interval=5)
    send(site, "watching", "a", 8)
    start(site, pool=pool)
    (done,) = site.diary.wait_for("done")
    (started,) = site.diary.entries("started")
    assert 1 < started["remaining"] <= 6
    assert 0 < done["least"] <= 5.5
    assert site.diary.count("lost") == 0
    assert site.diary.count("started") == 1


@pytest.mark.parametrize("pool", POOLS)
def test_without_heartbeat_a_task_can_extend_its_lease_itself(make_site, pool):
    site = make_site(visibility_timeout=5, heartbeat_interval=0)
    send(site, "extending", "a", 20, 8)
    workers = [start(site, pool=pool, concurrency=1) for _ in range(2)]
    (extended,) = site.diary.wait_for("extended")
    (done,) = site.diary.wait_for("done")
    assert 15 < extended["remaining"] <= 20
    assert not done["lost"]
    assert site.changes() == [20]
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert site.diary.count("started") == 1
    assert all(worker.running for worker in workers)


@pytest.mark.parametrize("pool", POOLS)
def test_a_task_can_extend_its_lease_while_the_worker_drains(make_site, pool):
    site = make_site(visibility_timeout=30, wait_time_seconds=1, heartbeat_interval=0)
    send(site, "extending_in_the_shutdown", "a", 90)
    worker = start(site, pool=pool, concurrency=1)
    site.diary.wait_for("started")
    worker.terminate()
    (extended,) = site.diary.wait_for("extended", timeout=15)
    (asked,) = site.diary.entries("asks")
    assert extended["monotonic"] - asked["monotonic"] < 9
    assert 80 < extended["remaining"] <= 90
    assert site.changes() == [90]
    assert worker.wait_exit(20) == 0
    assert site.diary.count("done") == 1
    assert site.counts() == (0, 0)


def test_a_longer_lease_is_kept_by_the_heartbeat_and_one_too_long_refused_with_the_bound(make_site):
    site = make_site(visibility_timeout=7, heartbeat_interval=3)
    send(site, "extending", "a", 8, 9)
    send(site, "extending", "b", 43_201, 0)
    start(site)
    (done,) = site.diary.wait_for("done", key="a")
    assert site.changes()[0] == 8
    assert not done["lost"]
    assert site.diary.count("started", key="a") == 1
    (refused,) = site.diary.wait_for("not extended", key="b")
    assert "expected 0 to 43200 seconds (SQS's 12 hours), got 43201" in refused["error"]


@pytest.mark.parametrize("pool", POOLS)
def test_a_lost_lease_is_told_to_the_task_by_a_signal_and_in_the_log(make_site, pool, reliability):
    site = make_site(visibility_timeout=6, wait_time_seconds=1)
    worker, *_ = start_and_lose(site, "too_late", pool=pool)
    site.diary.wait_for("lost")
    (refused,) = site.diary.wait_for("refused")
    assert refused["error"] == "the message's visibility has lapsed: another worker may have it"
    (signal,) = site.diary.wait_for("signal")
    assert signal["sender"] == "leases.too_late"
    assert signal["pid"] == worker.pid
    assert "its visibility timeout ran out before it could be extended: " in signal["reason"]
    worker.wait_for_log("message lost: another worker may run it too")
    site.diary.wait_for("done")
    reliability("lease lost", "no extension allowed; the task is told, and goes on", ["a"])


@pytest.mark.parametrize("pool", POOLS)
def test_a_lost_message_that_comes_back_is_not_run_beside_its_first_run(make_site, pool, reliability):
    site = make_site(visibility_timeout=5, heartbeat_interval=4)
    fault = cannot_extend(site)
    send(site, "until_lost", "a", 6)
    worker = start(site, pool=pool, concurrency=2)
    site.diary.wait_for("lost")
    if pool != "solo":  # which holds no more than it runs
        worker.wait_for_log("message came back while held here, and is not run twice")
    fault.remove()
    (done,) = site.diary.wait_for("done")
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert site.diary.count("started") == 1
    assert pool == "solo" or not done["lost"]
    reliability("lease lost, the message comes back here", "no extension allowed, 5 s and more", ["a"])


def test_a_message_that_comes_back_while_it_waits_for_the_main_thread_is_run_once(make_site, reliability):
    site = make_site({"worker_prefetch_multiplier": 0}, visibility_timeout=3)  # no limit
    fault = cannot_extend(site)
    send(site, "cooperative", "first", 8)
    send(site, "watching", "second", 0)
    worker = start(site, pool="solo")
    worker.wait_for_log("message came back while held here, and is not run twice")
    fault.remove()
    site.diary.wait_for("done", 2)
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert [entry["key"] for entry in site.diary.entries("started")] == ["first", "second"]
    told = "no extension allowed; it waits for the main thread"
    reliability("lease lost, the message comes back here", told, ["first", "second"])


def deleted_handles(calls):
    deletes = [call.request["Entries"] for call in calls if call.action == "DeleteMessageBatch"]
    return {entry["ReceiptHandle"] for entries in deletes for entry in entries}


def test_a_finished_message_that_comes_back_is_deleted_with_its_new_handle(make_site, reliability):
    site = make_site(visibility_timeout=2)
    fault = site.proxy.inject(error("InternalError", 500), "DeleteMessageBatch")
    send(site, "watching", "a", 0)
    worker = start(site)
    site.diary.wait_for("done")
    worker.wait_for_log("message came back though finished here, and is deleted")
    fault.remove()
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    site.proxy.wait_for(lambda calls: len(deleted_handles(calls)) >= 2)
    assert site.diary.count("started") == 1
    reliability("a finished message comes back", "no delete for a lease of 2 s and more", ["a"])


@pytest.mark.parametrize("slow_backend", [False, True], ids=["", "the result backend is slow"])
@pytest.mark.parametrize("pool", CAN_END_A_RUN)
def test_a_run_is_ended_when_its_lease_is_lost_if_the_task_wants_that(
    make_site, pool, slow_backend, tmp_path, reliability
):
    slow = {"result_backend": f"support.slow_results:SlowBackend+file://{tmp_path / 'results'}"}
    settings = slow if slow_backend else {}
    site = make_site(settings, visibility_timeout=6, heartbeat_interval=5, wait_time_seconds=1)
    worker, result, faults = start_and_lose(site, "ended_when_lost", 8, pool=pool)
    worker.wait_for_log("is ended: its message is lost")
    if slow_backend:
        time.sleep(3)  # Celery, which has heard of it, writes down what it makes of it
    for fault in faults:
        fault.remove()
    second = site.diary.wait_for("started", 2)[1]
    (done,) = site.diary.wait_for("done")
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert site.diary.count("started") == 2
    assert site.diary.count("done") == 1
    assert done["monotonic"] - second["monotonic"] >= 8, "it is not the first run's end"
    assert result.state == "SUCCESS"
    assert worker.running
    reliability("lease lost, `when_lost='terminate'`", "no extension allowed; the run is ended", ["a"])


def test_what_was_settled_while_its_extension_was_in_flight_ends_no_other_run(make_site):
    site = make_site(visibility_timeout=10, heartbeat_interval=8, wait_time_seconds=1)
    answer = threading.Event()
    site.proxy.inject(hold_request(answer), "ChangeMessageVisibilityBatch", times=1)
    site.proxy.inject(fail_entries("ReceiptHandleIsInvalid"), "ChangeMessageVisibilityBatch", times=1)
    send(site, "ended_when_lost", "first", 4)
    worker = start(site, concurrency=1)
    site.diary.wait_for("started", key="first")
    site.proxy.wait_for(lambda _: site.proxy.in_flight("ChangeMessageVisibilityBatch"))
    send(site, "ended_when_lost", "second", 4)
    site.diary.wait_for("started", key="second")  # in the process that ran the first
    answer.set()
    site.diary.wait_for("done", key="second")
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert [entry["key"] for entry in site.diary.entries("started")] == ["first", "second"]
    assert "is ended" not in worker.log


def test_a_run_that_cannot_be_ended_goes_on_and_that_is_told(make_site, reliability):
    site = make_site(visibility_timeout=3, wait_time_seconds=1, when_lost="terminate")
    worker, *_ = start_and_lose(site, "until_lost", 1, pool="threads")
    worker.wait_for_log("cannot be ended: its pool has no way to")
    site.diary.wait_for("done")
    reliability("lease lost, the run cannot be ended", "no extension allowed; it goes on", ["a"])


def test_leases_are_kept_apart_when_children_are_replaced_after_every_task(make_site):
    site = make_site(visibility_timeout=5, heartbeat_interval=4)
    for key in range(6):
        send(site, "watching", key, 6)
    start(site, concurrency=3, extra_args=["--max-tasks-per-child", "1"])
    site.diary.wait_for("done", 6)
    assert site.diary.count("lost") == 0
    assert site.diary.count("started") == 6
    assert site.diary.count("signal") == 0


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_message_whose_lease_lapsed_while_its_receiver_was_stopped_is_not_begun(
    make_site, pool, reliability
):
    site = make_site(visibility_timeout=6, wait_time_seconds=20)
    worker = site.start(pool=pool, concurrency=1)
    site.proxy.wait_for(lambda _: site.proxy.in_flight("ReceiveMessage"))
    worker.signal_main(signal.SIGSTOP)
    site.send("quick", "a")
    site.proxy.wait_for(lambda _: site.brought())  # the answer waits in the worker's socket
    (another,) = site.sqs.receive_message(QueueUrl=site.url, WaitTimeSeconds=20)["Messages"]
    worker.signal_main(signal.SIGCONT)
    site.begin("b")
    assert site.diary.count("started", key="a") == 0
    site.sqs.change_message_visibility(
        QueueUrl=site.url, ReceiptHandle=another["ReceiptHandle"], VisibilityTimeout=0
    )
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert [site.diary.count("started", key=key) for key in "ab"] == [1, 1]
    told = "SIGSTOP, or `docker pause`, beyond the lease of what its poll brings; another worker has it"
    reliability("a worker is stopped", told, ["a", "b"], ended="started")

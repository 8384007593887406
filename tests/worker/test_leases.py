"""What a worker holds stays hidden, its task knows of the lease, and what happens when that is lost."""

import signal
import time

import pytest
from support.faults import error
from support.processes import SOON, wait_until

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
    seconds = site.diary.wait_for("saved")[0]["monotonic"] - asked
    assert worker.wait_exit() == 0
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
def test_without_heartbeat_a_task_can_extend_its_lease_itself(make_site, pool):
    site = make_site(visibility_timeout=8, heartbeat_interval=0)
    send(site, "extending", "a", 30, 12)
    workers = [start(site, pool=pool, concurrency=1) for _ in range(2)]
    (extended,) = site.diary.wait_for("extended")
    (done,) = site.diary.wait_for("done")
    assert 20 < extended["remaining"] <= 30
    assert not done["lost"]
    assert site.changes() == [30]
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
    (extended,) = site.diary.wait_for("extended")
    assert 80 < extended["remaining"] <= 90
    assert site.changes() == [90]
    assert worker.wait_exit() == 0
    assert site.diary.count("done") == 1
    assert site.counts() == (0, 0)


@pytest.mark.parametrize("pool", POOLS)
def test_a_lost_lease_is_told_to_the_task_by_a_signal_and_in_the_log(make_site, pool, reliability):
    site = make_site(visibility_timeout=8, wait_time_seconds=1)
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


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_run_that_has_lost_its_message_leaves_the_state_of_the_run_after_it(make_site, pool, tmp_path):
    one_by_one = {"worker_prefetch_multiplier": 1}  # so that the message comes to the other worker
    site = make_site(one_by_one, visibility_timeout=4, heartbeat_interval=3, wait_time_seconds=1)
    cannot_extend(site)
    workers = [start(site, pool=pool, concurrency=1, ready=False) for _ in range(2)]
    for worker in workers:
        worker.wait_ready()
    told = tmp_path / "there"
    result = site.app.send_task("leases.failing_late", (str(told),))
    site.diary.wait_for("failing", retries=1)
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    told.touch()
    wait_until(
        lambda: any("failed at attempt 1 of 2" in each.log for each in workers), SOON, "the first run's end"
    )
    assert site.app.AsyncResult(result.id).state == "FAILURE"
    assert site.diary.count("failing") == 2


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
    slow = {"result_backend": f"support.result_backends:SlowBackend+file://{tmp_path / 'results'}"}
    settings = slow if slow_backend else {}
    site = make_site(settings, visibility_timeout=8, heartbeat_interval=6, wait_time_seconds=1)
    worker, result, faults = start_and_lose(site, "ended_when_lost", 14, pool=pool)
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
    assert done["monotonic"] - second["monotonic"] >= 14, "it is not the first run's end"
    assert result.state == "SUCCESS"
    assert worker.running
    reliability("lease lost, `when_lost='terminate'`", "no extension allowed; the run is ended", ["a"])


def test_leases_are_kept_apart_when_children_are_replaced_after_every_task(make_site):
    site = make_site(visibility_timeout=8, heartbeat_interval=6)
    for key in range(6):
        send(site, "watching", key, 10)
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


@pytest.mark.parametrize("pool", POOLS)
def test_tasks_twice_as_long_as_their_lease_see_it_renewed_and_run_once_with_two_workers(make_site, pool):
    site = make_site(visibility_timeout=8, heartbeat_interval=6)
    tasks = 2 if pool == "solo" else 4
    for key in range(tasks):
        send(site, "watching", key, 18)
    for number in range(2):
        start(site, pool=pool, concurrency=2, prefetch_multiplier=1, name=f"worker{number}")
    site.diary.wait_for("done", tasks)
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert site.diary.count("started") == tasks
    assert site.diary.count("lost") == 0
    assert all(1 < entry["remaining"] <= 8 for entry in site.diary.entries("started"))
    assert all(0 < entry["least"] <= 7 for entry in site.diary.entries("done"))


def test_once_the_main_thread_stands_still_for_good_others_get_what_has_not_begun(make_site):
    """As with a lock that a killed process of billiard's held."""
    site = make_site(visibility_timeout=8, heartbeat_interval=6)
    first = site.start("standing", name="first", concurrency=2)  # so that it receives beside a run
    site.app.send_task("standing.sleep", ("runs", 12))
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

"""However a run, a child or a whole worker ends: the message comes back, and a crash loop has an end."""

import os
import signal
import time

import celery
import psutil
import pytest
from support.processes import SOON, wait_until

from celery_sqs_visibility.delivery.settle.dead_letters import described

ENDS_THE_PROCESS = ["os._exit", "SIGKILL"]
EXITS = ["SystemExit", "KeyboardInterrupt", "GeneratorExit"]
ERRORS = ["MemoryError", "RecursionError"]
KINDS = {
    "a run ends its child": ENDS_THE_PROCESS,
    "a run exits": EXITS,
    "a run is out of memory, or of stack": ERRORS,
}
WITHOUT_PROCESSES = ["threads", "solo", "gevent", "eventlet"]


def attempts(site, key):
    return [entry["retries"] for entry in site.diary.entries("started", key=key)]


@pytest.mark.parametrize(
    ("pool", "ways"),
    [("prefork", ENDS_THE_PROCESS + EXITS + ERRORS)] + [(pool, EXITS + ERRORS) for pool in WITHOUT_PROCESSES],
)
def test_whatever_ends_a_run_is_an_error_like_any_other(make_site, pool, ways, reliability):
    site = make_site(visibility_timeout=600)
    worker = site.start(pool=pool)
    results = {way: site.send("crashing", way) for way in ways}
    for way in ways:
        site.diary.wait_for("done", key=way)
        assert attempts(site, way) == [0, 1], way
        (gap,) = site.gaps(way)
        assert gap >= 1, way
    for result in results.values():
        assert result.get(timeout=SOON) is None
    assert site.changes() == [1] * len(ways)
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert worker.running
    for fault, its_ways in KINDS.items():
        if sent := [way for way in ways if way in its_ways]:
            gap = max(site.gaps(way)[0] for way in sent)
            reliability(fault, f"{', '.join(its_ways)}; comes back in 1 s", sent, seconds=gap)


@pytest.mark.own_pool
@pytest.mark.parametrize("way", ["os._exit", "SystemExit", "MemoryError"])
def test_a_crash_loop_ends_at_the_last_attempt_in_the_dead_letters(make_site, way, reliability):
    site = make_site(visibility_timeout=6, heartbeat_interval=5, wait_time_seconds=1)
    dead = site.create_queue_with_dead_letters(receives=10)
    result = site.send("crashing", way, 1000)
    worker = site.start(pool="prefork")
    site.diary.wait_for("started", 3, key=way)
    site.proxy.wait_for(lambda _: site.counts(dead) == (1, 0))
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert result.state == "FAILURE"
    assert attempts(site, way) == [0, 1, 2]
    (letter,) = site.sqs.receive_message(QueueUrl=dead, MessageAttributeNames=["All"])["Messages"]
    assert described(letter["MessageAttributes"])["reason"] == "failed at its last attempt"
    assert worker.running
    told = "os._exit, SystemExit or MemoryError at each run; `max_retries=2`"
    reliability("crash loop", told, [way], kept=sum(site.counts(dead)))


@pytest.mark.own_pool
def test_a_crash_loop_ends_at_the_queues_max_receive_count_whatever_the_task_allows(make_site, reliability):
    site = make_site()
    dead = site.create_queue_with_dead_letters(receives=2)
    result = site.send("crashing", "os._exit", 1000)
    site.start(pool="prefork")
    site.proxy.wait_for(lambda _: site.counts(dead) == (1, 0))
    assert result.state == "FAILURE"
    assert attempts(site, "os._exit") == [0, 1]
    reliability("crash loop", "os._exit; `maxReceiveCount` 2", ["os._exit"], kept=sum(site.counts(dead)))


@pytest.mark.parametrize("pool", WITHOUT_PROCESSES)
def test_a_run_that_ends_its_whole_worker_comes_back_on_another(make_site, pool, reliability):
    site = make_site(visibility_timeout=5, heartbeat_interval=4, wait_time_seconds=1)
    doomed = site.start(pool=pool)
    site.send("crashing", "os._exit")
    assert doomed.wait_exit() == 1
    site.start(pool=pool)
    site.diary.wait_for("done", key="os._exit")
    assert attempts(site, "os._exit") == [0, 1]
    first, second = site.diary.entries("started", key="os._exit")
    assert second["time"] - first["sqs"]["first_receive_time"] >= 5
    (gap,) = site.gaps("os._exit")
    reliability("a run ends its worker", "a lease of 5 s; another worker", ["os._exit"], seconds=gap)


@pytest.mark.own_pool
def test_a_stock_task_whose_child_is_lost_keeps_stock_behaviour(make_site):
    site = make_site(visibility_timeout=60, error_visibility_timeout=1)
    worker = site.start(pool="prefork")
    failed = [site.send("stock_crashing", way) for way in ENDS_THE_PROCESS + EXITS]
    if celery.VERSION[:2] < (5, 7):  # its backends cannot store what is no Exception
        del failed[len(ENDS_THE_PROCESS) :]
    site.send("stock_crashing_once", "os._exit")
    site.diary.wait_for("done", key="os._exit")
    site.proxy.wait_for(lambda _: [result.state for result in failed] == ["FAILURE"] * len(failed))
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    for way in ENDS_THE_PROCESS[1:] + EXITS:
        assert site.diary.count("started", key=way) == 1, way
    assert site.diary.count("started", key="os._exit") == 3
    assert worker.running


@pytest.mark.own_pool
def test_a_child_killed_while_it_runs_a_task_is_an_error_and_one_killed_while_idle_is_none(
    make_site, reliability
):
    site = make_site(visibility_timeout=60, error_visibility_timeout=1)
    worker = site.start(pool="prefork", concurrency=2)
    site.send("slow", "a", 5)
    (start,) = site.diary.wait_for("started", key="a")
    for child in worker.children():
        os.kill(child, signal.SIGKILL)
    killed = time.monotonic()
    site.diary.wait_for("done", key="a")
    seconds = site.diary.entries("started", key="a")[1]["monotonic"] - killed
    assert attempts(site, "a") == [0, 1]
    assert site.changes() == [1]
    for key in range(4):
        site.send("quick", key)
    site.diary.wait_for("started", 4, task="work.quick")
    assert start["pid"] not in worker.children()
    assert len(worker.children()) == 2
    reliability("children killed", "SIGKILL, one idle and one at work", ["a"], seconds=seconds)


@pytest.mark.own_pool
def test_a_killed_main_process_takes_its_children_along_and_its_message_runs_elsewhere(
    make_site, reliability
):
    site = make_site(visibility_timeout=8, heartbeat_interval=6, wait_time_seconds=1)
    doomed = site.start(pool="prefork")
    site.send("slow", "a", 20)
    site.diary.wait_for("started", key="a")
    children = [psutil.Process(child) for child in doomed.children()]
    os.kill(doomed.pid, signal.SIGKILL)
    killed = time.monotonic()
    wait_until(lambda: not any(alive(child) for child in children), SOON, "the children to end")
    site.start(pool="prefork")
    seconds = site.diary.wait_for("started", 2, key="a")[1]["monotonic"] - killed
    site.diary.wait_for("done", key="a")
    assert attempts(site, "a") == [0, 1]
    reliability("worker killed", "SIGKILL; a lease of 8 s; another worker", ["a"], seconds=seconds)


def alive(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE

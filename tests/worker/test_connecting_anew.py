"""Celery's event loop has a connection error: what ran then is settled when it ends."""

import pytest
from support.processes import SOON, wait_until

pytestmark = [
    pytest.mark.prefork_only("other pools have no event loop"),
    pytest.mark.timeout(180),
]

CANCEL = {"worker_cancel_long_running_tasks_on_connection_loss": True}


def lose_connection(site, **options):
    """A worker with a run of five seconds, and another that it had just received, has lost its connection."""
    worker = site.start("disconnecting", concurrency=1, prefetch_multiplier=4, **options)
    site.send("quick", "before")  # so that it holds more than it runs
    site.diary.wait_for("started", key="before")
    site.send("slow", "runs", 5)
    site.diary.wait_for("started", key="runs")
    site.send("slow", "trouble", 0, countdown=1)
    worker.wait_for_log("onnection to broker lost")
    return worker


def test_a_run_that_outlives_the_connection_is_settled_and_its_slot_is_free(make_site):
    site = make_site(visibility_timeout=30, wait_time_seconds=1)
    lose_connection(site)
    site.diary.wait_for("done", key="runs")
    site.diary.wait_for("done", key="trouble")
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert site.diary.count("started", key="runs") == 1
    site.begin("after")


def test_a_run_that_is_cancelled_with_the_connection_comes_back(make_site):
    site = make_site(CANCEL, visibility_timeout=120, wait_time_seconds=1)
    lose_connection(site)
    site.diary.wait_for("started", 2, key="runs")
    site.diary.wait_for("done", key="runs")
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))


def test_a_full_worker_that_connects_anew_leaves_to_others_what_it_cannot_run(make_site):
    site = make_site(visibility_timeout=30, wait_time_seconds=1)
    first = site.start("disconnecting", name="first", concurrency=1, prefetch_multiplier=1)
    site.send("slow", "trouble", 20)
    first.wait_for_log("onnection to broker lost")
    wait_until(lambda: first.log.count("Connected to") == 2, SOON, lambda: first.log)
    site.start(name="second", concurrency=1, prefetch_multiplier=1)
    for key in range(12):
        site.send("quick", key)
    site.diary.wait_for("started", 13)
    assert site.diary.count("done", key="trouble") == 0, "nothing has waited for the run that the first has"
    site.diary.wait_for("done", key="trouble")
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert site.diary.count("started", key="trouble") == 1


@pytest.mark.parametrize("when", ["ended", "replaced"])
def test_what_a_process_was_sent_that_has_run_its_last_task_runs_once(make_site, when):
    site = make_site({"worker_max_tasks_per_child": 1}, visibility_timeout=30, wait_time_seconds=1)
    worker = site.start("disconnecting", concurrency=1, env={"SLOW_PROCESSES": "yes"})
    site.begin("before")
    site.send("quick", when)
    worker.wait_for_log("onnection to broker lost")
    site.diary.wait_for("started", key=when)
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert site.diary.count("started", key=when) == 1


def test_a_process_that_still_runs_is_sent_nothing(make_site):
    site = make_site(visibility_timeout=30, wait_time_seconds=1)
    worker = site.start("disconnecting", concurrency=3)
    site.send("slow", "runs", 20)
    site.diary.wait_for("started", key="runs")
    site.send("quick", "trouble")
    worker.wait_for_log("onnection to broker lost")
    for key in range(6):  # as many as there are free processes at a time
        site.send("slow", key, 1)
    for key in range(6):
        site.diary.wait_for("started", key=key)
    assert not site.diary.count("done", key="runs")

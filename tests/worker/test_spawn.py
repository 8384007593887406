"""A pool whose children are fresh interpreters, and inherit nothing: Celery's `worker_pool_start_method`."""

import pytest
from celery.app.defaults import NAMESPACES

pytestmark = [
    pytest.mark.own_pool,
    pytest.mark.skipif(
        "pool_start_method" not in NAMESPACES["worker"], reason="Celery 5.7 is the first with spawn"
    ),
]
SPAWN = {"worker_pool_start_method": "spawn"}


def start(site, module="work", **options):
    return site.start(module, pool="prefork", concurrency=1, **options)


def test_tasks_run_fail_and_come_back(make_site):
    site = make_site(SPAWN, visibility_timeout=30, wait_time_seconds=1)
    site.send("quick", "a")
    site.send("number", "b")
    start(site)
    site.diary.wait_for("done", key="b")
    assert [entry["retries"] for entry in site.diary.entries("started", key="b")] == [0, 1]
    assert site.changes() == [2]
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))


def test_a_task_sees_and_extends_its_lease(make_site):
    site = make_site(SPAWN, visibility_timeout=5, wait_time_seconds=1, heartbeat_interval=0)
    site.app.send_task("leases.watching", ["a", 0])
    site.app.send_task("leases.extending", ["b", 20, 8])
    start(site, "leases")
    (watched,) = site.diary.wait_for("started", key="a")
    assert 0 < watched["remaining"] <= 5
    (extended,) = site.diary.wait_for("extended", key="b")
    assert 15 < extended["remaining"] <= 20
    (done,) = site.diary.wait_for("done", key="b")
    assert not done["lost"]
    assert site.changes() == [20]


def test_a_task_sees_the_shutdown_begin(make_site):
    site = make_site(SPAWN, visibility_timeout=60, wait_time_seconds=1)
    site.app.send_task("leases.cooperative", ["a", 60])
    worker = start(site, "leases")
    site.diary.wait_for("started")
    worker.terminate()
    site.diary.wait_for("saved")
    assert worker.wait_exit() == 0
    assert site.counts() == (1, 0)

"""Messages that a run leaves behind come back, and end once."""

from __future__ import annotations

import pytest
from support.faults import error


def test_a_stock_task_that_is_not_acknowledged_on_failure_comes_back(make_site, reliability):
    site = make_site(visibility_timeout=3)
    site.start()
    site.send("stock_failing", "a")
    site.diary.wait_for("done", key="a")
    assert site.diary.count("started", key="a") == 2
    reliability("`acks_on_failure_or_timeout=False`", "a stock task fails once", ["a"], runs=2)


def test_what_failed_for_good_is_kept_where_the_redrive_policy_cannot_be_read(make_site, reliability):
    site = make_site(visibility_timeout=3)
    site.proxy.inject(error("AccessDenied", 403), "GetQueueAttributes")
    worker = site.start()
    errback = site.app.signature("work.on_error")
    result = site.send("hopeless", "a", link_error=errback)
    site.diary.wait_for("errback")
    # It comes back, as SQS's own redrive policy wants it to; but it is neither run nor failed again.
    site.proxy.wait_for(lambda _: len(site.brought()) >= 5)
    assert result.state == "FAILURE"
    assert site.diary.count("started", key="a") == 3
    assert site.diary.count("errback") == 1
    assert sum(site.counts()) == 1
    assert worker.log.count("allow sqs:GetQueueAttributes") == 1
    reliability("no `sqs:GetQueueAttributes`", "a task fails for good", ["a"], kept=site.kept)


@pytest.mark.own_pool
def test_a_task_that_kills_every_worker_ends_as_a_failure(make_site):
    site = make_site(visibility_timeout=2, heartbeat_interval=1.5, wait_time_seconds=1)
    result = site.send("hopeless_killer", "a")
    # max_retries=0; three more receives are forgiven, because they might have been releases.
    for attempt in range(4):
        worker = site.start(pool="solo")
        site.diary.wait_for("started", attempt + 1, key="a")
        worker.wait_exit()
    site.start(pool="solo")
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert result.state == "FAILURE"
    assert site.diary.count("started", key="a") == 4


@pytest.mark.parametrize(("deploys", "count"), [("two", 2), ("eight", 8)])
def test_what_was_only_released_runs_even_if_it_may_not_be_retried(make_site, deploys, count, reliability):
    site = make_site(visibility_timeout=60)
    site.create_queue()
    result = site.send("once", "a")
    for _ in range(count):
        site.give_back()
    site.start()
    (entry,) = site.diary.wait_for("started", key="a")
    assert entry["retries"] == count
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert result.state == "SUCCESS"
    reliability(f"{deploys} deploys give a message back", "`max_retries=0`", ["a"], ended="started")


@pytest.mark.parametrize("pool", ["threads", "solo", "gevent"])
def test_an_exit_in_a_stock_task_ends_no_worker_that_has_no_children(make_site, pool):
    site = make_site()
    worker = site.start(pool=pool, concurrency=1, prefetch_multiplier=1)
    site.send("stock_exiting", "stock")
    site.diary.wait_for("started", key="stock")
    site.begin("after")
    assert worker.running


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_what_celery_leaves_unacknowledged_comes_back(make_site, pool, reliability):
    site = make_site(visibility_timeout=3)
    worker = site.start(pool=pool)
    site.send("stock_out_of_memory", "a")
    site.diary.wait_for("done", key="a")
    assert worker.running
    assert "comes back: it ran out of memory" in worker.log
    reliability("a stock task is out of memory", "once", ["a"], runs=2)


@pytest.mark.own_pool
def test_a_consumer_in_a_task_leaves_the_workers_alone(make_site):
    site = make_site(wait_time_seconds=1)
    worker = site.start(pool="threads")
    site.send("with_a_queue_of_its_own", "a", f"{site.queue}-own")
    site.diary.wait_for("done", key="a")
    site.begin("after")
    assert worker.running

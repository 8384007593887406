"""Runs that hang are ended, progress is told, and a long task goes on with another message."""

import pytest
from celery import chain, group
from celery.app.defaults import NAMESPACES
from support.faults import error
from support.processes import SOON

#: The `inactivity_timeout` of the tasks.
LIMIT_SECONDS = 1.5
SPAWN = "prefork, spawned"
HAS_SPAWN = "pool_start_method" in NAMESPACES["worker"]


def signature(site, task, *args):
    return site.app.signature(f"long_runs.{task}", args)


def all_gone(site):
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))


@pytest.mark.parametrize(
    "pool",
    [
        "prefork",
        "gevent",
        pytest.param(SPAWN, marks=pytest.mark.skipif(not HAS_SPAWN, reason="Celery 5.7's")),
    ],
)
def test_a_run_that_hangs_is_ended_and_one_that_shows_life_is_not(make_site, pool):
    settings = {"worker_pool_start_method": "spawn"} if pool == SPAWN else {}
    site = make_site(settings, visibility_timeout=30, wait_time_seconds=1)
    lively = signature(site, "tracked", "lively", 6).delay()
    signature(site, "hanging", "hung").delay()
    worker = site.start("long_runs", pool="prefork" if pool == SPAWN else pool, concurrency=2)
    site.proxy.wait_for(lambda _: lively.state == "PROGRESS")
    assert lively.info["total"] == 6
    site.diary.wait_for("started", 2, key="hung")
    (silent,) = site.diary.entries("silent")
    again = site.diary.entries("started", key="hung")[1]
    ended = again["monotonic"] - 1 - silent["monotonic"]  # by its error visibility timeout
    assert ended >= LIMIT_SECONDS
    site.diary.wait_for("done", 2)
    all_gone(site)
    assert [site.diary.count("started", key=key) for key in ("lively", "hung")] == [1, 2]
    assert "failed at attempt 1 of 4 and comes back in 1 s: InactivityError(" in worker.log
    assert lively.state == "SUCCESS"


def test_where_the_pool_cannot_end_a_run_its_message_is_held_until_it_hears_of_it(make_site):
    site = make_site(visibility_timeout=5, wait_time_seconds=1)
    signature(site, "hanging", "hung").delay()
    worker = site.start("long_runs", pool="threads", concurrency=2)
    worker.wait_for_log("has shown no life for 1.5 s, and its pool has no way to end it")
    (silent,) = site.diary.entries("silent")
    again = site.diary.wait_for("started", 2)[1]
    assert again["monotonic"] - silent["monotonic"] >= 6, "it hung for 5 s, and comes back in 1 s"
    site.diary.wait_for("done")
    all_gone(site)
    assert worker.log.count("has shown no life") == 1


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_what_follows_a_task_follows_its_last_part(make_site, pool):
    site = make_site(visibility_timeout=30, wait_time_seconds=1)
    site.start("long_runs", pool=pool, concurrency=2)
    header = group(signature(site, "parts", "a"), signature(site, "parts", "b", 1))
    result = chain(header, signature(site, "following", "body")).delay()
    alone = chain(signature(site, "parts", "c"), signature(site, "following", "next")).delay()
    site.diary.wait_for("following", key="body")
    site.diary.wait_for("following", key="next")
    all_gone(site)
    assert [entry["start"] for entry in site.diary.entries("part", key="a")] == [0, 1, 2]
    assert {entry["retries"] for entry in site.diary.entries("part")} == {0}
    assert len({entry["id"] for entry in site.diary.entries("started", key="c")}) == 1
    followed = {entry["key"]: entry["result"] for entry in site.diary.entries("following")}
    assert followed == {"body": [2, 2], "next": 2}
    assert (result.get(timeout=SOON), alone.parent.result) == (None, 2)


def test_the_part_whose_successor_cannot_be_sent_comes_back(make_site):
    site = make_site({"broker_connection_timeout": 1}, visibility_timeout=30, wait_time_seconds=1)
    site.create_queue()
    result = signature(site, "parts", "a", 0, 1).delay()
    refused = site.proxy.inject(error("AccessDenied", 403), "SendMessage")
    worker = site.start("long_runs", concurrency=1)
    worker.wait_for_log("failed at attempt 1 of 4 and comes back in 1 s")
    assert site.kept == 1
    refused.remove()
    site.diary.wait_for("part", start=1)
    all_gone(site)
    tried = [(entry["start"], entry["retries"]) for entry in site.diary.entries("part")]
    assert tried[0] == (0, 0)
    assert tried[-1] == (1, 0), "attempts begin anew"
    assert result.get(timeout=SOON) == 1


def test_in_a_fifo_queue_the_next_part_is_of_the_same_group(make_fifo_site):
    site = make_fifo_site(visibility_timeout=30, wait_time_seconds=1)
    for key in ("a", "b"):
        signature(site, "parts", key, 0, 1).apply_async(MessageGroupId="g")
    site.start("long_runs", concurrency=2)
    site.diary.wait_for("part", 4)
    all_gone(site)
    parts = [(entry["key"], entry["start"]) for entry in site.diary.entries("part")]
    assert parts == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    groups = [
        message["Attributes"]["MessageGroupId"]
        for poll in site.brought()
        for message in poll.response["Messages"]
    ]
    assert set(groups) == {"g"}

"""How much is held: full batches of short tasks, and of long ones what can run."""

from __future__ import annotations

import itertools
import re

import pytest
from support.processes import SOON, wait_until

from celery_sqs_visibility import publish_batch


def test_of_long_tasks_a_second_worker_gets_its_share(make_site):
    site = make_site(visibility_timeout=60)
    workers = [site.start(concurrency=2) for _ in range(2)]  # and Celery's multiplier of 4
    pids = [{worker.pid, *worker.children()} for worker in workers]
    for key in range(40):
        site.send("slow", key, 1)
    done = site.diary.wait_for("done", 40, timeout=60)
    starts = site.diary.entries("started")
    assert {entry["key"] for entry in done} == set(range(40))
    assert len(starts) == 40
    shares = [sum(entry["pid"] in its_pids for entry in starts) for its_pids in pids]
    # Ten seconds' work for four slots; a machine that stalls for a moment is no worker's fault.
    assert min(shares) >= 16
    assert sum(shares) == 40
    assert all(worker.running for worker in workers)


def test_idle_queues_are_polled_long_by_default_and_keep_no_slot_from_a_busy_one(make_site):
    site = make_site()
    idle = [f"{site.queue}-{number}" for number in range(4)]
    site.start(concurrency=4, queues=[site.queue, *idle])
    site.proxy.wait_for(lambda _: len(site.proxy.in_flight("ReceiveMessage")) == 5)
    asked = [poll.request for poll in site.proxy.in_flight("ReceiveMessage")]
    assert {(each["WaitTimeSeconds"], each["VisibilityTimeout"]) for each in asked} == {(20, 30)}
    for key in range(20):
        site.send("slow", key, 1)
    done = site.diary.wait_for("done", 20, timeout=60)
    starts = site.diary.entries("started")
    assert done[-1]["monotonic"] - starts[0]["monotonic"] < 12, "5 s are ideal, one at a time takes 20"


def test_what_waits_for_its_eta_keeps_no_slot_idle(make_site):
    site = make_site(visibility_timeout=60)
    site.start(concurrency=2)
    for key in range(12):
        site.send("quick", key, countdown=40, delay_seconds=0)
    site.proxy.wait_for(lambda _: site.counts() == (0, 12))
    site.begin("now")
    assert site.diary.count("started") == 1


@pytest.mark.parametrize("task", ["slow", "stock_slow"], ids=["acknowledged late", "acknowledged early"])
def test_of_long_tasks_each_is_received_for_a_free_slot_and_at_once_however_seldom_polls_are(make_site, task):
    site = make_site(visibility_timeout=60, polling_interval=30, wait_time_seconds=0)
    for key in range(8):
        site.send(task, key, 1.5)
    site.start(concurrency=2)
    done = [entry["monotonic"] for entry in site.diary.wait_for("done", 8, timeout=60)]
    received = 0
    for call in site.proxy.calls("ReceiveMessage"):
        received += len(call.response.get("Messages", []))
        assert received - sum(at < call.finished for at in done) <= 2
    starts = [entry["monotonic"] for entry in site.diary.entries("started")]
    assert max(after - before for before, after in itertools.pairwise(starts)) < 15


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_of_short_tasks_full_batches_are_received_even_at_a_multiplier_of_one(make_site, pool):
    site = make_site()
    for key in range(400):
        site.send("quick", key)
    site.start(pool=pool, concurrency=2, prefetch_multiplier=1)
    site.diary.wait_for("started", 400, timeout=60)
    brought = [call.response.get("Messages", []) for call in site.proxy.calls("ReceiveMessage")]
    # Not how many in all: to overlapping polls the emulator hands out a message twice now and then.
    assert len({message["MessageId"] for messages in brought for message in messages}) == 400
    assert sum(len(messages) == 10 for messages in brought) >= 30


@pytest.mark.prefork_only("Celery adds and removes processes")
def test_a_pool_that_scales_itself_has_work_to_scale_for(make_site):
    site = make_site(visibility_timeout=60)
    site.start(pool="prefork", extra_args=["--autoscale=4,1"])
    for key in range(8):
        site.send("slow", key, 2)
    done = site.diary.wait_for("done", 8, timeout=30)
    starts = site.diary.entries("started")
    assert len({entry["pid"] for entry in starts}) == 4
    assert done[-1]["monotonic"] - starts[0]["monotonic"] < 14, "and not the 16 s of one process"


@pytest.mark.prefork_only("it has slots that are waited for")
def test_hundreds_that_are_revoked_while_they_wait_cost_nothing(make_site, tmp_path):
    site = make_site({"task_ignore_result": True, "worker_prefetch_multiplier": 0}, visibility_timeout=60)
    worker = site.start("revoking", pool="prefork", concurrency=1)
    site.app.send_task("revoking.until_it_exists", [str(tmp_path / "go on")])
    site.diary.wait_for("started")
    with publish_batch(site.app):
        for key in range(600):
            site.send("quick", key)
    # A busy emulator answers late, and a batch is then sent twice: whoever counts, counts tasks.
    received = re.compile(r"work\.quick\[(.+)\] received")
    wait_until(lambda: len(set(received.findall(worker.log))) == 600, 80, "all to wait for the slot")
    (tmp_path / "go on").touch()
    site.proxy.wait_for(lambda _: site.counts() == (0, 0), timeout=20)
    assert worker.running
    discarded = re.compile(r"Discarding revoked task: work\.quick\[(.+)\]")
    assert len(set(discarded.findall(worker.log))) == 600
    assert site.diary.count("started") == 1


def start_controlled(site, **options):
    """A worker that answers."""
    worker = site.start(**options)
    wait_until(lambda: site.app.control.ping(limit=1), SOON, "the worker to answer")
    return worker


def tell(site, command, **arguments):
    return str(site.app.control.broadcast(command, arguments=arguments, reply=True, limit=1, timeout=SOON))


def hidden(site):
    return site.counts()[1]


def held_while(site, runs):
    """Send far more long tasks than run at once; the messages that are held once so many run."""
    before = site.diary.count("started", task="work.slow")
    for key in range(40):
        site.send("slow", key, 12)
    site.diary.wait_for("started", before + runs, timeout=30, task="work.slow")
    site.proxy.wait_for(lambda _: not site.proxy.in_flight("ReceiveMessage", queue=site.queue))
    return hidden(site)


CONTROLLED = {"visibility_timeout": 60, "remote_control": True, "shutdown_timeout": 2}


@pytest.mark.prefork_only("Celery adds and removes processes")
def test_a_pool_whose_scale_is_changed_holds_what_it_runs(make_site):
    site = make_site(**CONTROLLED)
    start_controlled(site, pool="prefork", extra_args=["--autoscale=6,1"])
    assert "autoscale" in tell(site, "autoscale", max=8, min=1)
    assert held_while(site, runs=8) == 8


@pytest.mark.own_pool
def test_a_pool_of_greenlets_that_has_grown_holds_what_it_runs(make_site):
    site = make_site(**CONTROLLED)
    start_controlled(site, pool="gevent", concurrency=4)
    site.send("slow", "before", 12)
    site.diary.wait_for("started", key="before")
    assert "grow" in tell(site, "pool_grow", n=2)
    assert held_while(site, runs=5) == 6, "one runs before"


def test_what_waits_for_its_eta_keeps_no_slot_idle_though_celery_has_a_limit(make_site):
    site = make_site({"worker_eta_task_limit": 4}, visibility_timeout=60)
    site.start(concurrency=2)
    site.send("slow", "long", 30)  # or Celery is taken to collect messages
    site.diary.wait_for("started")
    for key in range(4):
        site.send("quick", key, countdown=25, delay_seconds=0)
    site.proxy.wait_for(lambda _: hidden(site) > 1)
    site.send("quick", "now")
    site.diary.wait_for("started", key="now", timeout=10)
    assert site.diary.count("started") == 2


@pytest.mark.prefork_only("other pools have no event loop that may lose its connection")
@pytest.mark.parametrize("end", ["started", "revoked", "given back", "connection lost"])
def test_what_has_waited_for_its_eta_makes_no_room_afterwards(make_site, end):
    site = make_site(**CONTROLLED)
    worker = start_controlled(site, module="disconnecting", pool="prefork", concurrency=2)
    countdown = 8 if end in {"started", "revoked"} else 50
    options = {"countdown": countdown, "delay_seconds": 0}
    ids = [site.send("slow", f"waits {number}", 1.5, **options).id for number in range(5)]
    site.proxy.wait_for(lambda _: hidden(site) == 5)
    if end == "revoked":
        site.app.control.revoke(ids)
    elif end == "given back":
        tell(site, "sqs_pause", queue=site.queue)
        site.proxy.wait_for(lambda _: hidden(site) == 0)
        tell(site, "sqs_resume", queue=site.queue)
    elif end == "connection lost":
        site.send("slow", "trouble", 1.5)
        worker.wait_for_log("onnection to broker lost")
    # What was given back waits as a copy, which SQS delays.
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert held_while(site, runs=2) == 2
    assert site.diary.count("started", key="waits 0") == (end == "started")

"""How much is held, by few threads and in order: full batches of short tasks; of long ones what can run."""

import itertools
import re
from pathlib import Path

import pytest
from support.processes import SOON, wait_until

from celery_sqs_visibility import publish_batch


def test_of_long_tasks_a_second_worker_gets_its_share(make_site):
    site = make_site(visibility_timeout=60)
    workers = [site.start(concurrency=2) for _ in range(2)]  # and Celery's multiplier of 4
    pids = [{worker.pid, *worker.children()} for worker in workers]
    for key in range(40):
        site.send("slow", key, 1)
    done = site.diary.wait_for("done", 40)
    starts = site.diary.entries("started")
    assert {entry["key"] for entry in done} == set(range(40))
    assert len(starts) == 40
    shares = [sum(entry["pid"] in its_pids for entry in starts) for its_pids in pids]
    # A machine that stalls for a moment is no worker's fault; of short tasks one would hold all.
    assert min(shares) >= 10
    assert sum(shares) == 40
    assert all(worker.running for worker in workers)


@pytest.mark.parametrize("task", ["slow", "stock_slow"], ids=["acknowledged late", "acknowledged early"])
def test_of_long_tasks_each_is_received_for_a_free_slot_and_at_once_however_seldom_polls_are(make_site, task):
    site = make_site(visibility_timeout=60, polling_interval=600, wait_time_seconds=0)
    for key in range(8):
        site.send(task, key, 1.5)
    site.start(concurrency=2)
    done = [entry["monotonic"] for entry in site.diary.wait_for("done", 8)]
    received = 0
    for call in site.proxy.calls("ReceiveMessage"):
        received += len(call.response.get("Messages", []))
        assert received - sum(at < call.finished for at in done) <= 2


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_of_short_tasks_full_batches_are_received_even_at_a_multiplier_of_one(make_site, pool):
    site = make_site()
    for key in range(400):
        site.send("quick", key)
    site.start(pool=pool, concurrency=2, prefetch_multiplier=1)
    site.diary.wait_for("started", 400)
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
    site.diary.wait_for("done", 8)
    assert len({entry["pid"] for entry in site.diary.entries("started")}) == 4


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
    wait_until(lambda: len(set(received.findall(worker.log))) == 600, SOON, "all to wait for the slot")
    (tmp_path / "go on").touch()
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert worker.running
    discarded = re.compile(r"Discarding revoked task: work\.quick\[(.+)\]")
    assert len(set(discarded.findall(worker.log))) == 600
    assert site.diary.count("started") == 1


@pytest.mark.own_pool
def test_an_idle_worker_keeps_no_more_threads_than_it_needs(make_site):
    site = make_site(wait_time_seconds=1)
    for key in range(200):
        site.send("quick", key)
    worker = site.start(pool="prefork", concurrency=2)
    site.diary.wait_for("started", 200)
    # Celery's own; one that polls, settles, extends, watches these, waits for the shutdown, and for probes.
    wait_until(lambda: threads_of(worker) <= 7, SOON, lambda: f"{threads_of(worker)} threads to become 7")


def threads_of(worker):
    return len(list(Path(f"/proc/{worker.pid}/task").iterdir()))


@pytest.mark.own_pool
def test_messages_are_handed_over_in_order(make_site):
    site = make_site(wait_time_seconds=1)
    for key in range(30):
        site.send("quick", key)
    site.start(pool="solo", concurrency=1, prefetch_multiplier=10)
    site.diary.wait_for("started", 30)
    started = [entry["sqs"]["message_id"] for entry in site.diary.entries("started")]
    polls = site.proxy.calls("ReceiveMessage", queue=site.queue)
    places = [
        [started.index(message["MessageId"]) for message in poll.response.get("Messages", [])]
        for poll in polls
    ]
    assert sorted(itertools.chain(*places)) == list(range(30))
    assert all(its_places == sorted(its_places) for its_places in places)  # some polls overlap

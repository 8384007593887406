"""Queues are paused and resumed in real workers, by `celery -A proj sqs`, and the status shows it."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from support.processes import wait_until

from celery_sqs_visibility.operate.commands import sqs as group

SOON = 10
POLL_SECONDS = 1  # of a long poll, which nobody cuts off
WORK_SECONDS = 4


@pytest.fixture
def site(make_site):
    site = make_site(remote_control=True, wait_time_seconds=POLL_SECONDS)
    yield site
    with site.app.connection_for_read() as connection:
        connection.transport.context.end_control()


def sqs(site, *args):
    return CliRunner().invoke(group, args, obj=SimpleNamespace(app=site.app))


def answers(site, *args):
    """The workers' answers to a command, by node."""
    result = sqs(site, *args, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["workers"]


def condition(site):
    """The queue's, in the only worker."""
    (answer,) = answers(site, "status").values()
    return answer["queues"][site.queue]


@pytest.mark.own_pool
@pytest.mark.parametrize("pool", ["prefork", "solo", "gevent"])
def test_nothing_begins_from_a_pause_until_the_resume(site, pool):
    worker = site.start(pool=pool)
    paused = sqs(site, "pause", site.queue)
    assert paused.exit_code == 0, paused.output + worker.log
    assert "paused until it is resumed; 0 running, 0 given back" in paused.output
    assert "start from now on are not paused" in paused.output
    site.send("quick", "a")
    until = time.monotonic() + POLL_SECONDS  # of the poll in flight, which may take it
    assert condition(site)["paused"]
    wait_until(lambda: time.monotonic() >= until and site.counts() == (1, 0), SOON, "it to stay there")
    assert "resumed" in sqs(site, "resume", site.queue).output
    (started,) = site.diary.wait_for("started", key="a")
    assert started["sqs"]["receive_count"] <= 2


def test_what_runs_goes_on_what_waits_goes_back_and_a_pause_for_a_time_ends(site):
    site.start(concurrency=1, prefetch_multiplier=4)
    keys = [f"warm{number}" for number in range(20)]
    for key in keys:  # a worker with short tasks has more than its slots' number
        site.send("quick", key)
    for key in keys:
        site.diary.wait_for("started", key=key)
    site.send("slow", "running", WORK_SECONDS)
    site.diary.wait_for("started", key="running")
    for key in "ab":
        site.send("quick", key)
    site.app.send_task("work.quick", ["later"], countdown=20, delay_seconds=0)
    wait_until(lambda: site.counts() == (0, 4), SOON, "one to run, two to wait for it, one for its ETA")
    (answer,) = answers(site, "pause", site.queue, "--for", "3s").values()
    assert answer["ok"] == {"paused": True, "seconds_left": 3.0, "held": 4, "running": 1}
    wait_until(lambda: site.counts() == (3, 1), 1, lambda: str(site.counts()))
    site.diary.wait_for("done", key="running")
    for key in "ab":
        site.diary.wait_for("started", key=key)
    assert not site.diary.entries("started", key="later")


def test_one_worker_of_two_is_paused_and_an_unknown_queue_has_a_nearest(site):
    first = site.start(ready=False)
    site.start()
    first.wait_ready()
    unknown = sqs(site, "pause", f"{site.queue}x")
    assert unknown.exit_code == 1
    assert f"The nearest is '{site.queue}'" in unknown.output
    node, other = answers(site, "status")
    assert set(answers(site, "pause", site.queue, "-d", node)) == {node}
    site.send("quick", "a")
    site.diary.wait_for("started", key="a")
    shown = answers(site, "status")
    assert shown[node]["queues"][site.queue]["paused"]
    assert not shown[other]["queues"][site.queue]["paused"]


def test_nobody_answers(site):
    result = sqs(site, "pause", site.queue)
    assert result.exit_code == 69
    assert "no worker answered within 1 s" in result.output

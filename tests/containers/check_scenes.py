"""What platforms do to containers, and what becomes of every message; only `make containers` runs this."""

from __future__ import annotations

import os
import time

import pytest
from containers.account import Account

pytestmark = pytest.mark.timeout(420)

#: Of the rolling deploy. Fewer, for a look at a busy machine.
MESSAGES = int(os.environ.get("CONTAINERS_MESSAGES", "5000"))


@pytest.mark.timeout(1200)
def test_a_rolling_deploy_of_all_workers_under_tasks_of_all_kinds(make_fleet, tell):
    fleet = make_fleet(visibility_timeout=30)
    old = fleet.workers("old1", "old2", "old3")
    account = Account(fleet)
    long = account.send("slow", 3, 60)
    early = account.send("stock_early", 100)
    account.send_mix(MESSAGES - 200)
    account.send("slow", MESSAGES - len(account.sent), 2)
    fleet.diary.wait_for("done", MESSAGES // 20, timeout=240)
    begun = time.monotonic()
    for number, worker in enumerate(old, 1):
        fleet.worker(f"new{number}")
        assert worker.stop() == 0
    account.seconds = time.monotonic() - begun
    account.wait(900)
    assert set(early) <= set(account.runs("done"))
    tell(account, "rolling deploy", "three workers replaced in turn, `stop` with 30 s", again=long)


def load(fleet, count=200):
    """An account of so many messages of the kinds that a SIGKILL may not lose, of 5 s at most."""
    account = Account(fleet)
    account.send("slow", 8, 5)
    account.send_mix(count)
    return account


def test_a_worker_is_killed(make_fleet, tell):
    fleet = make_fleet()
    killed, _, _ = fleet.workers("killed", "second", "third")
    account = load(fleet)
    fleet.diary.wait_for("started", 5, host="killed")
    killed.kill()
    at = time.monotonic()
    assert killed.state["ExitCode"] == 137
    fleet.worker("replacement")
    account.wait(200)
    again = account.unfinished("killed", at)
    comings = [entry["monotonic"] - at for entry in fleet.diary.entries("started") if entry["key"] in again]
    account.seconds = max(comings, default=None)
    tell(account, "`docker kill` of a worker", "one of three; a lease of 20 s", again=again)


def test_sqs_is_killed(make_fleet, tell):
    fleet = make_fleet()
    workers = fleet.workers("first", "second", "third")
    account = load(fleet)
    fleet.diary.wait_for("done", 20)
    fleet.sqs.kill()
    time.sleep(12)
    fleet.sqs.start()
    at = time.monotonic()
    account.send("quick", 30)
    for name in ("first", "second", "third"):
        account.recovered(name, at)
    account.wait(200)
    assert all(worker.state["Running"] for worker in workers)
    tell(account, "`docker kill` of SQS", "12 s without its endpoint, which is shorter than a lease")

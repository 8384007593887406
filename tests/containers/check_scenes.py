"""What platforms do to containers, and what becomes of every message; only `make containers` runs this."""

from __future__ import annotations

import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from containers.account import Account
from containers.engine import missing
from containers.fleet import is_root
from support.processes import wait_until

NO_ENGINE = missing()
pytestmark = [pytest.mark.timeout(420), pytest.mark.skipif(NO_ENGINE is not None, reason=str(NO_ENGINE))]

#: Of the rolling deploy. Fewer, for a look at a busy machine.
MESSAGES = int(os.environ.get("CONTAINERS_MESSAGES", "5000"))


@pytest.mark.timeout(1200)
def test_a_rolling_deploy_of_all_workers_under_tasks_of_all_kinds(make_fleet, tell):
    fleet = make_fleet(visibility_timeout=30)
    old = fleet.workers("old1", "old2", "old3")
    account = Account(fleet)
    long = account.send("slow", 3, 60)
    early = account.send("stock_early", 100)
    with ThreadPoolExecutor(1) as producer:
        sending = producer.submit(account.send_mix, MESSAGES - 200)
        fleet.diary.wait_for("done", MESSAGES // 20, timeout=240)
        begun = time.monotonic()
        for number, worker in enumerate(old, 1):
            fleet.worker(f"new{number}")
            assert worker.stop() == 0
        account.seconds = time.monotonic() - begun
        sending.result()
    account.send("slow", MESSAGES - len(account.sent), 2)
    account.wait(900)
    assert set(early) <= set(account.runs("done"))
    tell(
        account,
        "rolling deploy",
        "three workers replaced in turn, while the messages are sent; `stop` with 30 s",
        again=long,
    )


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
    fleet.diary.wait_for("started", 3, host="killed")
    before = time.monotonic()
    killed.kill()
    at = time.monotonic()
    assert killed.state["ExitCode"] == 137
    fleet.worker("replacement")
    account.wait(200)
    again = account.held("killed", before, at)
    comings = [entry["monotonic"] - at for entry in fleet.diary.entries("started") if entry["key"] in again]
    account.seconds = max(comings, default=None)
    tell(account, "`docker kill` of a worker", "one of three; a lease of 20 s", again=again)


def test_sqs_is_killed(make_fleet, tell):
    fleet = make_fleet(visibility_timeout=60)  # it is extended with a third left, more than the outage takes
    workers = fleet.workers("first", "second", "third")
    account = load(fleet)
    fleet.diary.wait_for("done", 20)
    fleet.sqs.kill()
    time.sleep(12)
    fleet.sqs.start()
    at = time.monotonic()
    for name in ("first", "second", "third"):
        account.recover(name, at)
    account.wait(200)
    assert all(worker.state["Running"] for worker in workers)
    tell(account, "`docker kill` of SQS", "12 s without its endpoint, which is shorter than a lease")


def test_a_worker_is_paused_beyond_the_visibility_timeout(make_fleet, tell):
    # Longer than a long poll and a lease: how long an answer has waited for the worker, nobody knows.
    fleet = make_fleet(visibility_timeout=10)
    paused, _ = fleet.workers("paused", "second")
    account = load(fleet)
    fleet.diary.wait_for("started", 3, host="paused")
    before = time.monotonic()
    with paused.paused():
        at = time.monotonic()
        time.sleep(35)
    woken = time.monotonic()
    account.recover("paused", woken)
    account.wait(200)
    tell(account, "`docker pause`", "35 s; a lease of 10 s", again=account.held("paused", before, at))


@pytest.mark.parametrize("how", ["cut_off", "swallowed"])
def test_a_worker_without_a_network_for_a_minute(make_fleet, tell, how):
    if how == "swallowed" and not is_root():
        pytest.skip("dropping packets of a container needs root")
    fleet = make_fleet()
    cut, _ = fleet.workers("cut", "second")
    account = load(fleet)
    fleet.diary.wait_for("started", 3, host="cut")
    before = time.monotonic()
    with getattr(cut, how)():
        time.sleep(60)
        account.send("quick", 50)
        fleet.diary.wait_for("started", key=next(reversed(account.sent)))
    back = time.monotonic()
    account.recover("cut", back)
    account.wait(200)
    assert cut.state["Running"]
    scene = {"cut_off": "network cut", "swallowed": "network swallows"}[how]
    again = account.held("cut", before, back) | account.not_stored()
    tell(account, scene, "60 s, SQS and Redis; a lease of 20 s", again=again)


@pytest.mark.breaks_rules  # the lines of that worker have the wrong time
@pytest.mark.skipif(shutil.which("cc") is None, reason="cc is missing: apt-get install gcc")
def test_a_workers_clock_jumps(make_fleet, tell):
    # As SQS, the endpoint refuses what such a clock has signed.
    fleet = make_fleet()
    wrong = fleet.worker("wrong", env=fleet.with_a_clock_of_its_own())
    fleet.worker("second")
    account = Account(fleet)
    again: set[str] = set()
    for hours in (3, -1):
        begun = len(fleet.diary.entries("started", host="wrong"))
        account.send("slow", 8, 5)
        account.send_mix(100)
        account.send("parked", 4)
        fleet.diary.wait_for("started", begun + 3, host="wrong")
        before = time.monotonic()
        with fleet.clock_ahead(hours * 3600):
            time.sleep(40)
            account.send("quick", 20)
            fleet.diary.wait_for("started", key=next(reversed(account.sent)))
        right = time.monotonic()
        account.recover("wrong", right)
        again |= account.held("wrong", before, right)
    account.wait(200)
    assert wrong.state["Running"]
    assert "Signature not yet current" in wrong.log
    assert "Signature expired" in wrong.log
    early = {entry["key"] for entry in fleet.diary.entries("started") if account.is_early(entry)}
    assert not early
    tell(account, "a clock jumps", "of one of two: 3 h ahead for 40 s, 1 h behind for 40 s", again=again)


def test_a_task_takes_more_memory_than_the_container_has(make_fleet, tell):
    fleet = make_fleet()
    workers = fleet.workers("first", "second")
    account = load(fleet)
    hungry = account.send("hungry", 2, 700)
    account.wait(200)
    assert all(worker.state["Running"] for worker in workers)
    assert all(account.runs("done")[key] for key in hungry)
    tell(account, "OOM kill by a task", "two of 700 MB in containers of 512 MB", again=hungry)


def test_a_message_takes_more_memory_than_the_container_has(make_fleet, tell):
    fleet = make_fleet(visibility_timeout=8, receives=4)
    worker = fleet.worker("worker", memory="256m", options=["--restart", "always"])
    account = Account(fleet)
    account.send_mix(100)
    bombs = account.send("bomb", 1, [{"a": {}}] * 240_000)
    account.send_mix(100)
    account.wait(240, deadly=True)
    account.send("quick", 20)
    account.wait(60)
    assert worker.restarts or bombs[0] in account.cut_short()
    deaths = worker.deaths(account.since)
    assert len(deaths) == worker.restarts
    # While the message is decoded, the interpreter sends no deletes.
    held = set().union(*(account.held("worker", death - 3, death) for death in deaths))
    done = f"480,000 objects in 5 KB of gzip, within the bounds, in 256 MB; {worker.restarts} restarts"
    tell(account, "OOM kill by a message", done, again=account.cut_short() | held)


@pytest.mark.parametrize("init", [True, False], ids=["with an init", "Celery is PID 1"])
def test_what_tasks_leave_behind_is_reaped_by_an_init_alone(make_fleet, tell, init):
    fleet = make_fleet()
    worker = fleet.worker("worker", init=init)
    account = Account(fleet)
    account.send("leaving_orphans", 4, 5)
    account.send_mix(100)
    account.wait(120)
    zombies = [row for row in worker.processes() if row[2] == "Z"]
    assert len(zombies) == (0 if init else 20)
    begun = time.monotonic()
    assert worker.stop() == 0
    account.seconds = time.monotonic() - begun
    done = f"20 processes left behind by tasks, {len(zombies)} zombies; `stop`"
    tell(account, "PID 1 is an init" if init else "PID 1 is Celery", done)


#: As the manifest's, with shorter times.
PROBE = (
    "--health-cmd",
    "celery-sqs-health --timeout 3",
    "--health-interval",
    "2s",
    "--health-timeout",
    "10s",
)
PROBE += ("--health-retries", "3")
READY = ("celery-sqs-health", "--ready", "--timeout", "5")


def health(worker):
    return worker.state["Health"]["Status"]


def test_liveness_kills_nobody_in_an_outage_and_finds_who_is_frozen(make_fleet, tell):
    fleet = make_fleet()
    worker = fleet.worker("worker", options=PROBE)
    account = Account(fleet)
    account.send_mix(100)
    wait_until(lambda: worker.exec_status(*READY) == 0, 30, "a worker that is ready")
    fleet.sqs.kill()
    seen = set()
    until = time.monotonic() + 40
    while time.monotonic() < until:
        seen.add(health(worker))
        time.sleep(0.5)
    assert "unhealthy" not in seen
    assert worker.exec_status(*READY) == 1
    fleet.sqs.start()
    at = time.monotonic()
    account.recover("worker", at)
    wait_until(lambda: worker.exec_status(*READY) == 0, 60, "a worker that is ready again")
    account.wait(120)
    (main,) = [pid for pid, parent, _, command in worker.processes() if parent == 1 and "celery" in command]
    worker.exec("python", "-c", f"import os; os.kill({main}, 19)")
    wait_until(lambda: health(worker) == "unhealthy", 90, "a frozen worker that is unhealthy")
    tell(account, "probes", "SQS gone for 40 s: alive and not ready; frozen: not alive")


def test_a_full_disk(make_fleet, tell):
    fleet = make_fleet()
    worker = fleet.worker("worker", tmp="4m", options=PROBE)
    worker.exec("sh", "-c", "head -c 8000000 /dev/zero > /tmp/filler || true")
    account = Account(fleet)
    writing = account.send("writing", 5, 100)
    account.send_mix(100)
    for key in writing:
        fleet.diary.wait_for("failing", key=key, timeout=60)
    second = fleet.worker("second", tmp="4m")
    assert worker.exec_status("celery-sqs-health") == 0
    worker.exec("rm", "/tmp/filler")
    at = time.monotonic()
    account.wait(120)
    account.seconds = max(
        entry["monotonic"] - at for entry in fleet.diary.entries("done") if entry["key"] in writing
    )
    assert second.stop() == 0
    tell(account, "full disk", "`/tmp`, which tasks write to")

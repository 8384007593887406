"""A worker that is short of memory loses nothing: it goes on, ends, or says that it is not live."""

import re
import resource
import signal
import socket
import time

import psutil
import pytest
from support.app import CONSTANTS
from support.processes import SOON, wait_until

from celery_sqs_visibility.operate.health.probe import ask

LARGE = 30
LARGE_CHARACTERS = 500_000

#: Seconds of pressure, as of a neighbour that takes memory and gives it back.
PRESSURE_SECONDS = 6

#: Two minutes until a worker that stands still says so, another worker's start, and its work.
RECOVERED_WITHIN = 300

#: Instead of a minute until a worker whose pool takes nothing says so.
LATE_SECONDS = 10

UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


@pytest.fixture(autouse=True)
def _own_directory(tmp_path_factory, monkeypatch):
    """Sockets of this test's workers alone; paths of Unix sockets are short."""
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("h")))


def have_run(site):
    return {entry["key"][:2] for entry in site.diary.entries("started")} - {"be"}


def is_live():
    """Whether the probe finds the worker, and it is well."""
    answers = list(ask(None, "/healthz", 5))
    return bool(answers) and all(answer["ok"] for answer in answers)


def shortened(log):
    """The log, whose lines of results are of no use."""
    return re.sub("x{9,}", "", log)


def run_all(site, worker, pool):
    """Wait until all have run. As an orchestrator, start another worker where one ends or is not live.

    A pool that lost a thread, or a run, for lack of memory stands still, since Python's own does not notice.
    Returns the worker that is left.
    """

    def all_ran():
        nonlocal worker
        if not worker.running or not is_live():
            worker.kill()
            worker = site.start(pool=pool)
        return len(have_run(site)) == LARGE and site.kept == 0

    wait_until(
        all_ran,
        RECOVERED_WITHIN,
        lambda: f"{len(have_run(site))} ran, queue {site.counts()}: {shortened(worker.log)[-9000:]}",
    )
    return worker


def press(worker, spare):
    """Leave the worker that many bytes for a while; whether it lives."""
    limit = psutil.Process(worker.pid).memory_info().vms + spare
    resource.prlimit(worker.pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    worker.signal_main(signal.SIGCONT)
    until = time.monotonic() + PRESSURE_SECONDS
    while time.monotonic() < until and worker.running:
        time.sleep(0.1)
    if worker.running:
        resource.prlimit(worker.pid, resource.RLIMIT_AS, UNLIMITED)
    return worker.running


@pytest.mark.timeout(RECOVERED_WITHIN + 120)
@pytest.mark.parametrize("spare", [2_000_000, 20_000_000])
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_what_came_while_memory_lacked_runs_later_and_is_no_dead_letter(make_site, pool, spare, reliability):
    site = make_site(error_visibility_timeout=2, visibility_timeout=10, wait_time_seconds=2)
    dead_url = site.create_queue_with_dead_letters(receives=100)
    worker = site.start(pool=pool)
    site.begin("before")
    worker.signal_main(signal.SIGSTOP)
    keys = [f"{number:02}" + "x" * LARGE_CHARACTERS for number in range(LARGE)]
    for key in keys:
        site.send("quick", key)
    if not press(worker, spare):  # as stock Celery
        assert worker.wait_exit() != 0  # by itself, or as the interpreter aborts
    worker = run_all(site, worker, pool)
    assert site.counts(dead_url) == (0, 0)
    assert worker.running
    reliability("memory lacks for a while", "2 or 20 MB left, messages of 500 KB", keys, ended="started")


@pytest.mark.prefork_only("its pool's processes are stopped")
def test_a_worker_whose_pool_takes_nothing_is_not_live(make_site):
    constants = {"celery_sqs_visibility.policy.health.HANDOVER_LATE_SECONDS": LATE_SECONDS}
    site = make_site({CONSTANTS: constants})
    worker = site.start(name="w1")
    site.begin("before")
    wait_until(lambda: not site.kept, SOON, "its end, which a stopped process does not tell")
    for child in worker.children():
        psutil.Process(child).suspend()
    site.send("quick", "stuck")
    answers = []

    def is_unwell():
        answers[:] = list(ask(f"w1@{socket.gethostname()}", "/healthz", 5))
        return not answers[0]["ok"]

    wait_until(is_unwell, SOON, lambda: f"unwell, not {answers}")
    (waited,) = re.findall(r"tasks have been waiting for the pool for (\d+) s", answers[0]["reason"])
    assert int(waited) >= LATE_SECONDS
    for child in worker.children():
        psutil.Process(child).resume()
    site.diary.wait_for("started", key="stuck")
    wait_until(lambda: not is_unwell(), SOON, lambda: f"well, not {answers}")

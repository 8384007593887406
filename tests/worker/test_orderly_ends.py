"""A worker whose time is up gives back what still runs, and ends by Celery's own way, within a bound."""

from __future__ import annotations

import shelve
import signal
import time

import pytest
from support.processes import SOON, wait_until
from support.worker import READY_SECONDS

POOLS = ["prefork", "threads", "solo", "gevent", "eventlet"]

#: Pools that run more than one task at a time.
WIDE = [pool for pool in POOLS if pool != "solo"]


def begin(site, *tasks, **options):
    """A worker in which these run: pairs of a task and its seconds."""
    for name, seconds in tasks:
        site.send(name, name, seconds)
    worker = site.start("ending", concurrency=max(2, len(tasks)), **options)
    site.diary.wait_for("started", len(tasks))
    return worker


@pytest.mark.parametrize("pool", WIDE)
def test_a_run_that_was_acknowledged_early_is_waited_for_beside_one_whose_time_is_up(
    make_site, pool, reliability
):
    site = make_site(visibility_timeout=60, shutdown_timeout=3, wait_time_seconds=1)
    worker = begin(site, ("stock_slow", 12), ("slow", 60), pool=pool)
    asked = time.monotonic()
    worker.terminate()
    site.proxy.wait_for(lambda _: site.counts() == (1, 0), timeout=11)  # that of the other
    released = time.monotonic() - asked
    assert worker.wait_exit(60) == 0
    assert site.diary.count("done", key="stock_slow") == 1, worker.log
    assert site.diary.count("done", key="slow") == 0
    assert site.counts() == (1, 0)
    assert worker.children() == []
    reliability(
        "SIGTERM: a run that was acknowledged early, beside one that runs too long",
        "`acks_late=False`, 12 s; `shutdown_timeout` 3 s",
        ["stock_slow", "slow"],
        kept=site.kept,
        seconds=released,
    )


@pytest.mark.parametrize("pool", POOLS)
def test_a_worker_whose_time_is_up_ends_by_celerys_own_way(make_site, pool, tmp_path):
    site = make_site(visibility_timeout=60, shutdown_timeout=2, wait_time_seconds=1)
    statedb = tmp_path / "state"
    pidfile = tmp_path / "pid"
    args = [f"--statedb={statedb}", f"--pidfile={pidfile}"]
    worker = begin(site, ("slow", 60), pool=pool, extra_args=args)
    worker.terminate()
    assert worker.wait_exit(40) == 0
    assert "orphaned, handed back (task=work.slow" in worker.log
    assert site.counts() == (1, 0)
    assert [site.diary.count(end) for end in ("worker_shutdown", "atexit")] == [1, 1], worker.log
    with shelve.open(str(statedb)) as saved:
        assert "zrevoked" in saved, "what was revoked is revoked after the start of the next worker, too"
    assert not pidfile.exists()
    assert "Traceback" not in worker.log


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_an_embedded_beat_saves_its_schedule_though_a_run_is_orphaned(make_site, pool, tmp_path):
    site = make_site(visibility_timeout=60, shutdown_timeout=2, wait_time_seconds=1)
    schedule = tmp_path / "schedule"
    worker = begin(site, ("slow", 60), pool=pool, extra_args=["-B", f"--schedule={schedule}"])
    sent = "Sending due task each second"
    wait_until(lambda: worker.log.count(sent) >= 3, SOON, lambda: worker.log)
    worker.terminate()
    assert worker.wait_exit(40) == 0
    assert "orphaned, handed back" in worker.log
    with shelve.open(str(schedule)) as saved:
        assert saved["entries"]["each second"].total_run_count >= 3


LOST = "shutdown: lost: it was acknowledged when it began, and does not end in time (task=work.stock_slow"


@pytest.mark.parametrize("pool", POOLS)
def test_a_run_that_was_acknowledged_early_is_lost_with_a_word_at_a_second_sigterm(make_site, pool):
    site = make_site(visibility_timeout=60, shutdown_timeout=2, wait_time_seconds=1)
    worker = begin(site, ("stock_slow", 60), pool=pool)
    worker.terminate()
    worker.wait_for_log("shutdown: waiting for runs that were acknowledged when they began: 1")
    assert LOST not in worker.log
    worker.terminate()
    assert worker.wait_exit(40) == 0
    assert worker.log.count(LOST) == 1
    assert [site.diary.count(end) for end in ("worker_shutdown", "atexit")] == [1, 1], worker.log
    assert worker.children() == []


def test_where_sigkill_would_come_before_its_end_it_is_lost_with_a_word_in_time_for_an_orderly_end(make_site):
    site = make_site(visibility_timeout=60, shutdown_timeout=2, wait_time_seconds=1)
    worker = begin(site, ("stock_slow", 60), env={"TERMINATION_GRACE_PERIOD_SECONDS": "10"})
    worker.terminate()
    assert worker.wait_exit(40) == 0
    assert worker.log.count(LOST) == 1
    assert [site.diary.count(end) for end in ("worker_shutdown", "atexit")] == [1, 1], worker.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT])
def test_runs_whose_processes_are_told_to_end_with_the_worker_are_given_back(make_site, number):
    """As systemd tells all processes, `timeout`, honcho, and a terminal."""
    settings = {"worker_soft_shutdown_timeout": 20}
    site = make_site(settings, visibility_timeout=60, shutdown_timeout=20, wait_time_seconds=1)
    dead_letters = site.create_queue_with_dead_letters(5)
    for name in ("slow_once", "failing_as_it_is_cut_short", "stock_late_slow"):
        site.app.send_task(f"ending.{name}", [name, 60])
    worker = site.start("ending", concurrency=3)
    site.diary.wait_for("started", 3)
    worker.signal_group(number)
    site.proxy.wait_for(lambda _: site.counts() == (3, 0), timeout=60)
    assert worker.wait_exit(60) == (0 if number == signal.SIGTERM else 1)
    assert worker.log.count("comes back: its process was killed") == 3, worker.log
    assert site.counts() == (3, 0)
    assert site.counts(dead_letters) == (0, 0)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_what_hangs_in_the_end_is_cut_off_after_the_bound_that_the_log_states(make_site, pool, tmp_path):
    stuck = tmp_path / "stuck"
    stuck.touch()
    site = make_site(visibility_timeout=60, shutdown_timeout=2, wait_time_seconds=1)
    worker = begin(site, ("slow", 60), pool=pool, env={"STUCK_AT_EXIT": str(stuck)})
    worker.terminate()
    assert worker.wait_exit(40) == 0
    assert stuck.exists()
    assert site.diary.count("atexit") == 1
    assert "shutdown: time is up, ending within 5.0 s" in worker.log
    assert "shutdown: the worker does not end in time: what it still does is cut off" in worker.log
    assert worker.children() == []


@pytest.mark.parametrize("pool", ["solo", "gevent", "eventlet"])
def test_a_run_whose_time_is_up_unwinds_where_it_shares_the_workers_process(make_site, pool):
    site = make_site(visibility_timeout=60, shutdown_timeout=2, wait_time_seconds=1)
    site.app.send_task("ending.unwound", ["a", 60, 1.2])
    worker = site.start("ending", pool=pool)
    site.diary.wait_for("started")
    worker.terminate()
    assert worker.wait_exit(40) == 0
    assert site.diary.count("unwound") == 1
    assert site.counts() == (1, 0)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_one_sigint_ends_with_the_status_of_sigterm(make_site, pool):
    site = make_site(wait_time_seconds=1)
    worker = site.start("ending", pool=pool)
    worker.signal_main(signal.SIGINT)
    assert worker.wait_exit(40) == 0
    assert "worker: Warm shutdown" in worker.log


def test_a_second_sigterm_to_an_idle_worker_does_not_wait_for_its_poll(make_site):
    site = make_site(wait_time_seconds=20)
    worker = site.start("ending")
    site.proxy.wait_for(lambda _: site.proxy.in_flight("ReceiveMessage"))
    asked = time.monotonic()
    worker.terminate()
    worker.wait_for_log("messages given back that had not begun")
    worker.terminate()
    assert worker.wait_exit(40) == 0
    assert time.monotonic() - asked < 18, "nobody waits for the poll"
    assert site.proxy.in_flight("ReceiveMessage")


def test_a_worker_that_python_started_by_dash_m_celery_starts_anew_at_sighup(make_site):
    site = make_site(wait_time_seconds=1)
    worker = site.start("ending")
    assert worker.command[1:3] == ["-m", "celery"]
    worker.signal_main(signal.SIGHUP)
    wait_until(lambda: worker.log.count(" ready.") == 2, READY_SECONDS, lambda: worker.log)
    site.begin("after the restart")
    worker.terminate()
    assert worker.wait_exit(40) == 0

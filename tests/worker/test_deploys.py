"""SIGTERM, Ctrl-C and SIGHUP hand work back in time, and a worker ends by Celery's own way."""

import os
import pty
import shelve
import signal
import time

import psutil
import pytest
from support.faults import Disconnected, black_hole, error
from support.processes import wait_until
from support.worker import READY_SECONDS

POOLS = ["prefork", "threads", "solo", "gevent", "eventlet"]

#: Pools that run more than one task at a time.
WIDE = [pool for pool in POOLS if pool != "solo"]

TERM, INT, QUIT = signal.SIGTERM, signal.SIGINT, signal.SIGQUIT

#: A visibility timeout in seconds that no test lasts: what is visible was released.
NEVER = 600

LOST = "shutdown: lost: it was acknowledged when it began, and does not end in time (task=work.stock_slow"


def hold_more_than_runs(site, tasks, seconds=60):
    """Have the worker hold that many long tasks, as it does when it has only known short ones so far.

    Every second one may expire, of which Celery keeps a note of its own.
    """
    for number in range(25):  # a slow first run is forgotten by then
        site.send("quick", f"short {number}")
    site.diary.wait_for("started", 25, task="work.quick")
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    with site.proxy.inject(error("InternalError", 500), "ReceiveMessage") as silence:
        site.proxy.wait_for(lambda _: silence.hits)  # so that one poll brings them all
        for number in range(tasks):
            site.send("slow", number, seconds, expires=600 if number % 2 else None)
    site.diary.wait_for("started", task="work.slow")
    site.proxy.wait_for(lambda _: site.counts() == (0, tasks))


def at_work(site, *tasks, module="work", **options):
    """A worker in which these have begun: each a task of `work` and its seconds."""
    for name, seconds in tasks:
        site.send(name, name, seconds)
    worker = site.start(module, concurrency=max(2, len(tasks)), **options)
    site.diary.wait_for("started", len(tasks))
    return worker


def idle_worker(site, **options):
    """A worker whose long poll is open, and nothing else."""
    worker = site.start(**options)
    site.proxy.wait_for(lambda _: site.proxy.in_flight("ReceiveMessage"))
    return worker


def end(worker, code=0):
    worker.terminate()
    assert worker.wait_exit() == code
    assert worker.children() == []


@pytest.mark.parametrize("pool", POOLS)
def test_what_has_not_begun_is_visible_again_at_once_and_what_runs_when_the_time_is_up(
    make_site, pool, reliability
):
    site = make_site(visibility_timeout=NEVER, shutdown_timeout=10, wait_time_seconds=1)
    worker = site.start(pool=pool, concurrency=1, prefetch_multiplier=5)
    hold_more_than_runs(site, 5)
    asked = time.monotonic()
    worker.terminate()
    site.proxy.wait_for(lambda _: site.counts() == (4, 1))
    released = time.monotonic() - asked
    assert worker.wait_exit() == 0
    site.proxy.wait_for(lambda _: site.counts() == (5, 0))
    ended = time.monotonic() - asked
    assert site.diary.count("started", task="work.slow") == 1
    assert worker.log.count("orphaned, handed back (task=work.slow task_id=") == 1
    assert worker.children() == []
    reliability("SIGTERM: not begun", "1 task runs, 4 wait", range(5), kept=site.kept, seconds=released)
    reliability(
        "SIGTERM: what runs too long", "`shutdown_timeout` 10 s", range(5), kept=site.kept, seconds=ended
    )


@pytest.mark.prefork_only("other pools have no processes")
def test_what_a_process_had_not_read_when_its_last_task_was_done_is_visible_again_at_once(make_site):
    site = make_site({"worker_max_tasks_per_child": 1}, visibility_timeout=NEVER, wait_time_seconds=1)
    for number in range(60):
        site.send("slow", number, 0.2)
    for deploy in range(1, 5):  # most deploys have such a message
        worker = site.start(concurrency=3)
        site.diary.wait_for("done", 4 * deploy)
        end(worker)
        done = site.diary.count("done")
        site.proxy.wait_for(lambda _, done=done: site.counts() == (60 - done, 0))
    assert site.diary.count("started") == done


OF_THE_USERS = "slow_with_a_request_of_its_own"


@pytest.mark.parametrize(
    ("pool", "task", "lease"),
    [*((pool, "slow", 4) for pool in POOLS), ("prefork", OF_THE_USERS, 30), ("threads", OF_THE_USERS, 30)],
)
def test_what_ends_in_time_is_done(make_site, pool, task, lease, reliability):
    site = make_site(visibility_timeout=lease, wait_time_seconds=1)
    worker = at_work(site, (task, 6), pool=pool)
    end(worker)
    assert site.diary.count("done") == 1
    assert site.counts() == (0, 0)
    assert "orphaned" not in worker.log
    reliability("SIGTERM: what ends in time", f"a task of 6 s, with a lease of {lease} s", [task])


def test_what_ends_in_time_among_many_that_do_not_is_done(make_site):
    site = make_site(visibility_timeout=NEVER, shutdown_timeout=8, wait_time_seconds=1)
    # Celery sleeps half a second at each that runs.
    worker = at_work(site, *[("slow", 3), ("slow", 60), ("slow", 60)] * 8)
    end(worker)
    assert site.diary.count("done") == 8
    assert worker.log.count("orphaned, handed back") == 16
    site.proxy.wait_for(lambda _: site.counts() == (16, 0))


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_an_idle_worker_ends_when_its_poll_has(make_site, pool, reliability):
    site = make_site(wait_time_seconds=6)
    worker = idle_worker(site, pool=pool)
    asked = time.monotonic()
    end(worker)
    assert not site.proxy.in_flight("ReceiveMessage")
    seconds = time.monotonic() - asked
    reliability("SIGTERM: nothing to do", "while a poll waits up to 6 s", [], seconds=seconds)


def test_the_lost_answer_to_a_release_shows_the_message_to_one_worker(make_site, tmp_path, reliability):
    """An old receipt handle still acts: sent again, the release would have the message run a third time."""
    site = make_site(shutdown_timeout=1, wait_time_seconds=1)
    site.send("held", "a", str(tmp_path / "there"))
    first = site.start(concurrency=1)
    site.diary.wait_for("started")
    for other in [site.start(concurrency=1, ready=False) for _ in range(2)]:
        other.wait_ready()

    def lost_when_the_next_worker_runs_it(request, forward, _removed):
        forward(request)
        site.diary.wait_for("started", 2)
        raise Disconnected("its answer is lost")

    site.proxy.inject(lost_when_the_next_worker_runs_it, "ChangeMessageVisibilityBatch", times=1)
    end(first)
    (tmp_path / "there").touch()
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert site.changes().count(0) == 1
    assert site.diary.count("started") == 2
    reliability("the answer to a release is lost", "the next worker runs it by then", ["a"], runs=2)


def test_what_waits_for_its_eta_is_visible_again_at_once_although_a_long_poll_is_open(make_site):
    site = make_site(visibility_timeout=NEVER, shutdown_timeout=12)
    worker = site.start(pool="prefork", concurrency=1, prefetch_multiplier=8)
    for key in range(3):
        site.send("quick", key, countdown=300, delay_seconds=0)
    site.proxy.wait_for(lambda _: worker.log.count("] received") == 3)
    site.proxy.wait_for(lambda _: site.proxy.in_flight("ReceiveMessage"))  # of 20 s
    end(worker)
    assert "shutdown: 3 messages given back that had not begun" in worker.log
    assert site.counts() == (3, 0)
    answers = [call.response.get("Messages", []) for call in site.proxy.calls("ReceiveMessage")]
    assert sum(map(len, answers)) <= 3 + 1, "one of them ended the poll, and the others waited for that"


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_while_sqs_does_not_answer_nothing_is_said_to_be_given_back(make_site, pool):
    site = make_site(visibility_timeout=NEVER, shutdown_timeout=8)
    worker = site.start(pool=pool, concurrency=1, prefetch_multiplier=8)
    for key in range(2):
        site.send("quick", key, countdown=300, delay_seconds=0)
    site.proxy.wait_for(lambda _: worker.log.count("] received") == 2)
    site.send("slow", "runs", 200)
    site.diary.wait_for("started")
    with site.proxy.inject(black_hole()):
        end(worker)
    for line in (
        "shutdown: time is up, ending within 5.0 s",
        "shutdown: 0 messages given back that had not begun",
        "orphaned, could not be handed back: comes back after its visibility timeout",
        "shutdown: 2 messages could not be given back: hidden until the visibility timeout is over",
    ):
        assert worker.log.count(line) == 1, worker.log
    assert "orphaned, handed back" not in worker.log
    assert site.kept == 3


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_second_sigterm_gives_no_run_more_time(make_site, pool, reliability):
    site = make_site(visibility_timeout=NEVER, shutdown_timeout=8, wait_time_seconds=1)
    worker = at_work(site, ("slow", 200), pool=pool)
    asked = time.monotonic()
    worker.terminate()
    worker.wait_for_log("messages given back that had not begun")
    end(worker)
    seconds = time.monotonic() - asked
    site.proxy.wait_for(lambda _: site.counts() == (1, 0))
    assert worker.log.count("shutdown: no more polls") == 1
    reliability("two SIGTERMs", "`shutdown_timeout` 8 s", ["slow"], kept=site.kept, seconds=seconds)


@pytest.mark.parametrize("pool", ["prefork", "solo", "gevent"])
def test_ctrl_c_is_a_warm_shutdown(make_site, pool, reliability):
    site = make_site(visibility_timeout=NEVER, wait_time_seconds=1)
    worker = site.start(pool=pool, concurrency=1, prefetch_multiplier=4)
    hold_more_than_runs(site, 4, seconds=8)
    worker.signal_main(INT)
    worker.wait_for_log("3 messages given back that had not begun")
    assert worker.wait_exit() == 0
    assert site.diary.count("done") == 1
    assert site.diary.count("started", task="work.slow") == 1, "what was given back does not begin"
    assert site.counts() == (3, 0)
    assert "Traceback" not in worker.log
    reliability("SIGINT", "1 task runs, 3 wait", range(4), kept=site.kept)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_restart_by_sighup_gives_back_what_has_not_begun_and_waits_for_what_runs(make_site, pool):
    site = make_site(visibility_timeout=NEVER, wait_time_seconds=1, shutdown_timeout=2)
    worker = site.start(pool=pool, concurrency=1, prefetch_multiplier=5)
    hold_more_than_runs(site, 3, seconds=10)
    worker.signal_main(signal.SIGHUP)
    site.proxy.wait_for(lambda _: site.counts() == (2, 1))
    assert site.diary.count("done") == 0
    site.diary.wait_for("done")  # it has the time that it takes, and not `shutdown_timeout`
    wait_until(lambda: worker.log.count(" ready.") == 2, READY_SECONDS, lambda: worker.log)
    site.begin("after the restart")


@pytest.mark.parametrize("pool", WIDE)
def test_a_run_that_was_acknowledged_early_is_waited_for_beside_one_whose_time_is_up(
    make_site, pool, reliability
):
    site = make_site(visibility_timeout=NEVER, shutdown_timeout=3, wait_time_seconds=1)
    worker = at_work(site, ("stock_slow", 12), ("slow", 200), pool=pool)
    asked = time.monotonic()
    worker.terminate()
    site.proxy.wait_for(lambda _: site.counts() == (1, 0))  # that of the other
    released = time.monotonic() - asked
    assert worker.wait_exit() == 0
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


@pytest.mark.parametrize(
    ("pool", "env"),
    [*((pool, {}) for pool in POOLS), ("prefork", {"TERMINATION_GRACE_PERIOD_SECONDS": "10"})],
    ids=[*POOLS, "at a second SIGTERM or before SIGKILL"],
)
def test_a_run_that_was_acknowledged_early_is_lost_with_a_word(make_site, pool, env):
    site = make_site(visibility_timeout=NEVER, shutdown_timeout=2, wait_time_seconds=1)
    worker = at_work(site, ("stock_slow", 200), module="ending", pool=pool, env=env)
    worker.terminate()
    if not env:
        worker.wait_for_log("shutdown: waiting for runs that were acknowledged when they began: 1")
        assert LOST not in worker.log
        worker.terminate()
    assert worker.wait_exit() == 0
    assert worker.log.count(LOST) == 1
    assert [site.diary.count(each) for each in ("worker_shutdown", "atexit")] == [1, 1], worker.log
    assert worker.children() == []


@pytest.mark.parametrize("pool", POOLS)
def test_a_worker_whose_time_is_up_ends_by_celerys_own_way(make_site, pool, tmp_path):
    site = make_site(visibility_timeout=NEVER, shutdown_timeout=2, wait_time_seconds=1)
    statedb, pidfile, schedule = (tmp_path / name for name in ("state", "pid", "schedule"))
    args = [f"--statedb={statedb}", f"--pidfile={pidfile}"]
    if beats := pool in {"prefork", "solo"}:  # Celery has none in green pools
        args += ["-B", f"--schedule={schedule}"]
    worker = at_work(site, ("slow", 200), module="ending", pool=pool, extra_args=args)
    sent = "Sending due task each second"
    wait_until(lambda: not beats or worker.log.count(sent) >= 3, READY_SECONDS, lambda: worker.log)
    end(worker)
    assert "orphaned, handed back (task=work.slow" in worker.log
    assert [site.diary.count(each) for each in ("worker_shutdown", "atexit")] == [1, 1], worker.log
    with shelve.open(str(statedb)) as saved:
        assert "zrevoked" in saved, "what was revoked is revoked after the start of the next worker, too"
    if beats:
        with shelve.open(str(schedule)) as saved:
            assert saved["entries"]["each second"].total_run_count >= 3
    assert not pidfile.exists()
    assert "Traceback" not in worker.log


@pytest.mark.parametrize("number", [TERM, QUIT])
def test_runs_whose_processes_are_told_to_end_with_the_worker_are_given_back(make_site, number):
    """As systemd tells all processes, `timeout`, honcho, and a terminal."""
    settings = {"worker_soft_shutdown_timeout": 20}
    site = make_site(settings, visibility_timeout=NEVER, shutdown_timeout=20, wait_time_seconds=1)
    dead_letters = site.create_queue_with_dead_letters(5)
    for name in ("slow_once", "failing_as_it_is_cut_short", "stock_late_slow"):
        site.app.send_task(f"ending.{name}", [name, 200])
    worker = site.start("ending", concurrency=3)
    site.diary.wait_for("started", 3)
    worker.signal_group(number)
    site.proxy.wait_for(lambda _: site.counts() == (3, 0))
    assert worker.wait_exit() == (0 if number == TERM else 1)
    assert worker.log.count("comes back: its process was killed") == 3, worker.log
    assert site.counts() == (3, 0)
    assert site.counts(dead_letters) == (0, 0)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_what_hangs_in_the_end_is_cut_off_after_the_bound_that_the_log_states(make_site, pool, tmp_path):
    stuck = tmp_path / "stuck"
    stuck.touch()
    site = make_site(visibility_timeout=NEVER, shutdown_timeout=2, wait_time_seconds=1)
    worker = at_work(site, ("slow", 200), module="ending", pool=pool, env={"STUCK_AT_EXIT": str(stuck)})
    end(worker)
    assert stuck.exists()
    assert site.diary.count("atexit") == 1
    assert "shutdown: time is up, ending within 5.0 s" in worker.log
    assert "shutdown: the worker does not end in time: what it still does is cut off" in worker.log


@pytest.mark.parametrize("pool", ["solo", "gevent", "eventlet"])
def test_a_run_whose_time_is_up_unwinds_where_it_shares_the_workers_process(make_site, pool):
    site = make_site(visibility_timeout=NEVER, shutdown_timeout=2, wait_time_seconds=1)
    site.app.send_task("ending.unwound", ["a", 200, 1.2])
    worker = site.start("ending", pool=pool)
    site.diary.wait_for("started")
    end(worker)
    assert site.diary.count("unwound") == 1
    assert site.counts() == (1, 0)


@pytest.mark.prefork_only("other pools have no processes")
@pytest.mark.parametrize(("number", "code"), [(TERM, 0), (QUIT, 1)])
@pytest.mark.parametrize("when", ["running", "idle", "given a run"])
def test_a_frozen_process_of_the_pool_does_not_keep_a_worker_from_its_end(make_site, number, code, when):
    site = make_site(visibility_timeout=NEVER, shutdown_timeout=4, wait_time_seconds=1)
    worker = site.start(concurrency=1)
    if when == "running":
        site.send("slow", "runs", 200)
        site.diary.wait_for("started")
    (child,) = worker.children()
    os.kill(child, signal.SIGSTOP)
    if when == "given a run":
        site.send("quick", "a")
        worker.wait_for_log("] received")
    worker.signal_main(number)
    assert worker.wait_exit() == code
    assert psutil.pid_exists(child) is False
    site.proxy.wait_for(lambda _: site.counts() == (int(when != "idle"), 0))


@pytest.mark.parametrize(
    ("pool", "wait", "times"),
    [("threads", 20, 1), ("prefork", 5, 3), ("solo", 5, 3), ("gevent", 5, 3), ("eventlet", 5, 3)],
)
def test_what_is_sent_between_two_workers_begins_when_the_second_is_ready(make_site, pool, wait, times):
    site = make_site(visibility_timeout=NEVER, wait_time_seconds=wait)
    worker = idle_worker(site, pool=pool)
    for key in range(times):
        end(worker)
        site.send("quick", key)
        time.sleep(0.5)  # an open poll would take it
        worker = idle_worker(site, pool=pool)
        (started,) = site.diary.wait_for("started", key=key)
        assert started["sqs"]["receive_count"] == 1
        site.proxy.wait_for(lambda _: site.counts() == (0, 0))


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_what_the_last_poll_brings_is_given_back_at_once(make_site, pool):
    site = make_site(visibility_timeout=NEVER, wait_time_seconds=20)
    worker = idle_worker(site, pool=pool)
    worker.terminate()
    worker.wait_for_log("shutdown: no more polls")
    site.send("quick", "a")
    assert worker.wait_exit() == 0
    assert site.counts() == (1, 0)
    assert site.diary.count("started") == 0


@pytest.mark.parametrize(
    ("signals", "at_a_terminal"),
    [([TERM] * 2, False), ([INT] * 2, False), ([TERM, QUIT], False), ([INT], True)],
)
def test_who_signals_twice_or_at_a_terminal_does_not_wait_for_the_poll(make_site, signals, at_a_terminal):
    site = make_site()
    ours, terminal = pty.openpty()
    try:
        worker = idle_worker(site, pool="prefork", **{"stdin": terminal} if at_a_terminal else {})
        first, *others = signals
        worker.signal_main(first)
        worker.wait_for_log("shutdown: no more polls")
        for number in others:
            worker.signal_main(number)
        worker.wait_exit()
        assert site.proxy.in_flight("ReceiveMessage"), "it takes 20 s"
    finally:
        os.close(ours)
        os.close(terminal)

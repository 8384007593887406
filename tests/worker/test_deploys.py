"""SIGTERM hands work back in time, as Sidekiq does on ECS."""

from __future__ import annotations

import os
import signal
import time

import psutil
import pytest
from support.faults import Disconnected, black_hole, error

from celery_sqs_visibility.worker.drain import shutdown_times

POOLS = ["prefork", "threads", "solo", "gevent", "eventlet"]


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


def at_work(site, *seconds, **options):
    """A worker that has begun the first of tasks that take so many seconds."""
    for key, duration in enumerate(seconds):
        site.send("slow", key, duration)
    worker = site.start(**options)
    site.diary.wait_for("started")
    return worker


def seconds_to_end(worker, code=0):
    """From a SIGTERM on."""
    asked = time.monotonic()
    worker.terminate()
    assert worker.wait_exit(40) == code
    return time.monotonic() - asked


@pytest.mark.parametrize("pool", POOLS)
def test_what_has_not_begun_is_visible_again_at_once_and_what_runs_when_the_time_is_up(
    make_site, pool, reliability
):
    site = make_site(visibility_timeout=60, shutdown_timeout=10, wait_time_seconds=1)
    worker = site.start(pool=pool, concurrency=1, prefetch_multiplier=5)
    hold_more_than_runs(site, 5)
    asked = time.monotonic()
    worker.terminate()
    site.proxy.wait_for(lambda _: site.counts() == (4, 1), timeout=9)
    released = time.monotonic() - asked
    assert released < 9
    assert worker.wait_exit(30) == 0
    assert time.monotonic() - asked < 20
    site.proxy.wait_for(lambda _: site.counts() == (5, 0), timeout=5)
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
    site = make_site({"worker_max_tasks_per_child": 1}, visibility_timeout=60, wait_time_seconds=1)
    for number in range(60):
        site.send("slow", number, 0.2)
    for deploy in range(1, 5):  # most deploys have such a message
        worker = site.start(concurrency=3)
        site.diary.wait_for("done", 4 * deploy)
        worker.terminate()
        assert worker.wait_exit(30) == 0
        done = site.diary.count("done")
        site.proxy.wait_for(lambda _, done=done: site.counts() == (60 - done, 0), timeout=5)
    assert site.diary.count("started") == done


OF_THE_USERS = "slow_with_a_request_of_its_own"


@pytest.mark.parametrize(
    ("pool", "task", "lease"),
    [*((pool, "slow", 4) for pool in POOLS), ("prefork", OF_THE_USERS, 30), ("threads", OF_THE_USERS, 30)],
)
def test_what_ends_in_time_is_done(make_site, pool, task, lease, reliability):
    site = make_site(visibility_timeout=lease, wait_time_seconds=1)
    site.send(task, "a", 6)
    worker = site.start(pool=pool)
    site.diary.wait_for("started")
    worker.terminate()
    assert worker.wait_exit(30) == 0
    assert site.diary.count("done") == 1
    assert site.counts() == (0, 0)
    assert "orphaned" not in worker.log
    reliability("SIGTERM: what ends in time", f"a task of 6 s, with a lease of {lease} s", ["a"])


def test_what_ends_in_time_among_many_that_do_not_is_done(make_site):
    site = make_site(visibility_timeout=60, shutdown_timeout=8, wait_time_seconds=1)
    worker = at_work(site, *[3, 60, 60] * 8, concurrency=24)  # Celery sleeps half a second at each that runs
    site.diary.wait_for("started", 24)
    worker.terminate()
    assert worker.wait_exit(40) == 0
    assert site.diary.count("done") == 8
    assert worker.log.count("orphaned, handed back") == 16
    site.proxy.wait_for(lambda _: site.counts() == (16, 0))


@pytest.mark.parametrize("pool", POOLS)
def test_an_idle_worker_ends_when_its_poll_has(make_site, pool, reliability):
    site = make_site(wait_time_seconds=6)
    worker = site.start(pool=pool)
    site.proxy.wait_for(lambda _: site.proxy.in_flight("ReceiveMessage"))
    seconds = seconds_to_end(worker)
    assert seconds < 20, "the poll takes 6, and `shutdown_timeout` is 25"
    assert not site.proxy.in_flight("ReceiveMessage")
    reliability("SIGTERM: nothing to do", "while a poll waits up to 6 s", [], seconds=seconds)


def test_the_lost_answer_to_a_release_shows_the_message_to_one_worker(make_site, tmp_path, reliability):
    """An old receipt handle still acts: sent again, the release would have the message run a third time."""
    site = make_site(visibility_timeout=30, shutdown_timeout=1, wait_time_seconds=1)
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
    first.terminate()
    assert first.wait_exit(30) == 0
    (tmp_path / "there").touch()
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert site.changes().count(0) == 1
    assert site.diary.count("started") == 2
    reliability("the answer to a release is lost", "the next worker runs it by then", ["a"], runs=2)


def test_what_waits_for_its_eta_is_visible_again_at_once_although_a_long_poll_is_open(make_site):
    site = make_site(visibility_timeout=120, shutdown_timeout=12)
    worker = site.start(pool="prefork", concurrency=1, prefetch_multiplier=8)
    for key in range(3):
        site.send("quick", key, countdown=100, delay_seconds=0)
    site.proxy.wait_for(lambda _: worker.log.count("] received") == 3)
    site.proxy.wait_for(lambda _: site.proxy.in_flight("ReceiveMessage"))  # of 20 s
    assert seconds_to_end(worker) < 12, "the poll takes 20"
    assert "shutdown: 3 messages given back that had not begun" in worker.log
    assert site.counts() == (3, 0)
    answers = [call.response.get("Messages", []) for call in site.proxy.calls("ReceiveMessage")]
    assert sum(map(len, answers)) <= 3 + 1, "one of them ended the poll, and the others waited for that"


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_while_sqs_does_not_answer_the_end_comes_in_time_and_nothing_is_said_to_be_given_back(
    make_site, pool
):
    site = make_site(visibility_timeout=120, shutdown_timeout=8)
    worker = site.start(pool=pool, concurrency=1, prefetch_multiplier=8)
    for key in range(2):
        site.send("quick", key, countdown=100, delay_seconds=0)
    site.proxy.wait_for(lambda _: worker.log.count("] received") == 2)
    site.send("slow", "runs", 60)
    site.diary.wait_for("started")
    with site.proxy.inject(black_hole()):
        assert seconds_to_end(worker) < 8 + 2 + 5 + 2, (
            "five for Celery's own end, two for a machine that stalls"
        )
    assert "shutdown: time is up, ending within 5.0 s" in worker.log
    assert "cut off" not in worker.log
    assert "shutdown: 0 messages given back that had not begun" in worker.log
    assert "orphaned, handed back" not in worker.log
    assert (
        worker.log.count("orphaned, could not be handed back: comes back after its visibility timeout") == 1
    )
    assert (
        "shutdown: 2 messages could not be given back: hidden until the visibility timeout is over"
        in worker.log
    )
    assert site.kept == 3


ECS = {"ECS_CONTAINER_METADATA_URI_V4": "http://127.0.0.1/"}
TOLD = "TERMINATION_GRACE_PERIOD_SECONDS"


@pytest.mark.parametrize(
    ("environment", "warning"),
    [
        (ECS, "shutdown_timeout is 60 s, but Amazon ECS kills 30 s after SIGTERM"),
        ({TOLD: "45"}, f"shutdown_timeout is 60 s, but {TOLD} says that SIGKILL comes 45 s after SIGTERM"),
        ({TOLD: "61"}, "set at most 59,"),
        ({TOLD: "1m"}, f"expected {TOLD} to be a number of seconds, got '1m'"),
        ({}, None),
        ({TOLD: "90"}, None),
        ({**ECS, TOLD: "90"}, None),
    ],
)
def test_a_shutdown_timeout_beyond_the_known_grace_period_is_warned_of(
    caplog, monkeypatch, environment, warning
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    shutdown_times(60)
    assert len(caplog.messages) == (warning is not None)
    assert (warning or "") in caplog.text


@pytest.mark.parametrize("pool", POOLS)
def test_a_second_sigterm_changes_nothing(make_site, pool, reliability):
    site = make_site(visibility_timeout=60, shutdown_timeout=8, wait_time_seconds=1)
    worker = at_work(site, 60, pool=pool)
    asked = time.monotonic()
    worker.terminate()
    worker.wait_for_log("messages given back that had not begun")
    time.sleep(6)
    worker.terminate()
    assert worker.wait_exit(30) == 0
    seconds = time.monotonic() - asked
    assert seconds < 13, "it would be 14 if the timeout began anew"
    site.proxy.wait_for(lambda _: site.counts() == (1, 0), timeout=5)
    assert worker.children() == []
    reliability("two SIGTERMs", "`shutdown_timeout` 8 s", [0], kept=site.kept, seconds=seconds)


@pytest.mark.parametrize("pool", POOLS)
def test_ctrl_c_is_a_warm_shutdown(make_site, pool, reliability):
    site = make_site(visibility_timeout=60, wait_time_seconds=1)
    worker = site.start(pool=pool, concurrency=1, prefetch_multiplier=4)
    hold_more_than_runs(site, 4, seconds=8)
    worker.signal_main(signal.SIGINT)
    worker.wait_for_log("3 messages given back that had not begun")
    worker.wait_exit(40)
    assert site.diary.count("done") == 1
    assert site.diary.count("started", task="work.slow") == 1, "what was given back does not begin"
    assert site.counts() == (3, 0)
    assert "Traceback" not in worker.log
    reliability("SIGINT", "1 task runs, 3 wait", range(4), kept=site.kept)


REMAPPED = {"REMAP_SIGTERM": "SIGQUIT"}


TERM, INT, QUIT = signal.SIGTERM, signal.SIGINT, signal.SIGQUIT


@pytest.mark.parametrize(
    ("signals", "env"), [([QUIT], {}), ([TERM, QUIT], {}), ([INT] * 2, {}), ([TERM], REMAPPED)]
)
def test_a_cold_shutdown_ends_what_runs_and_its_messages_come_back(make_site, signals, env, reliability):
    site = make_site(visibility_timeout=60, wait_time_seconds=1)
    worker = at_work(site, *[60] * 4, pool="prefork", concurrency=2, prefetch_multiplier=2, env=env)
    site.diary.wait_for("started", 2)
    asked = time.monotonic()
    for number in signals:
        worker.signal_main(number)
        time.sleep(0.5)
    worker.wait_exit()
    seconds = time.monotonic() - asked
    assert seconds < 20
    assert worker.children() == []
    site.proxy.wait_for(lambda _: site.counts() == (4, 0), timeout=5)
    assert site.diary.count("started") == 2
    assert site.diary.count("done") == 0
    assert "Error on" not in worker.log
    reliability("cold shutdown", "2 tasks run, 2 wait", range(4), kept=site.kept, seconds=seconds)


def test_a_soft_shutdown_lets_what_runs_end_in_time(make_site, reliability):
    site = make_site({"worker_soft_shutdown_timeout": 8}, visibility_timeout=2, wait_time_seconds=1)
    worker = at_work(site, 3, pool="prefork")
    worker.signal_main(signal.SIGQUIT)
    worker.wait_exit(30)
    assert site.diary.count("done") == 1
    site.proxy.wait_for(lambda _: site.counts() == (0, 0), timeout=5)
    assert "Error on" not in worker.log
    reliability("soft shutdown", "SIGQUIT; a task of 3 s", [0])


@pytest.mark.parametrize("warm_first", [False, True])
def test_a_cold_shutdown_ends_a_run_that_was_acknowledged_when_it_began(make_site, warm_first):
    site = make_site({"worker_soft_shutdown_timeout": 2}, wait_time_seconds=1)
    site.send("stock_slow", "a", 60)
    worker = site.start(pool="prefork")
    site.diary.wait_for("started")
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    if warm_first:
        worker.terminate()
        worker.wait_for_log("messages given back that had not begun")
        time.sleep(1)  # what was to be drained is
    asked = time.monotonic()
    worker.signal_main(signal.SIGQUIT)
    assert worker.wait_exit() == 1
    assert 2 <= time.monotonic() - asked < 30
    assert worker.children() == []


@pytest.mark.parametrize("size", [1, 100_000], ids=["small", "more than a pipe takes"])
def test_a_soft_shutdown_waits_for_what_begins_just_then(make_site, size):
    site = make_site({"worker_soft_shutdown_timeout": 6}, visibility_timeout=60, wait_time_seconds=1)
    site.send("slow", "x" * size, 1)
    worker = site.start("quitting", pool="prefork")
    worker.wait_exit()
    assert site.diary.count("done") == 1
    site.proxy.wait_for(lambda _: site.counts() == (0, 0), timeout=5)


def test_a_second_sigterm_while_the_last_polls_are_waited_for_gives_no_more_time(make_site):
    site = make_site(visibility_timeout=60, shutdown_timeout=10)
    worker = at_work(site, 60, pool="threads", concurrency=2, env={TOLD: "10"})
    assert "shutdown_timeout is 10 s, but" in worker.log, "a worker that may be killed warns at its start"
    site.proxy.wait_for(lambda _: site.proxy.in_flight("ReceiveMessage"))  # a long poll of 20 seconds
    asked = time.monotonic()
    worker.terminate()
    time.sleep(4)  # of the 4.5 that they are waited for
    worker.terminate()
    assert worker.wait_exit(30) == 0
    assert time.monotonic() - asked < 13.5, "it would be 14 if the timeout began anew"


@pytest.mark.parametrize("pool", POOLS)
def test_a_cold_shutdown_hands_back_what_runs_after_the_soft_timeout(make_site, pool):
    site = make_site({"worker_soft_shutdown_timeout": 3}, visibility_timeout=60, wait_time_seconds=1)
    worker = at_work(site, 60, 60, pool=pool, concurrency=1, prefetch_multiplier=3, env=REMAPPED)
    assert 3 <= seconds_to_end(worker, code=1) < 30, "the runs take 60"
    site.proxy.wait_for(lambda _: site.counts() == (2, 0), timeout=5)
    assert site.diary.count("started") == 1


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_stop_without_a_signal_of_its_own_gives_back_what_has_not_begun(make_site, pool):
    site = make_site(visibility_timeout=60, wait_time_seconds=1, shutdown_timeout=2)
    worker = site.start(pool=pool, concurrency=1, prefetch_multiplier=5)
    hold_more_than_runs(site, 3, seconds=8)
    worker.signal_main(signal.SIGHUP)  # Celery starts anew, when what runs has ended
    site.proxy.wait_for(lambda _: site.counts() == (2, 1), timeout=7)
    assert site.diary.count("done") == 0
    site.diary.wait_for("done", timeout=20)  # it has the time that it takes, and not `shutdown_timeout`


@pytest.mark.parametrize("pool", ["gevent", "eventlet"])
def test_a_cold_shutdown_of_green_pools_loses_nothing(make_site, pool, reliability):
    site = make_site(visibility_timeout=10, wait_time_seconds=1)
    worker = at_work(site, *[30] * 3, pool=pool, concurrency=1, prefetch_multiplier=3)
    time.sleep(0.5)
    worker.signal_main(signal.SIGQUIT)
    worker.wait_exit(30)
    assert site.diary.count("done") == 0
    site.proxy.wait_for(lambda _: site.counts() == (3, 0), timeout=5)
    reliability("cold shutdown of green pools", "SIGQUIT; 1 task runs, 2 wait", range(3), kept=site.kept)


@pytest.mark.prefork_only("other pools have no processes")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGQUIT, 1)])
@pytest.mark.parametrize("runs", [1, 0], ids=["while it runs a task", "while it is idle"])
def test_a_frozen_process_of_the_pool_does_not_keep_a_worker_from_its_end(make_site, number, code, runs):
    site = make_site(visibility_timeout=60, shutdown_timeout=4, wait_time_seconds=1)
    worker = at_work(site, *[60] * runs, concurrency=1) if runs else site.start(concurrency=1)
    (child,) = worker.children()
    os.kill(child, signal.SIGSTOP)
    asked = time.monotonic()
    worker.signal_main(number)
    assert worker.wait_exit(30) == code
    assert time.monotonic() - asked < 4 + 5 + 6, "five for Celery's own end, six for a machine that stalls"
    assert psutil.pid_exists(child) is False
    site.proxy.wait_for(lambda _: site.counts() == (runs, 0), timeout=5)


@pytest.mark.prefork_only("other pools have no processes")
def test_a_frozen_process_that_was_given_a_run_does_not_keep_a_worker_from_its_end(make_site):
    site = make_site(visibility_timeout=60, shutdown_timeout=4, wait_time_seconds=1)
    worker = site.start(concurrency=1)
    (child,) = worker.children()
    os.kill(child, signal.SIGSTOP)
    site.send("quick", "a")
    worker.wait_for_log("] received")
    asked = time.monotonic()
    worker.terminate()
    assert worker.wait_exit(30) == 0
    assert time.monotonic() - asked < 4 + 5 + 6, "five for Celery's own end, six for a machine that stalls"
    assert psutil.pid_exists(child) is False
    site.proxy.wait_for(lambda _: site.counts() == (1, 0), timeout=5)

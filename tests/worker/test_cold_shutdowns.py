"""SIGQUIT, a second Ctrl-C and a soft timeout: what runs is ended, and its message comes back."""

import signal
import time

import pytest

TERM, INT, QUIT = signal.SIGTERM, signal.SIGINT, signal.SIGQUIT
REMAPPED = {"REMAP_SIGTERM": "SIGQUIT"}

#: A visibility timeout in seconds that no test lasts: what is visible was released.
NEVER = 600


def at_work(site, *seconds, runs=1, **options):
    """A worker that has begun so many of tasks that take so many seconds."""
    for key, duration in enumerate(seconds):
        site.send("slow", key, duration)
    worker = site.start(**options)
    site.diary.wait_for("started", runs)
    return worker


@pytest.mark.parametrize(
    ("pool", "signals"),
    [
        *(("prefork", signals) for signals in ([QUIT], [TERM, QUIT], [INT, INT])),
        ("gevent", [QUIT]),
        ("eventlet", [QUIT]),
    ],
)
def test_it_ends_what_runs_and_its_messages_come_back(make_site, pool, signals, reliability):
    site = make_site(visibility_timeout=NEVER, wait_time_seconds=1)
    worker = at_work(site, *[200] * 4, runs=2, pool=pool, concurrency=2, prefetch_multiplier=2)
    asked = time.monotonic()
    for number in signals:
        worker.signal_main(number)
        time.sleep(0.5)
    worker.wait_exit()
    seconds = time.monotonic() - asked
    assert worker.children() == []
    site.proxy.wait_for(lambda _: site.counts() == (4, 0))
    assert site.diary.count("started") == 2
    assert site.diary.count("done") == 0
    assert "Error on" not in worker.log
    fault = "cold shutdown" if pool == "prefork" else "cold shutdown of green pools"
    reliability(fault, "2 tasks run, 2 wait", range(4), kept=site.kept, seconds=seconds)


def test_a_soft_shutdown_lets_what_runs_end_in_time(make_site, reliability):
    site = make_site({"worker_soft_shutdown_timeout": 8}, visibility_timeout=4, wait_time_seconds=1)
    worker = at_work(site, 3, pool="prefork")
    worker.signal_main(QUIT)
    worker.wait_exit()
    assert site.diary.count("done") == 1
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert "Error on" not in worker.log
    reliability("soft shutdown", "SIGQUIT; a task of 3 s", [0])


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent", "eventlet"])
def test_it_hands_back_what_runs_after_the_soft_timeout(make_site, pool):
    site = make_site({"worker_soft_shutdown_timeout": 3}, visibility_timeout=NEVER, wait_time_seconds=1)
    worker = at_work(site, 200, 200, pool=pool, concurrency=1, prefetch_multiplier=3, env=REMAPPED)
    asked = time.monotonic()
    worker.terminate()
    assert worker.wait_exit() == 1
    assert time.monotonic() - asked >= 3
    site.proxy.wait_for(lambda _: site.counts() == (2, 0))
    assert site.diary.count("started") == 1


@pytest.mark.parametrize("warm_first", [False, True])
def test_it_ends_a_run_that_was_acknowledged_when_it_began(make_site, warm_first):
    site = make_site({"worker_soft_shutdown_timeout": 2}, wait_time_seconds=1)
    site.send("stock_slow", "a", 200)
    worker = site.start(pool="prefork")
    site.diary.wait_for("started")
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    if warm_first:
        worker.terminate()
        worker.wait_for_log("messages given back that had not begun")
        time.sleep(1)  # what was to be drained is
    asked = time.monotonic()
    worker.signal_main(QUIT)
    assert worker.wait_exit() == 1
    assert time.monotonic() - asked >= 2
    assert worker.children() == []


@pytest.mark.parametrize("size", [1, 100_000], ids=["small", "more than a pipe takes"])
def test_a_soft_shutdown_waits_for_what_begins_just_then(make_site, size):
    site = make_site({"worker_soft_shutdown_timeout": 6}, visibility_timeout=NEVER, wait_time_seconds=1)
    site.send("slow", "x" * size, 1)
    worker = site.start("quitting", pool="prefork", ready=False)
    worker.wait_exit()
    assert site.diary.count("done") == 1
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))

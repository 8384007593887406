"""A worker ends under its own long poll: what that brings does not wait for a visibility timeout."""

from __future__ import annotations

import os
import pty
import signal
import time

import pytest

#: Seconds in which a task begins that is not hidden, on a machine that stalls; a hidden one takes 120.
BEGINS = 30


def idle_worker(site, **options):
    """A worker whose long poll is open, and nothing else."""
    worker = site.start(**options)
    site.proxy.wait_for(lambda _: site.proxy.in_flight("ReceiveMessage"))
    return worker


@pytest.mark.parametrize(
    ("pool", "wait", "times"),
    [("threads", 20, 1), ("prefork", 5, 3), ("solo", 5, 3), ("gevent", 5, 3), ("eventlet", 5, 3)],
)
def test_what_is_sent_between_two_workers_begins_when_the_second_is_ready(make_site, pool, wait, times):
    site = make_site(visibility_timeout=120, wait_time_seconds=wait)
    worker = idle_worker(site, pool=pool)
    for key in range(times):
        worker.terminate()
        assert worker.wait_exit() == 0
        site.send("quick", key)
        time.sleep(0.5)  # an open poll would take it
        worker = idle_worker(site, pool=pool)
        (started,) = site.diary.wait_for("started", timeout=BEGINS, key=key)
        assert started["sqs"]["receive_count"] == 1
        site.proxy.wait_for(lambda _: site.counts() == (0, 0))


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_what_the_last_poll_brings_is_given_back_at_once(make_site, pool):
    site = make_site(visibility_timeout=120, wait_time_seconds=20)
    worker = idle_worker(site, pool=pool)
    worker.terminate()
    worker.wait_for_log("shutdown: no more polls")
    asked = time.monotonic()
    site.send("quick", "a")
    assert worker.wait_exit() == 0
    assert time.monotonic() - asked < 15, "its poll was over when it had brought the message"
    assert site.counts() == (1, 0)
    assert site.diary.count("started") == 0


TERM, INT, QUIT = signal.SIGTERM, signal.SIGINT, signal.SIGQUIT


@pytest.mark.parametrize(
    ("signals", "at_a_terminal"),
    [([TERM] * 2, False), ([INT] * 2, False), ([TERM, QUIT], False), ([INT], True)],
)
def test_who_signals_twice_or_at_a_terminal_does_not_wait_for_the_poll(make_site, signals, at_a_terminal):
    site = make_site()
    ours, terminal = pty.openpty()
    try:
        worker = idle_worker(site, pool="prefork", **{"stdin": terminal} if at_a_terminal else {})
        asked = time.monotonic()
        for number in signals:
            worker.signal_main(number)
            time.sleep(1)
        worker.wait_exit()
        assert time.monotonic() - asked < 15, "the poll takes 20"
    finally:
        os.close(ours)
        os.close(terminal)


def test_the_wait_for_the_poll_is_part_of_the_shutdown_timeout(make_site):
    site = make_site(shutdown_timeout=3)
    worker = idle_worker(site, pool="threads")
    asked = time.monotonic()
    worker.terminate()
    assert worker.wait_exit() == 0
    assert time.monotonic() - asked < 15, "the poll takes 20"

"""Messages with a far ETA wait in SQS: whatever their time zone, and whatever the queue's redrive policy."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest


def naive(seconds):
    """As `datetime.utcnow() + timedelta(seconds=...)`, which Celery's users write."""
    return datetime.now(timezone.utc).replace(tzinfo=None) + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "settings", [{}, {"timezone": "Asia/Tokyo", "enable_utc": False}], ids=["UTC", "JST"]
)
def test_a_naive_eta_is_utc_and_clean_restarts_until_then_cost_no_attempt(make_site, settings):
    site = make_site(settings, visibility_timeout=5, wait_time_seconds=1)
    eta = naive(40)
    site.app.send_task("work.quick", ["a"], eta=eta)
    for _ in range(2):
        worker = site.start(pool="solo")
        site.proxy.wait_for(lambda _: site.counts() == (0, 1))
        worker.terminate()
        assert worker.wait_exit(30) == 0
    site.start(pool="solo")
    (entry,) = site.diary.wait_for("started", timeout=60)
    assert (entry["retries"], entry["redelivered"]) == (0, False)
    assert datetime.now(timezone.utc) >= eta.replace(tzinfo=timezone.utc)


def test_an_eta_is_not_lost_to_a_redrive_policy_that_allows_one_receive(make_site):
    site = make_site(visibility_timeout=5, wait_time_seconds=1)
    dead = site.create_queue_with_dead_letters(receives=1)
    site.app.send_task("work.quick", ["a"], countdown=40)
    worker = site.start(pool="solo")
    site.proxy.wait_for(lambda _: site.counts() != (1, 0))
    worker.terminate()
    assert worker.wait_exit(30) == 0
    site.start(pool="solo")
    (entry,) = site.diary.wait_for("started", timeout=60)
    assert entry["retries"] == 0
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert site.counts(dead) == (0, 0)

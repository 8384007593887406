"""Messages with a far ETA wait in SQS: whatever their time zone, and whatever the queue's redrive policy."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest


@pytest.mark.parametrize(
    ("settings", "receives"),
    [({}, 10), ({"timezone": "Asia/Tokyo", "enable_utc": False}, 1)],
    ids=["UTC", "JST, and a redrive policy that allows one receive"],
)
def test_a_naive_eta_is_utc_and_clean_restarts_until_then_cost_no_attempt(make_site, settings, receives):
    site = make_site(settings, visibility_timeout=5, wait_time_seconds=1)
    dead = site.create_queue_with_dead_letters(receives)
    eta = datetime.now(timezone.utc) + timedelta(seconds=40)
    site.app.send_task("work.quick", ["a"], eta=eta.replace(tzinfo=None))  # as of `datetime.utcnow()`
    for _ in range(2):
        worker = site.start(pool="solo")
        site.proxy.wait_for(lambda _: site.counts() != (1, 0))
        worker.terminate()
        assert worker.wait_exit(30) == 0
    site.start(pool="solo")
    (entry,) = site.diary.wait_for("started", timeout=60)
    assert (entry["retries"], entry["redelivered"]) == (0, False)
    assert datetime.now(timezone.utc) >= eta
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert site.counts(dead) == (0, 0)

"""Messages with an ETA wait in SQS: whatever their time zone, and whatever the queue's redrive policy."""

import time
from datetime import UTC, datetime, timedelta

import pytest

from celery_sqs_visibility import publish_batch


def seconds_for(site, restarts):
    """Seconds until an ETA that leave time for this number of restarts, each twice as slow as one is now.

    A worker that ends while it holds a message, shortly before the ETA, gives it back, and that is a
    receive. A worker with another visibility timeout knows of a park only if it receives the message before
    the ETA.
    """
    began = time.monotonic()
    worker = site.start(pool="solo")
    worker.terminate()
    assert worker.wait_exit() == 0
    return 10 + 2 * restarts * (time.monotonic() - began)


@pytest.mark.parametrize(
    ("settings", "receives"),
    [({}, 10), ({"timezone": "Asia/Tokyo", "enable_utc": False}, 1)],
    ids=["UTC", "JST, and a redrive policy that allows one receive"],
)
def test_a_naive_eta_is_utc_and_clean_restarts_until_then_cost_no_attempt(make_site, settings, receives):
    site = make_site(settings, visibility_timeout=5, wait_time_seconds=1)
    dead = site.create_queue_with_dead_letters(receives)
    seconds = seconds_for(site, restarts=2)
    eta = datetime.now(UTC) + timedelta(seconds=seconds)  # naive: as of `datetime.utcnow()`
    site.app.send_task("work.quick", ["a"], eta=eta.replace(tzinfo=None), delay_seconds=0)
    for _ in range(2):
        worker = site.start(pool="solo")
        site.proxy.wait_for(lambda _: site.counts() != (1, 0))
        worker.terminate()
        assert worker.wait_exit() == 0
    site.start(pool="solo")
    (entry,) = site.diary.wait_for("started", timeout=seconds + 60)
    assert (entry["retries"], entry["redelivered"]) == (0, False)
    assert datetime.now(UTC) >= eta
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert site.counts(dead) == (0, 0)


@pytest.mark.parametrize("task", ["quick", "stock_slow"])
def test_a_countdown_costs_no_receive_and_its_task_starts_no_earlier(make_site, task):
    site = make_site()
    site.start(pool="solo")
    site.proxy.wait_for(lambda _: site.proxy.in_flight("ReceiveMessage"))
    with site.app.connection_for_write() as connection:  # the first request takes seconds on a busy machine
        connection.default_channel.queue_declare(site.queue, passive=True)
    sent, called = time.time(), time.monotonic()
    site.send(task, "a", *([0] if task == "stock_slow" else []), countdown=5)
    (send,) = site.proxy.calls("SendMessage")
    assert 4 - (send.started - called) <= send.request.get("DelaySeconds", 0) <= 5
    (entry,) = site.diary.wait_for("started")
    assert entry["time"] - sent >= 5
    site.proxy.wait_for(lambda _: site.kept == 0)
    assert len(site.brought()) == 1
    assert site.changes() == []


def test_hundreds_of_etas_take_no_slot_and_few_requests_and_nothing_more_until_their_time(make_site):
    site = make_site(visibility_timeout=30)
    tasks = 300
    with publish_batch(site.app):
        for key in range(tasks):
            site.send("quick", key, countdown=3600, delay_seconds=0)
    site.start(concurrency=10)
    site.proxy.wait_for(lambda _: len(site.changes()) == tasks)
    assert all(3500 < seconds <= 3600 for seconds in site.changes())
    assert sum(len(poll.response["Messages"]) for poll in site.brought()) == tasks
    requests = len(site.brought()) + len(site.proxy.calls("ChangeMessageVisibilityBatch"))
    assert requests < tasks / 2, "two requests for ten messages are ideal"
    before = len(site.proxy.calls())
    site.begin("now")
    site.proxy.wait_for(lambda _: site.counts() == (0, tasks))
    assert len(site.proxy.calls()) - before < 10
    assert site.diary.count("started") == 1


def test_tasks_with_one_eta_start_together_however_many_they_are(make_site):
    site = make_site()
    site.start(pool="threads", concurrency=80)
    eta = datetime.now(UTC) + timedelta(seconds=12.9)
    with publish_batch(site.app):
        for key in range(80):
            site.app.send_task("work.slow", [key, 10], eta=eta, delay_seconds=0)
    times = [entry["time"] for entry in site.diary.wait_for("started", 80)]
    assert max(times) - eta.timestamp() < 5, "Celery starts ten in a second"


def test_a_deploy_with_a_longer_visibility_timeout_costs_a_parked_message_no_attempt(make_site):
    site = make_site(visibility_timeout=5, wait_time_seconds=1)
    seconds = seconds_for(site, restarts=1)
    first = site.start(pool="solo")
    eta = datetime.now(UTC) + timedelta(seconds=seconds)
    site.app.send_task("work.number", ["a", 9], eta=eta, delay_seconds=0)
    site.proxy.wait_for(lambda _: site.changes())
    first.terminate()
    assert first.wait_exit() == 0
    site.config["broker_transport_options"]["visibility_timeout"] = 60
    site.start(pool="solo")
    entries = site.diary.wait_for("started", 4, timeout=seconds + 90)
    site.proxy.wait_for(lambda _: site.kept == 0)
    assert [entry["retries"] for entry in entries] == [0, 1, 2, 3]
    assert datetime.now(UTC) >= eta


def test_a_message_with_a_far_eta_waits_in_sqs_and_starts_at_its_first_attempt(make_site):
    site = make_site(visibility_timeout=6, heartbeat_interval=5)
    site.start()
    sent = time.time()
    site.send("number", "a", countdown=20, delay_seconds=0)
    site.diary.wait_for("done", key="a")
    first, second = site.diary.entries("started", key="a")
    assert first["time"] - sent >= 20
    assert (first["retries"], first["redelivered"]) == (0, False)
    assert (second["retries"], second["redelivered"]) == (1, True)
    assert first["sqs"]["receive_count"] == 2
    parked = site.proxy.calls("ChangeMessageVisibilityBatch")[0]
    assert parked.request["Entries"][0]["VisibilityTimeout"] > 6

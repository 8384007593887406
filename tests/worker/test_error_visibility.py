"""A failed task's message is hidden for a chosen delay, and comes back by itself."""

import pytest
from support.faults import error

from celery_sqs_visibility.policy.polling import FOLLOW_UP_SECONDS

SOFT_LIMITS = pytest.mark.prefork_only("Celery has soft time limits only where there are processes")

#: The delays after each failure, by task. Their keys are the tasks' names.
DELAYS = {
    "number": [2],
    "computed": [1, 2],
    "unpicklable": [1],
    "plain": [3],  # by the transport's option
}


def test_a_failure_without_a_delay_costs_no_request_and_waits_for_the_visibility_timeout(make_site):
    site = make_site(visibility_timeout=6, heartbeat_interval=1)
    site.start()
    site.send("plain", "a")
    site.diary.wait_for("done", key="a")
    first, second = site.diary.entries("started", key="a")
    assert second["time"] - first["sqs"]["first_receive_time"] >= 6
    assert site.changes() == []


def test_the_message_is_hidden_for_the_delay_of_the_task_or_else_of_the_transport(make_site):
    site = make_site(visibility_timeout=600, error_visibility_timeout=3)
    site.start(concurrency=4)
    for task in DELAYS:
        site.send(task, task)
    for task, delays in DELAYS.items():
        site.diary.wait_for("done", key=task)
        for gap, delay in zip(site.gaps(task), delays, strict=True):
            assert gap >= delay, task
    assert sorted(site.changes()) == sorted(delay for delays in DELAYS.values() for delay in delays)


@pytest.mark.parametrize(
    ("task", "events", "retries"),
    [
        ("prepared", ["preparing", "preparing", "calling", "preparing", "started", "done"], [2]),
        pytest.param("softly_limited", ["started", "limit", "started", "done"], [0, 1], marks=SOFT_LIMITS),
    ],
)
def test_a_failure_before_the_run_in_a_call_of_the_users_own_or_by_a_soft_time_limit_comes_back(
    make_site, task, events, retries
):
    site = make_site()
    site.start()
    site.send(task, "a")
    site.diary.wait_for("done", key="a")
    assert [entry["event"] for entry in site.diary.entries()] == events
    assert [entry["retries"] for entry in site.diary.entries("started")] == retries
    assert site.changes() == [1] * retries[-1]


def test_a_retry_hides_the_same_message_once_it_can_or_goes_to_another_queue(make_site):
    site = make_site()
    other = f"{site.queue}-other"
    site.start(queues=[site.queue, other])
    site.proxy.inject(error("RequestThrottled"), "ChangeMessageVisibilityBatch", times=2)
    site.app.send_task("work.retrying", ("here",), {"countdown": 1})
    site.diary.wait_for("done", key="here")
    assert site.changes() == [1, 1, 1], "what fails is tried again"
    assert site.proxy.count("SendMessage") == 1
    site.app.send_task("work.retrying", ("there",), {"queue": other})
    site.diary.wait_for("done", key="there")
    queues = [entry["sqs"]["queue"] for entry in site.diary.entries("started", key="there")]
    assert queues == [site.queue, other]


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent", "eventlet"])
def test_the_task_knows_which_delivery_it_runs(make_site, pool):
    site = make_site()
    site.start(pool=pool)
    result = site.send("number", "a")
    site.diary.wait_for("done", key="a")
    first, second = site.diary.entries("started", key="a")
    assert (first["retries"], first["redelivered"], first["sqs"]["receive_count"]) == (0, False, 1)
    assert (second["retries"], second["redelivered"], second["sqs"]["receive_count"]) == (1, True, 2)
    assert first["sqs"]["message_id"] == second["sqs"]["message_id"]
    assert first["sqs"]["queue"] == site.queue
    assert first["sqs"]["first_receive_time"] == second["sqs"]["first_receive_time"] <= first["time"]
    assert first["id"] == second["id"] == result.id
    assert not first["headers"]
    assert site.changes() == [2]


def test_no_sleep_of_ten_minutes_delays_a_retry_or_a_shutdown(make_site):
    site = make_site(polling_interval=600, wait_time_seconds=0)
    site.send("number", "a")
    worker = site.start()
    site.diary.wait_for("failing", key="a")
    polls_before = site.proxy.count("ReceiveMessage", site.queue)
    site.diary.wait_for("done", key="a")
    (gap,) = site.gaps("a")
    assert gap >= 2
    # One poll brings it back; one or two more find out that the queue is empty after a message was found.
    assert site.proxy.count("ReceiveMessage", site.queue) - polls_before <= 3 + len(FOLLOW_UP_SECONDS)
    worker.terminate()
    assert worker.wait_exit() == 0

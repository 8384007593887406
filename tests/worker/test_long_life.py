"""Children come and go, and use nothing of their worker's: no lock, no client, no thread."""

import os
import signal
import time
from collections import Counter

import pytest

pytestmark = pytest.mark.prefork_only("there are no children")

A_WORKERS_OWN = {
    "GetQueueUrl",
    "CreateQueue",
    "GetQueueAttributes",
    "ReceiveMessage",
    "DeleteMessageBatch",
    "ChangeMessageVisibilityBatch",
}


def deliveries(site):
    """How often SQS handed out each message: to polls that overlap, moto now and then gives one twice."""
    polls = site.proxy.calls("ReceiveMessage", queue=site.queue)
    return Counter(message["MessageId"] for poll in polls for message in poll.response.get("Messages", []))


@pytest.mark.timeout(240)  # a child that leaves takes a second for it (billiard/pool.py: `_do_exit`)
def test_a_child_for_every_task_under_load_runs_each_delivery_once_and_publishes_with_a_client_of_its_own(
    make_site,
):
    # Three receivers, the heartbeat and the settlers are busy in the parent while it forks.
    site = make_site(visibility_timeout=30, heartbeat_interval=28, wait_time_seconds=0)
    tasks = 50
    for key in range(tasks):
        site.send("publishing", key)
    site.proxy.clear()
    idle = [f"{site.queue}-idle", f"{site.queue}-idle-too"]
    for name in idle:
        site.sqs.create_queue(QueueName=name)
    worker = site.start(concurrency=6, queues=[site.queue, *idle], extra_args=["--max-tasks-per-child=1"])
    site.diary.wait_for("started", 2 * tasks, timeout=200)
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    started = site.diary.entries("started")
    published = {f"published by {key}" for key in range(tasks)}
    assert {entry["key"] for entry in started} == published.union(range(tasks))
    assert Counter(entry["sqs"]["message_id"] for entry in started) == deliveries(site)
    assert len({entry["pid"] for entry in started}) == len(started)
    assert {call.action for call in site.proxy.calls()} <= A_WORKERS_OWN | {"SendMessage"}
    assert {call.status for call in site.proxy.calls()} == {200}
    worker.terminate()
    assert worker.wait_exit() == 0
    assert "Traceback" not in worker.log


def test_a_child_has_no_thread_of_ours_and_asks_sqs_for_nothing(make_site):
    site = make_site(visibility_timeout=60, wait_time_seconds=0, polling_interval=0.2)
    worker = site.start(concurrency=1, extra_args=["--max-tasks-per-child=1"])
    for key in range(2):  # the second child is forked when all threads of the worker run
        site.send("looking_around", key)
    looked = site.diary.wait_for("looked", 2)
    assert [entry["threads"] for entry in looked] == [["MainThread"]] * 2
    site.send("slow", "alone", 4)
    site.diary.wait_for("started", key="alone")
    os.kill(worker.pid, signal.SIGSTOP)
    frozen = time.monotonic() + 1  # what the stopped process had sent may still be arriving
    site.diary.wait_for("done", key="alone")
    assert [call.action for call in site.proxy.calls() if call.started > frozen] == []
    os.kill(worker.pid, signal.SIGCONT)
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert site.diary.count("started", key="alone") == 1

"""Publishing many: exact numbers of requests, what goes wrong on the way, a worker that runs each once."""

import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from celery import chord, group
from support.app import behind
from support.faults import fail_entries, hold_request
from support.processes import SOON
from support.worker import environment

from celery_sqs_visibility import publish_batch
from celery_sqs_visibility.core import pending

SENDS = "SendMessage"
BATCHES = "SendMessageBatch"


@pytest.fixture
def site(make_site, monkeypatch):
    """One that knows its queue, so that only publications are counted, in batches that wait to be full."""
    monkeypatch.setattr(pending, "LINGER_SECONDS", 60.0)
    site = make_site(wait_time_seconds=1)
    site.send("quick", "first")
    site.sqs.purge_queue(QueueUrl=site.url)
    site.proxy.clear()
    return site


def signature(site, *args, task="quick", **options):
    return site.app.signature(f"work.{task}", args, **options)


def requests(site):
    return Counter(call.action for call in site.proxy.calls())


def run_all(site, count):
    """Have a worker run everything; how often each key was run."""
    site.start(concurrency=2, prefetch_multiplier=5)
    site.diary.wait_for("started", count)
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    return Counter(entry["key"] for entry in site.diary.entries("started"))


def test_in_a_block_ten_tasks_are_one_request_of_threads_that_join_too_and_each_is_run_once(site):
    def send_joining(key):
        with batch.joined():
            return site.send("quick", key)

    signature(site, "a").delay()
    assert requests(site) == {SENDS: 1}
    with publish_batch(site.app) as batch, ThreadPoolExecutor(8) as pool:
        results = [site.send("quick", key) for key in range(100)]
        results += pool.map(send_joining, range(100, 300))
        pool.submit(site.send, "quick", "another request's").result()
        assert site.proxy.count(SENDS) == 2
    assert requests(site) == {BATCHES: 30, SENDS: 2}
    assert len({result.id for result in results}) == 300
    assert run_all(site, 302) == dict.fromkeys([*range(300), "a", "another request's"], 1)


def test_groups_chords_and_chunks_share_batches(site):
    @site.app.task(name="work.quick", shared=False)
    def quick(key):
        return key

    with publish_batch(site.app):
        group(signature(site, key) for key in range(7)).apply_async()
        quick.chunks([(key,) for key in range(20)], 10).apply_async()
        chord([signature(site, key) for key in range(4)], app=site.app)(signature(site, "body"))
    # 7 + 2 + 4, and the task by which Celery joins a chord on a backend of files.
    assert requests(site) == {BATCHES: 2}
    assert sum(len(call.request["Entries"]) for call in site.proxy.calls(BATCHES)) == 14


def test_a_task_may_publish_many(site):
    site.send("publishing_many", "many", 20)
    assert run_all(site, 21) == {"many": 1, **dict.fromkeys(range(20), 1)}
    assert site.proxy.count(BATCHES) in (2, 3)  # a child that stalls for a second sends what it has
    assert site.proxy.count(SENDS) == 1


@pytest.mark.parametrize(
    ("task", "published", "logged"),
    [
        ("replaced_in_a_block", ["with a", "in place of a"], []),
        ("retried_with_other_arguments_in_a_block", ["with a", "a again"], []),
        ("rejected_in_a_block", ["with a"], []),
        # Its own retry stands, with its delay, and publishes no more.
        ("retried_in_a_block", [], ["1 of 1 messages could not be sent"]),
    ],
    ids=["Ignore", "Retry", "Reject", "a retry of the same message"],
)
def test_a_task_that_ends_by_a_predicate_comes_back_while_its_messages_could_not_be_sent(
    site, task, published, logged
):
    site.proxy.inject(fail_entries("InvalidMessageContents"), BATCHES, times=1)
    site.send(task, "a")
    worker = site.start()
    site.diary.wait_for("started", 2, key="a")
    for key in published:
        site.diary.wait_for("started", key=key)
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert site.diary.count("started", key="a") == 2
    assert site.changes()[:1] == [1]
    assert all(text in worker.log for text in logged)


PUBLISHER = """
import time
from celery_sqs_visibility import publish_batch
from celery_sqs_visibility.core import pending as backlog
from support.app import make_app

backlog.LINGER_SECONDS = 60.0
app = make_app("publisher")
with publish_batch(app):
    for number in range(13):
        app.send_task("work.quick", (number,), task_id=f"task-{number}")
    time.sleep(60)
"""


@pytest.fixture
def publisher(site):
    """A process that has published 13 messages: a full batch, and one that waits for the end of the block."""
    env = environment(behind(site.proxy.url, site.config))
    command = [sys.executable, "-c", PUBLISHER]
    process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
    site.proxy.wait_for_calls(BATCHES)
    yield process
    process.kill()
    process.communicate()


def test_ctrl_c_sends_what_was_published_and_a_second_one_tells_what_was_not(site, publisher):
    site.proxy.inject(hold_request(SOON), BATCHES)
    publisher.send_signal(signal.SIGINT)
    site.proxy.wait_for(lambda _: site.proxy.in_flight(BATCHES))
    publisher.send_signal(signal.SIGINT)
    _, errors = publisher.communicate(timeout=SOON)
    assert publisher.returncode == -signal.SIGINT
    assert "3 of 13 messages were not sent yet: task-10, task-11, task-12" in errors

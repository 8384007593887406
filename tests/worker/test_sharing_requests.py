"""Threads and greenlets that publish at the same time: exact messages, few requests, an error for each."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.app import CONFIG_VARIABLE, behind, encode_config
from support.faults import error, fail_entries, hold_request, latency, lose_response
from support.processes import SOON

from celery_sqs_visibility import AnswerLostError, ThrottledError
from celery_sqs_visibility.events import SQSRequest, subscribe

SENDS = "SendMessage"
BATCHES = "SendMessageBatch"
THREADS = 16

#: A round trip in which all threads get to publish, on a busy machine too.
LONG = latency(0.2)


@pytest.fixture
def make_known(make_site):
    """`make_known(**transport_options)`: a producer that knows its queue."""

    def make(**options):
        site = make_site(**options)
        site.send("quick", "first")
        site.sqs.purge_queue(QueueUrl=site.url)
        site.proxy.clear()
        return site

    return make


def requests(site):
    return Counter(call.action for call in site.proxy.calls() if call.action in (SENDS, BATCHES))


def publish(site, threads, tasks, **options):
    """The exception of each publication, or `None`."""

    def one(number):
        try:
            site.app.send_task("work.quick", (number,), **options)
        except Exception as error:  # noqa: BLE001 - the caller looks at it
            return error
        return None

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(one, range(tasks)))


def test_sixteen_threads_make_a_fifth_of_the_requests_and_each_message_is_stored_once(make_known):
    site = make_known()
    with site.proxy.inject(LONG):
        assert publish(site, THREADS, 320) == [None] * 320
    assert site.kept == 320
    assert requests(site).total() <= 0.2 * 320


@pytest.fixture
def together(make_known):
    """`together(fault)`: three publications that share a request which meets the fault; what each raised."""
    site = make_known()

    def run(fault, times=1, **options):
        site.proxy.inject(fault, BATCHES, times=times)
        held = threading.Event()
        with site.proxy.inject(hold_request(held), SENDS, times=1), ThreadPoolExecutor(4) as pool:
            first = pool.submit(publish, site, 1, 1)
            site.proxy.wait_for(lambda _: site.proxy.in_flight(SENDS))
            others = pool.submit(publish, site, 3, 3, **options)
            (traffic,) = site.app.connection_for_write().transport.context.send.__self__._traffic.values()
            site.proxy.wait_for(lambda _: len(traffic.waiting) == 3)
            held.set()
            assert first.result(SOON) == [None]
            return others.result(SOON)

    return site, run


@pytest.mark.parametrize(
    ("fault", "kept"),
    [
        pytest.param(error("RequestThrottled"), 4, id="throttled"),
        pytest.param(error("InternalError", 500), 4, id="5xx"),
        pytest.param(fail_entries("InternalError", sender_fault=False, positions={1}), 4, id="one fails"),
        pytest.param(error("InvalidMessageContents"), 4, id="one is wrong, and nobody says which"),
        # At least once is all SQS promises.
        pytest.param(lose_response(), 7, id="the answer is lost"),
    ],
)
def test_what_passes_is_sent_again_by_each_and_nothing_else_is(together, fault, kept):
    site, run = together
    assert run(fault) == [None] * 3
    assert site.kept == kept


@pytest.mark.parametrize(
    ("fault", "kinds"),
    [
        (error("RequestThrottled"), [ThrottledError] * 3),
        (lose_response(), [AnswerLostError] * 3),
        (fail_entries("ThrottlingException", sender_fault=False, positions={2}), [ThrottledError]),
    ],
)
def test_without_retries_each_has_its_own_error(together, fault, kinds):
    _, run = together
    raised = [each for each in run(fault, retry=False) if each is not None]
    assert [type(each.__cause__) for each in raised] == kinds


def test_each_request_is_an_event(together):
    site, run = together
    heard = []
    unsubscribe = subscribe(
        lambda event: heard.append((event.action, event.outcome, event.queue)), SQSRequest
    )
    try:
        assert (
            run(fail_entries("InternalError", sender_fault=False, positions={1}), retry=False).count(None)
            == 2
        )
    finally:
        unsubscribe()
    assert [each for each in heard if each[0].startswith(SENDS)] == [
        (SENDS, "ok", site.queue),
        (BATCHES, "ok", site.queue),
    ]


def test_a_fifo_queue_keeps_the_order_of_each_thread_and_drops_duplicates(make_fifo_site):
    site = make_fifo_site()

    def publish_in_turn(thread):
        for number in range(8):
            again = f"{thread} {number - number % 4}" if number % 4 == 1 else f"{thread} {number}"
            site.app.send_task(
                "work.quick", (100 * thread + number,), MessageGroupId="g", MessageDeduplicationId=again
            )

    with site.proxy.inject(LONG), ThreadPoolExecutor(8) as pool:
        list(pool.map(publish_in_turn, range(8)))
    assert requests(site)[BATCHES] > 0
    seen = taken(site)
    assert Counter(seen) == Counter(100 * t + n for t in range(8) for n in (0, 2, 3, 4, 6, 7))
    for thread in range(8):
        of_thread = [number for number in seen if number // 100 == thread]
        assert of_thread == sorted(of_thread)


def taken(site):
    """Take what is in the queue, in order."""
    seen = []
    while site.kept:
        for message in site.sqs.receive_message(QueueUrl=site.url, MaxNumberOfMessages=10)["Messages"]:
            site.sqs.delete_message(QueueUrl=site.url, ReceiptHandle=message["ReceiptHandle"])
            seen.append(
                int(json.loads(base64.b64decode(message["Body"]))["headers"]["argsrepr"].strip("(,)"))
            )
    return seen


FORK = """
import os, sys, threading
from support.app import make_app

app = make_app("publisher")
app.send_task("work.quick", ("first",))
print("ready", flush=True)
sys.stdin.readline()
thread = threading.Thread(target=app.send_task, args=("work.quick", ("of the parent",)))
thread.start()
sys.stdin.readline()
if not (pid := os.fork()):
    app.send_task("work.quick", ("of the child",))
    print("child done", flush=True)
    os._exit(0)
_, status = os.waitpid(pid, 0)
thread.join()
sys.exit(status)
"""

GREENLETS = {
    "gevent": """
import gevent.monkey
gevent.monkey.patch_all()
from gevent import spawn
wait = gevent.wait
""",
    "eventlet": """
import eventlet
eventlet.monkey_patch()
from eventlet import spawn
def wait(greenlets):
    for each in greenlets:
        each.wait()
""",
}

PUBLISHER = """
from support.app import make_app

app = make_app("publisher")
app.conf.broker_pool_limit = 16

def publish(name):
    for number in range(10):
        app.send_task("work.quick", (f"{name} {number}",))

app.send_task("work.quick", ("first",))
wait([spawn(publish, name) for name in range(16)])
"""


def start(site, program):
    environment = {
        **os.environ,
        CONFIG_VARIABLE: encode_config(behind(site.proxy.url, site.config)),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", program],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_child_that_is_forked_while_its_parent_publishes_waits_for_nothing_of_it(make_known):
    site = make_known()
    process = start(site, FORK)
    try:
        assert process.stdout.readline() == "ready\n"
        held = threading.Event()
        with site.proxy.inject(hold_request(held), SENDS, times=1):
            tell(process)
            site.proxy.wait_for(lambda _: site.proxy.in_flight(SENDS))
            tell(process)
            assert process.stdout.readline() == "child done\n"
            held.set()
        process.communicate(timeout=SOON)
        assert process.returncode == 0
        assert site.kept == 3
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("library", GREENLETS)
def test_greenlets_share_requests(make_known, library):
    site = make_known()
    with site.proxy.inject(LONG):
        process = start(site, GREENLETS[library] + PUBLISHER)
        process.communicate(timeout=2 * SOON)
    assert process.returncode == 0
    assert site.kept == 161
    assert requests(site).total() <= 0.2 * 161


KILLED = """
import sys
from support.app import make_app

app = make_app("publisher")
app.send_task("work.quick", ("first",))
traffic = app.connection_for_write().transport.context.send.__self__._traffic

def publish(name):
    app.send_task("work.quick", (name,), retry=False)

def spawn_in_turn(name, waiting):
    greenlet = spawn(publish, name)
    while [len(each.waiting) for each in traffic.values()] != [waiting]:
        gevent.sleep(0.001)
    return greenlet

print("ready", flush=True)
tell = lambda: gevent.get_hub().threadpool.apply(sys.stdin.readline)
tell()
alone, leader, *others = [spawn_in_turn(name, number) for number, name in enumerate("abcd")]
print("waiting", flush=True)
tell()
leader.kill()
wait([alone, *others])
assert not traffic
print(*(type(each.exception.__cause__).__name__ for each in others), flush=True)
"""


def test_a_greenlet_that_is_killed_while_it_sends_for_others_leaves_none_waiting(make_known):
    site = make_known()
    process = start(site, GREENLETS["gevent"] + KILLED)
    try:
        assert process.stdout.readline() == "ready\n"
        first, second = threading.Event(), threading.Event()
        site.proxy.inject(hold_request(first), SENDS, times=1)
        site.proxy.inject(hold_request(second), BATCHES, times=1)
        tell(process)
        assert process.stdout.readline() == "waiting\n"
        first.set()
        site.proxy.wait_for(lambda _: site.proxy.in_flight(BATCHES))
        tell(process)
        assert process.stdout.readline() == "AnswerLostError AnswerLostError\n"
        second.set()
        process.communicate(timeout=SOON)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def tell(process):
    process.stdin.write("\n")
    process.stdin.flush()

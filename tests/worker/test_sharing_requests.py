"""Threads and greenlets that publish at the same time: exact messages, few requests, an error for each."""

import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.app import behind
from support.faults import hold_request, latency
from support.processes import SOON
from support.worker import environment

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
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", program],
        env=environment(behind(site.proxy.url, site.config)),
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

"""A small message that unfolds to gigabytes ends no worker, and what is within the bounds takes little."""

import resource
import zlib
from pathlib import Path

import msgpack
import pytest
from support.badmessages import encoded, envelope
from support.processes import SOON, wait_until

from celery_sqs_visibility.delivery.settle.dead_letters import described
from celery_sqs_visibility.policy.message_limits import MAX_CONTAINERS
from celery_sqs_visibility.policy.options import DECOMPRESSED_BYTES
from celery_sqs_visibility.policy.quotas import MESSAGE_BYTES

#: What a worker should have left for a message.
LEFT_MEGABYTES = 450

#: What a small container has.
WORKER_BYTES = 1_200 * MESSAGE_BYTES


def made_bomb():
    """64 MiB, in 86 KB of base64, as kombu compresses."""
    return zlib.compress(b"[" + b"{}," * (64 * MESSAGE_BYTES // 3 - 10) + b"{}]", 9)


def compressed(content, **more):
    """A message in the queue with that content."""
    headers = {"compression": "gzip", "task": "work.quick"}
    return encoded(envelope(zlib.compress(content, 9), headers=headers, **more))


def start_limited(site, pool):
    """A worker none of whose processes gets more memory."""
    worker = site.start(ready=False, pool=pool)
    resource.prlimit(worker.pid, resource.RLIMIT_DATA, (WORKER_BYTES, WORKER_BYTES))
    return worker.wait_ready()


def take_letters(sqs, url):
    answer = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"])
    return [described(letter["MessageAttributes"])["reason"] for letter in answer.get("Messages", [])]


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_bomb_of_86_kb_is_a_dead_letter_and_ends_nothing(make_site, sqs, pool, reliability):
    site = make_site(wait_time_seconds=2)
    dead_url = site.create_queue_with_dead_letters(receives=3)
    worker = start_limited(site, pool)
    children = worker.children()
    bomb = made_bomb()
    assert len(compressed(bomb)) < 200_000
    site.begin("before")
    sqs.send_message(QueueUrl=site.url, MessageBody=encoded(envelope(bomb, headers={"compression": "gzip"})))
    keys = [f"{number}" for number in range(10)]
    for key in keys:
        site.send("quick", key)
    for key in keys:
        site.diary.wait_for("started", key=key)
    wait_until(lambda: site.counts(dead_url)[0] == 1, SOON, lambda: f"{site.counts()}: {worker.log[-3000:]}")
    (reason,) = take_letters(sqs, dead_url)
    assert reason == f"it is larger than {DECOMPRESSED_BYTES} bytes when decompressed (gzip)"
    assert worker.running
    assert worker.children() == children
    reliability("a bomb", "86 KB of gzip, 64 MiB of `{},`; a worker with 1.2 GB", keys, ended="started")


def filled(unit):
    """A list that is as large as may be, of one item again and again."""
    return b"[" + unit * ((DECOMPRESSED_BYTES - 1000) // len(unit)) + b"0]"


def as_body(content):
    """The JSON of a task's body, with more in it than the task needs."""
    return b'[["worst"], {}, {"junk": ' + content + b"}]"


def messagepack(junk):
    return msgpack.packb([["worst"], {}, {"junk": junk}])


JSON = "application/json"

#: The most memory for content within the bounds: its content type, and the body.
WORST = {
    "objects": (JSON, lambda: as_body(b"[" + b'{"a":0},' * (MAX_CONTAINERS - 10) + b"0]")),
    "short texts": (JSON, lambda: as_body(filled(b'"ab",'))),
    "numbers": (JSON, lambda: as_body(filled(b"999,"))),
    "texts of MessagePack": (
        "application/x-msgpack",
        lambda: messagepack(["ab"] * ((DECOMPRESSED_BYTES - 1000) // 3)),
    ),
    "YAML": ("application/x-yaml", lambda: b'[["worst"], {}, {"junk": [' + b"[]," * 49_900 + b"0]}]"),
}


def peak(pid):
    """Most megabytes that a process has had in memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


@pytest.mark.parametrize("name", WORST)
def test_the_worst_that_is_within_the_bounds(make_site, sqs, name):
    site = make_site({"accept_content": ["json", "yaml", "msgpack"]}, wait_time_seconds=2)
    site.create_queue()
    worker = start_limited(site, "prefork")
    site.begin("before")
    pids = [worker.pid, *worker.children()]
    before = [peak(pid) for pid in pids]
    kind, content = WORST[name]
    body = compressed(content(), **{"content-type": kind})
    sqs.send_message(QueueUrl=site.url, MessageBody=body)
    site.diary.wait_for("started", key="worst")
    wait_until(lambda: site.kept == 0, SOON, lambda: worker.log[-3000:])
    grown = [round(peak(pid) - was) for pid, was in zip(pids, before, strict=True)]
    # Of a message that runs a pool's process has two: one of its body, and one that Celery pickles.
    assert max(grown) < LEFT_MEGABYTES, grown

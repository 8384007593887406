"""What is no task neither harms the worker, nor delays tasks, nor is lost."""

import base64
import bz2
import json
import lzma
import time
import zlib
from collections import Counter

import msgpack
import pytest
from celery import Celery
from support import badmessages
from support.badmessages import body_of, encoded, envelope, generated, nested, old_body
from support.processes import SOON, wait_until

from celery_sqs_visibility.delivery.settle.dead_letters import described
from celery_sqs_visibility.policy.options import DECOMPRESSED_BYTES
from celery_sqs_visibility.policy.quotas import MESSAGE_BYTES


def send(sqs, url, bodies):
    """Send them all in batches; the ids that SQS gave them."""
    ids = []
    for start in range(0, len(bodies), 10):
        entries = [{"Id": str(i), "MessageBody": body} for i, body in enumerate(bodies[start : start + 10])]
        answer = sqs.send_message_batch(QueueUrl=url, Entries=entries)
        assert not answer.get("Failed")
        ids += [entry["MessageId"] for entry in sorted(answer["Successful"], key=lambda e: int(e["Id"]))]
    return ids


def good(key):
    return encoded(envelope(body_of([key]), headers={"id": f"good-{key}"}))


def take(sqs, url):
    """Take the letters out of a dead-letter queue: message id to reason, and to body."""
    reasons, bodies = {}, {}
    while messages := sqs.receive_message(
        QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"], WaitTimeSeconds=0
    ).get("Messages"):
        for message in messages:
            said = described(message["MessageAttributes"])
            name = said["message_id"]
            assert name not in reasons, "moved twice"
            reasons[name] = said["reason"]
            bodies[name] = message["Body"]
        sqs.delete_message_batch(
            QueueUrl=url,
            Entries=[{"Id": str(i), "ReceiptHandle": m["ReceiptHandle"]} for i, m in enumerate(messages)],
        )
    return reasons, bodies


def test_without_a_dead_letter_queue_hundreds_are_hidden_told_once_and_kept(make_site, sqs, reliability):
    # Long enough for a slow moto to hand out all of them before the first is back.
    site = make_site(visibility_timeout=60, error_visibility_timeout=20, wait_time_seconds=2)
    url = site.create_queue()
    # What is a task but fails is deleted when it has failed for good, as in Celery.
    bodies = [body for body in generated(badmessages.NO_TASKS, 200) if body.strip()]
    worker = site.start()
    children = sorted(worker.children())
    ids = send(sqs, url, [*bodies, good("after")])[:-1]
    site.diary.wait_for("started", key="after")
    received = Counter()

    def all_came_back(calls):
        received.clear()
        for call in calls:
            if call.action == "ReceiveMessage":
                received.update(m["MessageId"] for m in (call.response or {}).get("Messages", []))
        return all(received[message] >= 2 for message in ids)

    site.proxy.wait_for(all_came_back)
    site.proxy.wait_for(lambda _: site.counts() == (0, len(ids)))
    assert site.proxy.count("SendMessage") == 0
    assert set(site.changes()) <= {20}
    for message in ids:
        assert sum(message in line for line in worker.log.splitlines()) == 1
    assert site.diary.count("started") == 1
    assert max(received.values()) <= 1 + seconds_since_the_first(site) / 20
    assert worker.running
    assert sorted(worker.children()) == children
    reliability("bad messages, no redrive policy", "hidden for 20 s at a time", ids, kept=site.kept)


def seconds_since_the_first(site):
    """From the first receive that brought something until now."""
    return time.monotonic() - next(
        call.started for call in site.proxy.calls("ReceiveMessage") if call.response.get("Messages")
    )


#: The one that is a task, and fails.
TASK = "arguments of another task"


def with_headers(**headers):
    return encoded(envelope(body_of(), headers=headers))


def with_part(name, value):
    return encoded({**envelope(body_of()), name: value})


def of_a_stock_client(**options):
    """What Celery sends by another transport, in kombu's format for SQS."""
    with Celery(broker="memory://", set_as_current=False) as app, app.connection_for_write() as connection:
        app.send_task("work.quick", ["stock"], connection=connection, queue="stock", **options)
        return encoded(connection.default_channel._get("stock"))


def bomb(method, body):
    """More than may be in a body, compressed."""
    return encoded(envelope(body, headers={"compression": method})), TOO_LARGE


GZIP = {"compression": "gzip"}
TOO_LARGE = f"larger than {DECOMPRESSED_BYTES} bytes when decompressed"
NEITHER = "neither a JSON object nor base64 of one"
TOO_DEEP = "nested more than 400 levels deep"
NOT_LIMITS = "'timelimit' should be"
UNDECODABLE = "cannot be decoded"
UNKNOWN = "task 'no.such' is not registered"
NOT_AN_ID = "'id' should be text without control characters, and is "
FAR = "9999-12-31T00:00:00+00:00"
OF_AN_ENCODING = {"content-type": "application/data", "content-encoding": "zlib"}
AT_THE_LIMIT = "unknown task, at the size limit"
LARGE = envelope(body_of(), headers={"task": "no.such"})
LARGE["body"] = "x" * (MESSAGE_BYTES - len(json.dumps(LARGE)) - 10_000)
del LARGE["properties"]["body_encoding"]


def each_kind():
    """A body, and what the reason of its dead letter says; more are in `unit/worker/test_validation.py`.

    Made when the test runs: bombs take long to compress.
    """
    return {
        "not base64": ("§ no base64 §", NEITHER),
        "base64 of something": (base64.b64encode(b"\xff\x00\xfe").decode(), NEITHER),
        "not JSON": ("{not JSON}", "its body is not JSON"),
        "not JSON in base64": (base64.b64encode(b"not JSON").decode(), "its body is not JSON"),
        "JSON of somebody": ('{"a": 1}', "has no 'properties'"),
        "SNS": (json.dumps(badmessages.SNS), "its body is an SNS message (raw message delivery is off)"),
        "no headers": (encoded(badmessages.without("headers")), "its headers name no task"),
        "no id": (encoded(badmessages.without("headers", "id")), "'id' is missing"),
        "headers of a wrong type": (with_part("headers", [1]), "its headers should be a JSON object"),
        "unknown task": (with_headers(task="no.such"), UNKNOWN),
        AT_THE_LIMIT: (json.dumps(LARGE), UNKNOWN),
        "content not accepted": (
            with_part("content-type", "application/x-python-serialize"),
            "Refusing to deserialize untrusted content of type pickle",
        ),
        "content of no type": (with_part("content-type", 5), "its content-type should be text"),
        "retries": (with_headers(retries="abc"), "'retries' should be a number"),
        "time limit": (with_headers(timelimit=["1", 2]), NOT_LIMITS),
        "id": (with_headers(id={"a": 1}), "'id' should be text"),
        "stamps": (with_headers(stamped_headers=[[1]]), "'stamped_headers' should be"),
        "chain": (
            encoded(envelope(body_of(embedded={"chain": [{"task": 5}]}))),
            "'chain' should be a list of signatures",
        ),
        "body": (encoded(envelope(b"\xff\xfe")), f"its content {UNDECODABLE}"),
        "body_encoding": (encoded(envelope(body_of(), properties={"body_encoding": "base65"})), UNDECODABLE),
        "deep headers": (
            '{"properties": {}, "headers": {"x": ' + nested(300) + "}}",
            "nested more than 100 levels deep",
        ),
        "deep arguments": (encoded(envelope(f'[["k", {nested(5000)}], {{}}, {{}}]'.encode())), TOO_DEEP),
        "deep body": ("{" + '"a":[' + "[" * 10**6, "it holds 1,000,002 lists and objects"),
        "protocol 1": (encoded(envelope(old_body(timelimit="ab"), protocol=1)), NOT_LIMITS),
        "protocol 1 without an id": (encoded(envelope(old_body(id=None), protocol=1)), "'id' is missing"),
        "gzip bomb": bomb("gzip", zlib.compress(bytes(5 * DECOMPRESSED_BYTES), 9)),
        "bomb of empty objects": (
            encoded(
                envelope(zlib.compress(b"[" + b"{}," * (64 * MESSAGE_BYTES // 3) + b"{}]", 9), headers=GZIP)
            ),
            TOO_LARGE,
        ),
        "bomb of fewer": (
            encoded(envelope(zlib.compress(b"[" + b"{}," * 1_000_000 + b"{}]", 9), headers=GZIP)),
            "it holds 1,000,002 lists and objects, and 500,000 are read",
        ),
        "bzip2 bomb": bomb("bzip2", bz2.compress(bytes(DECOMPRESSED_BYTES + 1))),
        "xz bomb": bomb("xz", lzma.compress(bytes(DECOMPRESSED_BYTES + 1), preset=0)),
        "bomb of an encoding": (
            encoded({**envelope(zlib.compress(bytes(10**6))), **OF_AN_ENCODING}),
            "its content-encoding 'zlib' is not a text encoding",
        ),
        "compression of no kind": (with_headers(compression="zap"), f"{UNDECODABLE}: KeyError('zap')"),
        "an ETA in the year 9999": (with_headers(eta=FAR), f"its ETA, {FAR}, is "),
        "protocol 1, an ETA in the year 9999": (
            encoded(envelope(old_body(eta=FAR), protocol=1)),
            f"its ETA, {FAR}, is ",
        ),
        "protocol 1, an unknown task": (encoded(envelope(old_body(task="no.such"), protocol=1)), UNKNOWN),
        "an id with a newline": (of_a_stock_client(task_id="order\n5"), rf"{NOT_AN_ID}'order\n5'"),
        "an id with a tab": (of_a_stock_client(task_id="order\t5"), rf"{NOT_AN_ID}'order\t5'"),
        "an id that is a number": (of_a_stock_client(task_id=7), f"{NOT_AN_ID}7"),
        TASK: (encoded(envelope(body_of(kwargs={"colour": "red"}))), "failed at its last attempt"),
    }


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_each_kind_is_a_dead_letter_with_a_reason_that_helps(make_site, sqs, pool, reliability):
    site = make_site(error_visibility_timeout=1)
    dead_url = site.create_queue_with_dead_letters(receives=2)
    worker = site.start(pool=pool)
    each = each_kind()
    ids = dict(zip(send_one_by_one(sqs, site.url, [body for body, _ in each.values()]), each, strict=True))
    old = encoded(envelope(old_body(task="work.quick", args=["old"]), protocol=1))
    send(sqs, site.url, [good("after"), of_a_stock_client(task_id="order 5"), old])
    for key in ("after", "stock", "old"):
        site.diary.wait_for("started", key=key)
    wait_until(lambda: site.counts(dead_url)[0] == len(each), SOON, lambda: worker.log[-5000:])
    reasons, bodies = take(sqs, dead_url)
    told = {ids[message]: reason for message, reason in reasons.items()}
    assert {name: told[name] for name, (_, reason) in each.items() if reason not in told[name]} == {}
    (large,) = [bodies[message] for message, name in ids.items() if name == AT_THE_LIMIT]
    assert len(large) <= MESSAGE_BYTES
    assert json.loads(large)["body"] == LARGE["body"]
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert worker.running
    reliability("each kind of bad message", "one of each", ids, kept=len(reasons))


def send_one_by_one(sqs, url, bodies):
    return [sqs.send_message(QueueUrl=url, MessageBody=body)["MessageId"] for body in bodies]


def test_compressed_tasks_run(make_site):
    site = make_site()
    site.start()
    results = {}
    for method in ("gzip", "bzip2", "lzma"):
        key = method + "k" * 10_000  # it fails once, and comes back
        results[key] = site.app.send_task("work.number", (key, 1), compression=method)
    for key, result in results.items():
        site.diary.wait_for("done", key=key)
        wait_until(lambda result=result: result.state == "SUCCESS", SOON, f"the result of {key[:5]}")


@pytest.mark.prefork_only("a run is pickled for a child")
def test_arguments_too_deep_for_a_pools_process_cost_it_no_slot(make_site, sqs, reliability):
    site = make_site(
        {"accept_content": ["json", "msgpack"]}, error_visibility_timeout=60, wait_time_seconds=2
    )
    site.create_queue()
    worker = site.start(concurrency=1)
    content = msgpack.packb([["key", json.loads(nested(700))], {}, {}])  # which has no bound of 400 levels
    types = {"content-type": "application/x-msgpack", "content-encoding": "binary"}
    deep = encoded(envelope(content, **types))
    send(sqs, site.url, [deep] * 5)
    send(sqs, site.url, [good("after")])
    site.diary.wait_for("started", key="after")
    site.proxy.wait_for(lambda _: site.counts() == (0, 5))
    assert worker.log.count("it cannot be sent to a pool process: RecursionError") == 5
    worker.terminate()
    assert worker.wait_exit() == 0
    reliability("arguments nested too deep", "5, with one slot", range(5), kept=site.kept)

"""Messages that are too large for SQS, from `delay()` to the run, with payloads in moto's S3."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from importlib.util import find_spec
from pathlib import Path

import pytest
from celery import chord
from kombu import Queue
from support.faults import Answer, black_hole
from support.processes import SOON, wait_until
from support.proxy import FaultProxy

from celery_sqs_visibility import publish_batch
from celery_sqs_visibility.delivery.settle.dead_letters import described
from celery_sqs_visibility.errors import MessageTooLargeError

LARGE = "x" * 1_500_000
EXTENDED_CLIENT = Path(__file__).parents[1] / "support" / "extended_client.py"


@pytest.fixture
def bucket(s3):
    name = f"bucket-{uuid.uuid4().hex}"
    s3.create_bucket(Bucket=name)
    return name


@pytest.fixture
def site(make_site, bucket):
    return make_site(payload_store=f"s3://{bucket}/celery/")


def task(site, name, *args):
    return site.app.signature(f"large.{name}", args)


def objects(s3, bucket):
    return [found["Key"] for found in s3.list_objects_v2(Bucket=bucket).get("Contents", [])]


def wait_until_removed(site, s3, bucket):
    wait_until(lambda: site.counts() == (0, 0) and not objects(s3, bucket), SOON, "the payloads' removal")


def test_without_a_bucket_a_large_message_is_refused_before_anything_is_sent(make_site):
    site = make_site()
    with pytest.raises(
        MessageTooLargeError, match=r"has 2,66\d,\d{3} bytes .* takes 1,048,576: .*payload_store"
    ):
        task(site, "length", "a", LARGE).delay()
    assert site.proxy.calls("SendMessage") == []


def test_a_queue_with_a_limit_of_its_own_tells_it(make_site, bucket, s3):
    site = make_site()
    site.create_queue(MaximumMessageSize="1024")
    with pytest.raises(MessageTooLargeError, match=r"takes 1,024: "):
        task(site, "length", "a", "x" * 2000).delay()
    site = make_site({"task_default_queue": site.queue}, payload_store=f"s3://{bucket}")
    task(site, "length", "a", "x" * 2000).delay()
    assert len(objects(s3, bucket)) == 1


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_chord_of_large_tasks_with_a_large_body_runs_and_leaves_nothing(site, s3, bucket, pool):
    result = chord([task(site, "length", number, LARGE) for number in range(3)])(task(site, "total", LARGE))
    assert len(objects(s3, bucket)) >= 3
    site.start("large", pool=pool)
    assert result.get(timeout=60) == 4 * len(LARGE)
    wait_until_removed(site, s3, bucket)


def test_a_block_uploads_in_its_threads_and_each_task_runs_once(make_site, s3, bucket):
    site = make_site(payload_store=f"s3://{bucket}")
    with publish_batch(site.app):
        for number in range(20):
            task(site, "length", number, LARGE * (number % 2)).delay()
    assert len(objects(s3, bucket)) == 10
    site.start("large")
    site.diary.wait_for("started", 20)
    wait_until_removed(site, s3, bucket)
    assert sorted(entry["key"] for entry in site.diary.entries("started")) == list(range(20))


def letter(site, dead):
    (found,) = site.proxy.wait_for(
        lambda _: site.sqs.receive_message(QueueUrl=dead, MessageAttributeNames=["All"]).get("Messages")
    )
    site.sqs.delete_message(QueueUrl=dead, ReceiptHandle=found["ReceiptHandle"])
    return found


def test_a_dead_letter_keeps_its_payload_and_runs_when_it_is_sent_back(site, s3, bucket, tmp_path):
    dead = site.create_queue_with_dead_letters(10)
    site.start("large")
    task(site, "failing_once", "a", LARGE, str(tmp_path / "failed")).delay()
    found = letter(site, dead)
    (key,) = objects(s3, bucket)
    assert json.loads(found["Body"])[1] == {"s3BucketName": bucket, "s3Key": key}
    assert described(found["MessageAttributes"])["task"] == "large.failing_once"
    names = ("DataType", "StringValue")
    attributes = {
        name: {member: value[member] for member in names}
        for name, value in found["MessageAttributes"].items()
    }
    site.sqs.send_message(QueueUrl=site.url, MessageBody=found["Body"], MessageAttributes=attributes)
    assert site.diary.wait_for("started", key="a")[0]["length"] == len(LARGE)
    wait_until_removed(site, s3, bucket)


def test_a_payload_that_is_gone_makes_a_dead_letter_that_names_it(site, s3, bucket):
    dead = site.create_queue_with_dead_letters(10)
    task(site, "length", "a", LARGE).delay()
    (key,) = objects(s3, bucket)
    s3.delete_object(Bucket=bucket, Key=key)
    site.start("large")
    reason = described(letter(site, dead)["MessageAttributes"])["reason"]
    assert f"its payload s3://{bucket}/{key} is gone" in reason


def denied(request, forward, removed):
    if request.method != "GET":
        return forward(request)
    xml = "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
    return Answer(403, xml.encode(), {"Content-Type": "application/xml"})


@pytest.mark.parametrize("trouble", ["down", "denied"])
def test_while_s3_gives_nothing_other_tasks_run_and_the_payload_comes_later(
    site, emulator, monkeypatch, s3, bucket, trouble
):
    task(site, "length", "large", LARGE).delay()
    with FaultProxy(emulator.url) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", way.url)
        if trouble == "down":
            way.refuse()
        else:
            way.inject(denied)
        worker = site.start("large")
        worker.wait_for_log("cannot fetch payloads: S3 bucket")
        task(site, "length", "small").delay()
        site.diary.wait_for("started", key="small")
        way.accept()
        way.clear_faults()
        site.diary.wait_for("started", key="large")
        wait_until_removed(site, s3, bucket)
    assert trouble == "down" or "(the permission is s3:GetObject)" in worker.log


def test_while_s3_hangs_plain_tasks_wait_for_no_read_timeout_and_large_ones_come_later(
    site, emulator, monkeypatch, s3, bucket, reliability
):
    for number in range(6):
        task(site, "length", number, LARGE).delay()
    with FaultProxy(emulator.url) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", way.url)
        hanging = way.inject(black_hole())
        worker = site.start("large", concurrency=2)
        wait_until(way.in_flight, SOON, "a fetch")
        for number in range(4):
            task(site, "length", f"small {number}").delay()
        site.diary.wait_for("started", 4)
        assert "cannot fetch payloads" not in worker.log, "no fetch has timed out so far"
        hanging.remove()
        site.diary.wait_for("started", 10)
        wait_until_removed(site, s3, bucket)
    keys = [*range(6), *(f"small {number}" for number in range(4))]
    reliability("S3 hangs", "two slots; 6 payloads wait for it", keys, ended="started")


def extended_client(emulator, *arguments, body=None):
    command = [sys.executable, str(EXTENDED_CLIENT), emulator.url, *arguments]
    return subprocess.run(
        command, check=True, input=body, stdout=subprocess.PIPE, text=True, timeout=60
    ).stdout


def test_one_message_that_is_fetched_by_hand_brings_and_removes_its_payload(site, s3, bucket):
    task(site, "length", "a", LARGE).delay()
    with site.app.connection() as connection, connection.channel() as channel:
        queue = Queue(site.queue)(channel)
        message = queue.get()
        assert message.payload[0] == ["a", LARGE]
        message.requeue()
        assert len(objects(s3, bucket)) == 1
        queue.get().ack()
    assert objects(s3, bucket) == []


def test_a_large_result_is_a_message_too(site, s3, bucket):
    site.config["result_backend"] = "rpc://"
    site.app.conf.result_backend = "rpc://"
    site.start("large")
    assert task(site, "echo", LARGE).delay().get(timeout=30) == LARGE
    site.app.backend.result_consumer.stop()
    wait_until_removed(site, s3, bucket)


@pytest.mark.relies_on("receive.handle-is-base64")
@pytest.mark.skipif(find_spec("sqs_extended_client") is None, reason="amazon-sqs-extended-client is missing")
def test_amazons_own_client_reads_and_writes_the_same_messages(make_site, emulator, s3, bucket):
    site = make_site(payload_store=f"s3://{bucket}")  # that client's keys have no prefix
    task(site, "length", "a", LARGE).delay()
    body = extended_client(emulator, "receive", site.url, bucket)
    assert objects(s3, bucket) == []
    assert site.counts() == (0, 0)
    extended_client(emulator, "send", site.url, bucket, body=body)
    assert len(objects(s3, bucket)) == 1
    site.start("large")
    assert site.diary.wait_for("started", key="a")[0]["length"] == len(LARGE)
    wait_until(lambda: site.counts() == (0, 0), SOON, "the deletion")
    assert (
        len(objects(s3, bucket)) == 1
    )  # several queues' messages may point to an object of another producer


def publish_under(site, bucket, prefix):
    """Have this process, and no worker, publish payloads under that prefix."""
    options = site.app.conf.broker_transport_options
    site.app.conf.broker_transport_options = {**options, "payload_store": f"s3://{bucket}/{prefix}"}


def test_payloads_of_a_producer_with_a_longer_prefix_stay_and_one_line_says_so(site, s3, bucket):
    worker = site.start("large")
    publish_under(site, bucket, "celery/other/")
    for key in "ab":
        task(site, "length", key, LARGE).delay()
    told = "the prefix 'celery/other/' in payload_store, and this worker 'celery/'"
    wait_until(lambda: site.counts() == (0, 0) and told in worker.log, SOON, "both runs")
    assert len(objects(s3, bucket)) == 2
    assert worker.log.count(told) == 1


def test_a_pointer_outside_the_prefix_becomes_a_dead_letter_and_its_object_is_not_fetched(site, s3, bucket):
    dead = site.create_queue_with_dead_letters(10)
    publish_under(site, bucket, "other/")
    task(site, "length", "a", LARGE).delay()
    (key,) = objects(s3, bucket)
    site.start("large")
    reason = described(letter(site, dead)["MessageAttributes"])["reason"]
    assert f"s3://{bucket}/{key}" in reason
    assert f"payload_store is 's3://{bucket}/celery/'" in reason
    assert site.diary.entries("started") == []
    assert objects(s3, bucket) == [key]

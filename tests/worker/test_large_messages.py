"""Messages that are too large for SQS, from `delay()` to the run, with payloads in moto's S3."""

import json
import subprocess
import sys
import uuid
from importlib.util import find_spec
from pathlib import Path

import pytest
from celery import chord
from support.faults import black_hole
from support.processes import SOON, wait_until
from support.proxy import FaultProxy

from celery_sqs_visibility.delivery.settle.dead_letters import described

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


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_chord_of_large_tasks_with_a_large_body_runs_and_leaves_nothing(site, s3, bucket, pool):
    result = chord([task(site, "length", number, LARGE) for number in range(3)])(task(site, "total", LARGE))
    assert len(objects(s3, bucket)) >= 3
    site.start("large", pool=pool)
    assert result.get(timeout=SOON) == 4 * len(LARGE)
    wait_until_removed(site, s3, bucket)


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


def test_a_large_result_is_a_message_too(site, s3, bucket):
    site.config["result_backend"] = "rpc://"
    site.app.conf.result_backend = "rpc://"
    site.start("large")
    assert task(site, "echo", LARGE).delay().get(timeout=SOON) == LARGE
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

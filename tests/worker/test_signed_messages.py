"""Celery's signed messages on this transport: what nobody signed does not run."""

import base64
import datetime as dt
import json
import subprocess
import sys

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from support.processes import SOON, wait_until
from support.worker import environment

from celery_sqs_visibility import task_message

PRODUCER = """
import sys
from signed import app, once
once.apply_async((sys.argv[1], sys.argv[2]))
"""


def make_certificate(directory, name):
    """A key and a certificate of its own; the settings for them."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem, kind = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (directory / f"{name}.key").write_bytes(key.private_bytes(pem, kind, serialization.NoEncryption()))
    (directory / f"{name}.pem").write_bytes(certificate.public_bytes(pem))
    return {
        "security_key": str(directory / f"{name}.key"),
        "security_certificate": str(directory / f"{name}.pem"),
    }


@pytest.fixture
def site(make_site, tmp_path):
    """Workers trust the producer's certificate; their own is there, too, for what they publish."""
    (store := tmp_path / "trusted").mkdir()
    settings = {
        **make_certificate(store, "trusted"),
        "security_cert_store": f"{store}/*.pem",
        "security_digest": "sha256",
        "task_serializer": "auth",
        "accept_content": ["auth"],
        "result_serializer": "json",
        "result_accept_content": ["json"],
    }
    return make_site(settings)


def publish(site, key, marker, **settings):
    env = environment({**site.config, **settings}, AWS_ENDPOINT_URL_SQS=site.proxy.url)
    command = [sys.executable, "-c", PRODUCER, key, str(marker)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def changed(site, change):
    """Send a copy of the only message in the queue, changed, beside it."""
    (found,) = site.sqs.receive_message(QueueUrl=site.url, WaitTimeSeconds=5)["Messages"]
    content = json.loads(base64.b64decode(found["Body"]))
    change(content)
    site.sqs.send_message(QueueUrl=site.url, MessageBody=json.dumps(content))
    handle = found["ReceiptHandle"]
    site.sqs.change_message_visibility(QueueUrl=site.url, ReceiptHandle=handle, VisibilityTimeout=0)


def other_arguments(content):
    """The signature stays, as that of other bytes."""
    body = base64.b64decode(content["body"])
    signed = base64.b64decode(body)
    content["body"] = base64.b64encode(base64.b64encode(signed.replace(b"good", b"evil"))).decode()
    content["headers"]["id"] = content["properties"]["correlation_id"] = "changed"


def test_signed_tasks_run_and_are_retried_and_all_others_are_dead_letters(site, tmp_path):
    dead = site.create_queue_with_dead_letters(10)
    publish(site, "good", tmp_path / "marker")
    changed(site, other_arguments)
    (stranger := tmp_path / "stranger").mkdir()
    publish(site, "stranger", tmp_path / "marker", **make_certificate(stranger, "stranger"))
    site.sqs.send_message(QueueUrl=site.url, MessageBody=task_message("signed.once", ["plain", "marker"]))
    worker = site.start("signed")
    site.diary.wait_for("started", 2, key="good")
    wait_until(lambda: site.counts() == (0, 0), SOON, lambda: worker.log)
    # A dead letter is sent again where the answer to the first request for it is lost.
    letters = site.sqs.receive_message(QueueUrl=dead, MaxNumberOfMessages=10)["Messages"]
    assert len({letter["Body"] for letter in letters}) == 3, worker.log
    assert {entry["key"] for entry in site.diary.entries("started")} == {"good"}
    # The look at the message was a receive, too.
    assert [entry["retries"] for entry in site.diary.entries("started")] == [1, 2]


def test_headers_are_not_signed_and_a_signed_message_may_be_sent_again(site, tmp_path):
    (marker := tmp_path / "marker").touch()
    publish(site, "good", marker)
    changed(site, lambda content: content["headers"].update(id="another", retries=1, eta=None))
    worker = site.start("signed")
    site.diary.wait_for("started", 2, key="good")
    wait_until(lambda: site.counts() == (0, 0), SOON, lambda: worker.log)

"""What every implementation of the port to S3 must do: the fake, and boto3 with moto behind it."""

import uuid

import boto3
import pytest
from support.clock import FakeClock
from support.faults import Answer
from support.proxy import FaultProxy

from celery_sqs_visibility.aws import object_store
from celery_sqs_visibility.aws.client_settings import ClientSettings
from celery_sqs_visibility.aws.fake import FakeObjectStore
from celery_sqs_visibility.aws.object_store import S3ObjectStore
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    CredentialsRefusedError,
    ObjectDoesNotExistError,
    RequestRefusedError,
    TooLargeError,
    UnavailableError,
)
from celery_sqs_visibility.events import SQSRequest, subscribe

KEYS = {"access_key_id": "key", "secret_access_key": "secret"}


def s3_store(bucket):
    # The endpoint of the settings is SQS's own.
    return S3ObjectStore(ClientSettings("us-east-1", "http://127.0.0.1:1", **KEYS), bucket)


@pytest.fixture
def bucket(emulator, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", emulator.url)
    name = f"bucket-{uuid.uuid4().hex}"
    client = boto3.client("s3")
    client.create_bucket(Bucket=name)
    client.close()
    return name


@pytest.fixture(params=["memory", "boto3 on moto"])
def store(request):
    return FakeObjectStore() if request.param == "memory" else s3_store(request.getfixturevalue("bucket"))


@pytest.mark.parametrize("content", [b"", b"a" * 3_000_000, "déjà vu".encode()], ids=len)
def test_what_is_put_is_got_until_it_is_deleted(store, content):
    store.put("prefix/key", content)
    assert store.get("prefix/key", 3_000_000) == content
    assert store.delete(["prefix/key", "no such key"]).failed == {}
    with pytest.raises(ObjectDoesNotExistError, match="NoSuchKey"):
        store.get("prefix/key", 10)


def test_a_larger_object_than_asked_for_is_not_read(store):
    store.put("key", b"12345")
    assert store.get("key", 5) == b"12345"
    with pytest.raises(TooLargeError, match=rf"s3://{store.bucket}/key has 5 bytes"):
        store.get("key", 4)


def test_a_bucket_that_is_not_there_is_named_and_its_objects_are_not_gone(bucket):
    with pytest.raises(
        RequestRefusedError, match="S3 bucket 'no-such-bucket': GetObject was answered NoSuchB"
    ):
        s3_store("no-such-bucket").get("key", 5)


def test_s3_that_does_not_answer_passes(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    with pytest.raises(UnavailableError, match="S3 bucket 'b': PutObject got no answer from S3"):
        s3_store("b").put("key", b"")


@pytest.fixture
def way(emulator, bucket, monkeypatch):
    """A proxy before S3."""
    with FaultProxy(emulator.url) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.url)
        yield proxy


def xml(status, text):
    return lambda *_: Answer(status, text.encode(), {"Content-Type": "application/xml"})


def test_objects_that_could_not_be_deleted_are_told_apart(way, bucket):
    one = "<Error><Key>b</Key><Code>AccessDenied</Code><Message>no</Message></Error>"
    way.inject(xml(200, f"<DeleteResult>{one}</DeleteResult>"))
    failed = s3_store(bucket).delete(["a", "b", "c"]).failed
    assert {position: type(error) for position, error in failed.items()} == {1: AccessDeniedError}
    assert "(the permission is s3:DeleteObject)" in str(failed[1])


def test_after_refused_credentials_they_are_looked_for_anew_by_another_client(way, bucket, monkeypatch):
    made = []
    new_client = object_store.new_client
    monkeypatch.setattr(object_store, "new_client", lambda *args: made.append(args) or new_client(*args))
    store = s3_store(bucket)
    way.inject(xml(400, "<Error><Code>ExpiredToken</Code><Message>expired</Message></Error>"), times=1)
    with pytest.raises(CredentialsRefusedError, match="ExpiredToken"):
        store.put("key", b"a")
    store.put("key", b"a")
    assert store.get("key", 5) == b"a"
    assert len(made) == 2


def test_an_object_that_comes_too_slowly_is_given_up(bucket, monkeypatch):
    store = s3_store(bucket)
    store.put("key", b"a")
    monkeypatch.setattr(object_store, "MAX_PART_SECONDS", -1.0)
    with pytest.raises(UnavailableError, match="GetObject brought less than 256 KiB in -1 s"):
        store.get("key", 5)


def test_an_object_of_any_size_is_read_while_its_parts_come(bucket, monkeypatch):
    store, clock = s3_store(bucket), FakeClock()
    store.put("key", b"a" * 1_000_000)
    monkeypatch.setattr(object_store, "SYSTEM_CLOCK", clock)
    assert len(store.get("key", 1_000_000, lambda: clock.advance(10))) == 1_000_000
    assert clock.monotonic() - FakeClock().monotonic() >= 40


def test_who_sees_the_progress_may_end_it(store):
    def give_up():
        raise UnavailableError("too late")

    store.put("key", b"a")
    with pytest.raises(UnavailableError, match="too late"):
        store.get("key", 5, give_up)


def test_each_request_is_an_event(bucket):
    seen = []
    end = subscribe(lambda event: seen.append((event.action, event.outcome)), SQSRequest)
    store = s3_store(bucket)
    store.put("key", b"a")
    with pytest.raises(ObjectDoesNotExistError):
        store.get("no such key", 5)
    end()
    assert seen == [("PutObject", "ok"), ("GetObject", "NoSuchKey")]

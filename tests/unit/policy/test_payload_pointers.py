"""Pointers as Amazon's extended clients write them, and as somebody with other plans might."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.errors import UnreadableError
from celery_sqs_visibility.policy.payload_pointers import (
    PayloadPointer,
    ReadablePayloads,
    new_key,
    pointer_body,
    pointer_in,
    prefix_of,
    size_attribute,
)

POINTER = '["software.amazon.payloadoffloading.PayloadS3Pointer",{"s3BucketName":"b","s3Key":"k"}]'
LEGACY = '["com.amazon.sqs.javamessaging.MessageS3Pointer", {"s3BucketName": "b", "s3Key": "k"}]'
UUID = "6ff6efbf-7c5d-4d0b-9f5b-2f6c1a2b3c4d"
NUMBER = {"DataType": "Number", "StringValue": "300000"}


def test_a_pointer_is_written_as_amazons_java_library_writes_it():
    assert pointer_body("b", "k") == POINTER
    assert size_attribute(300_000) == {"ExtendedPayloadSize": NUMBER}


@pytest.mark.parametrize("attribute", ["ExtendedPayloadSize", "SQSLargePayloadSize"])
@pytest.mark.parametrize("body", [POINTER, LEGACY])
def test_both_generations_of_pointers_are_read_and_kept_as_they_are(attribute, body):
    pointer = pointer_in(body, {attribute: NUMBER, "other": NUMBER}, ReadablePayloads("b"))
    assert pointer == PayloadPointer("b", "k", body)
    assert str(pointer) == "s3://b/k"


@given(st.text())
def test_a_key_of_ours_is_known_by_its_prefix_and_its_end(prefix):
    key = new_key(prefix)
    assert prefix_of(key) == prefix
    assert prefix_of(f"{key}/") is prefix_of(f"{key}\n") is None


@pytest.mark.parametrize(
    "key",
    ["", "k", "celery/", "celery/k.celery", f"celery/{UUID}", f"celery/{UUID.upper()}.celery"],
)
def test_keys_of_others_are_not_ours(key):
    assert prefix_of(key) is None


@pytest.mark.parametrize("attributes", [{}, {"other": NUMBER}])
def test_without_the_reserved_attribute_nothing_is_a_pointer(attributes):
    assert pointer_in(POINTER, attributes, ReadablePayloads("b")) is None


@pytest.mark.parametrize(
    ("bucket", "prefix", "remedy"),
    [
        ("mine", "", "payload_store is 's3://mine/'"),
        (None, "", "set payload_store to 's3://b'"),
        ("b", "celery/", "payload_store is 's3://b/celery/'"),
        ("b", "K", "payload_store is 's3://b/K'"),
    ],
)
def test_a_pointer_elsewhere_is_refused_with_the_object_and_the_option(bucket, prefix, remedy):
    with pytest.raises(UnreadableError, match=f"in s3://b/k, and only .* is read: {remedy}"):
        pointer_in(POINTER, size_attribute(1), ReadablePayloads(bucket, prefix))


@given(st.text(), st.text(min_size=1))
def test_what_was_written_under_the_prefix_or_a_longer_one_is_read(prefix, more):
    readable = ReadablePayloads("b", prefix)
    for key in (new_key(prefix), new_key(prefix + more)):
        pointer = pointer_in(pointer_body("b", key), size_attribute(1), readable)
        assert pointer is not None
        assert pointer.key == key


@pytest.mark.parametrize(
    "body",
    [
        "",
        "hello",
        "[]",
        "{}",
        "[1, 2]",
        '["class", {"s3BucketName": "b"}]',
        '["class", {"s3BucketName": "b", "s3Key": 5}]',
        '["class", {"s3BucketName": "", "s3Key": ""}]',
        "[" * 100_000,
        json.dumps({"properties": {}}),
    ],
    ids=lambda body: body[:50],
)
def test_a_body_that_is_no_pointer_though_its_attribute_says_so_is_unreadable(body):
    with pytest.raises(UnreadableError, match="ExtendedPayloadSize, and its body is not a pointer"):
        pointer_in(body, size_attribute(1), ReadablePayloads("b"))

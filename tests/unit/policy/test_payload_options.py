"""The options for payloads in S3."""

from __future__ import annotations

import pytest

from celery_sqs_visibility.policy.options import OptionError, Options
from celery_sqs_visibility.policy.quotas import MESSAGE_BYTES


def test_without_a_bucket_nothing_goes_to_s3_and_with_one_what_sqs_would_refuse():
    assert Options.parse({}).payload_bucket is None
    options = Options.parse({"payload_bucket": "b"})
    assert (options.payload_threshold, options.payload_prefix) == (MESSAGE_BYTES, "")


@pytest.mark.parametrize("value", [0, "0", 262_144, "262144", MESSAGE_BYTES], ids=repr)
def test_a_threshold_is_a_number_of_bytes(value):
    assert Options.parse({"payload_bucket": "b", "payload_threshold": value}).payload_threshold == int(value)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"payload_bucket": "s3://b"}, "payload_bucket to be the name of an S3 bucket, got 's3://b'"),
        ({"payload_bucket": "b/prefix"}, "see payload_prefix"),
        ({"payload_bucket": 5}, "payload_bucket to be text"),
        *(
            ({"payload_bucket": "b", "payload_threshold": wrong}, "between 0 and 1048576 bytes .*, got")
            for wrong in (-1, MESSAGE_BYTES + 1, True, 0.5, "many", [])
        ),
        ({"payload_bucket": "b", "payload_prefix": "x" * 901}, "at most 900 bytes, got 901"),
        ({"payload_threshold": 0}, "payload_bucket to be set where payload_threshold is"),
        ({"payload_prefix": "x/"}, "payload_bucket to be set where payload_prefix is"),
        ({"payload_buckets": "b"}, "did you mean 'payload_bucket'"),
    ],
)
def test_a_wrong_option_is_refused_with_a_sentence(given, sentence):
    with pytest.raises(OptionError, match=sentence):
        Options.parse(given)

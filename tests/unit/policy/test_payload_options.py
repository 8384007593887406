"""The options for payloads in S3."""

from __future__ import annotations

import pytest

from celery_sqs_visibility.policy.options import OptionError, Options
from celery_sqs_visibility.policy.payload_pointers import ReadablePayloads


def test_without_a_store_nothing_goes_to_s3_and_with_one_what_sqs_would_refuse():
    assert Options.parse({}).payload_store is None
    options = Options.parse({"payload_store": "s3://b"})
    assert options.payload_store == ReadablePayloads("b", "")


@pytest.mark.parametrize(
    ("url", "prefix"),
    [("s3://b", ""), ("s3://b/", ""), ("s3://b/a/c/", "a/c/"), ("s3://b//?#%2F é", "/?#%2F é")],
)
def test_a_store_is_a_bucket_and_the_beginning_of_keys_as_they_are(url, prefix):
    assert Options.parse({"payload_store": url}).payload_store == ReadablePayloads("b", prefix)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        *(
            ({"payload_store": url}, f"payload_store to be a URL as 's3://BUCKET' .* got '{url}'")
            for url in (
                "b",
                "b/prefix",
                "s3:/b",
                "s3:///x",
                "S3://b",
                "https://b",
                "s3://a b/",
                "s3://s3://b",
            )
        ),
        ({"payload_store": 5}, "payload_store to be text"),
        ({"payload_store": "s3://b/" + "x" * 901}, "at most 900 bytes, got 901"),
        ({"payload_stores": "s3://b"}, "did you mean 'payload_store'"),
    ],
)
def test_a_wrong_option_is_refused_with_a_sentence(given, sentence):
    with pytest.raises(OptionError, match=sentence):
        Options.parse(given)

"""Values of single options."""

import pytest

from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.payload_pointers import ReadablePayloads


def test_no_port_is_open_unless_one_is_named_and_then_for_this_host_alone():
    assert Options.parse({}).http_address is None
    assert Options.parse({"http_address": ":8080"}).http_address == ("127.0.0.1", 8080)


@pytest.mark.parametrize(
    ("given", "host"),
    [
        ("0.0.0.0:80", "0.0.0.0"),
        ("[::]:80", "::"),
        ("[fe80::1%eth0]:80", "fe80::1%eth0"),
        ("localhost:80", "localhost"),
    ],
)
def test_a_host_is_an_address_or_a_name(given, host):
    address = Options.parse({"http_address": given}).http_address
    assert address == (host, 80)
    assert str(address) == given


def test_a_prefix_of_control_queues_has_only_what_names_of_queues_have():
    assert Options.parse({"control_prefix": "my-App_1"}).control_prefix == "my-App_1"
    with pytest.raises(OptionError, match=r"^expected control_prefix to have letters, .* got 'a\.b'$"):
        Options.parse({"control_prefix": "a.b"})


@pytest.mark.parametrize(
    ("url", "prefix"),
    [("s3://b", ""), ("s3://b/", ""), ("s3://b/a/c/", "a/c/"), ("s3://b//?#%2F é", "/?#%2F é")],
)
def test_a_store_is_a_bucket_and_the_beginning_of_keys_as_they_are(url, prefix):
    assert Options.parse({"payload_store": url}).payload_store == ReadablePayloads("b", prefix)

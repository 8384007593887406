"""Values of single options, and refusals of foreign ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.kombu_names import options_of_amqp, options_of_redis

from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.policy.option_parsers import OF_ANOTHER_TRANSPORT, OTHER_TRANSPORTS, REMEDIES
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


PAGE = (Path(__file__).resolve().parents[3] / "docs/coming-from-redis-and-rabbitmq.md").read_text()
FOREIGN = options_of_redis() | options_of_amqp()


def test_the_options_are_found_in_kombus_source():
    assert {"global_keyprefix", "sentinel_kwargs", "reauth_check_interval"} <= options_of_redis()
    assert {"heartbeat", "channel_max", "virtual_host"} <= options_of_amqp()


@pytest.mark.parametrize("name", sorted(FOREIGN | OTHER_TRANSPORTS))
def test_an_option_of_another_transport_is_taken_or_refused_with_what_to_do(name):
    try:
        Options.parse({name: 3})
    except OptionError as error:
        remedy = OF_ANOTHER_TRANSPORT if name in OTHER_TRANSPORTS else REMEDIES[name]
        assert str(error) == f"there is no transport option {name!r}: {remedy}"  # noqa: PT017 - or no error


@pytest.mark.parametrize("name", sorted(OTHER_TRANSPORTS))
def test_the_page_that_the_refusal_names_has_the_option(name):
    assert f"`{name}`" in PAGE
    assert name not in REMEDIES


@pytest.mark.parametrize(
    "given",
    [
        {"visibility_timeout": "21600"},  # airflow.cfg and the environment have text
        {"visibility_timeout": "43200.0"},
        {"visibility_timeout": 86400},
        {"visibility_timeout": "1800", "region": "eu-west-1", "polling_interval": "1.0"},
        {"wait_time_seconds": "10", "is_secure": "True", "queue_name_prefix": "superset-"},
    ],
    ids=repr,
)
def test_what_airflow_and_superset_usually_set_is_taken(given):
    assert Options.parse(given).visibility_timeout == min(float(given.get("visibility_timeout", 120)), 43200)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"master_name": "mymaster", "sentinel_kwargs": {"password": "hush"}},
            "it belongs to kombu's Redis",
        ),
        ({"sentinel_kwargs": '{"password": "hush"}'}, "kombu's Redis or AMQP transport"),
        ({"global_keyprefix": "superset:"}, "docs/coming-from-redis-and-rabbitmq.md"),
    ],
    ids=repr,
)
def test_what_they_set_for_redis_is_refused_with_what_to_do(given, said):
    with pytest.raises(OptionError, match=said) as refused:
        Options.parse(given)
    assert "did you mean" not in str(refused.value)
    assert "hush" not in str(refused.value)

"""Refusals of names that are no option, with what to do instead."""

from pathlib import Path

import pytest
from support.kombu_names import options_of_amqp, options_of_redis

from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.unknown_options import OF_ANOTHER_TRANSPORT, OTHER_TRANSPORTS, REMEDIES

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

"""A wrong name in a retry policy concerns its publication; one among the user's options is refused."""

from __future__ import annotations

import pytest
from kombu import Connection

from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.transport import given_options
from celery_sqs_visibility.transport.given_options import accept, as_written

POLICY = {"max_retries": 3, "interval_start": 0, "interval_step": 0.2, "interval_max": 1}


@pytest.fixture(autouse=True)
def no_connection_yet(monkeypatch):
    monkeypatch.setattr(given_options, "_accepted", set())


@pytest.mark.parametrize(
    "policy",
    [{**POLICY, "interval_stop": 1}, {"max_retries": 3, "timeout": 5}, {"max_retries": 1, "stop": 1}],
)
def test_a_wrong_key_of_a_retry_policy_refuses_that_publication_alone(site, connection, caplog, policy):
    (name,) = policy.keys() - POLICY.keys()
    accept(connection.transport_options)  # which the fixture has forgotten
    for _ in range(2):
        with pytest.raises(TypeError, match=name):
            connection.Producer().publish("a", routing_key="q", retry=True, retry_policy=policy)
        connection.collect()
        connection.Producer().publish("b", routing_key="q", retry=True)
    assert site.counts() == (2, 0, 0)
    assert f"unknown transport option {name!r} is ignored" in caplog.text


def test_so_does_one_of_the_first_publication_of_the_process(caplog):
    options = {"wait_time_seconds": 1}
    assert as_written({**options, **POLICY, "interval_stop": 1}) == {**options, **POLICY}


@pytest.mark.parametrize(
    "options",
    [
        {"interval_stop": 1},
        {**POLICY, "visibilty_timeout": 600},
        {"visibilty_timeout": 600, **POLICY},
        {"max_retries": 3, "interval_stop": 1},
    ],
)
def test_an_option_that_the_user_misspelt_is_refused(options):
    with pytest.raises(OptionError, match="unknown transport option"):
        _ = Connection("sqs://", transport="celery_sqs_visibility", transport_options=options).transport

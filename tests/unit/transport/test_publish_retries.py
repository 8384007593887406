"""Which publications are sent again, by kombu and at the end of a run."""

from __future__ import annotations

import contextvars
from unittest.mock import Mock

import pytest
from kombu.exceptions import OperationalError
from support.kombu_site import declared_queue

from celery_sqs_visibility.aws import attempts
from celery_sqs_visibility.delivery.publish import retries
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    CredentialsRefusedError,
    ThrottledError,
    UnreachableError,
)
from celery_sqs_visibility.transport import transport

SLOW_DOWN = ThrottledError("slow down")


@pytest.fixture(autouse=True)
def intervals(monkeypatch):
    """The failures in a row before each of kombu's retries, of which none waits."""
    intervals = []
    monkeypatch.setattr(transport, "retry_interval", lambda _, failures: intervals.append(failures) or 0)
    monkeypatch.setattr(attempts, "pause", lambda _failures: 0)
    return intervals


def test_at_the_end_of_a_run_an_attempt_is_made_again_until_the_error_or_the_deadline_has_passed(monkeypatch):
    def end_of_run():
        retries.set_deadline()
        assert retries.until_deadline(Mock(side_effect=[SLOW_DOWN, SLOW_DOWN, "sent"])) == "sent"
        with pytest.raises(AccessDeniedError):
            retries.until_deadline(Mock(side_effect=[AccessDeniedError("no"), "sent"]))
        retries.clear_deadline()
        with pytest.raises(ThrottledError):
            retries.until_deadline(Mock(side_effect=[SLOW_DOWN, "sent"]))
        monkeypatch.setattr(retries, "END_OF_RUN_SECONDS", 0.01)
        retries.set_deadline()
        with pytest.raises(ThrottledError):
            retries.until_deadline(Mock(side_effect=SLOW_DOWN))

    contextvars.copy_context().run(end_of_run)


def test_at_the_end_of_a_run_a_first_connection_is_waited_for(site):
    def publish(connection):
        site.sqs.fail_next("connect", UnreachableError("refused"), UnreachableError("refused"))
        return connection.default_channel

    def end_of_run():
        retries.set_deadline()
        assert publish(site.connect(max_retries=0))
        retries.clear_deadline()
        with pytest.raises(OperationalError, match="refused"):
            publish(site.connect(max_retries=0))

    contextvars.copy_context().run(end_of_run)


def test_a_connection_is_reached_once_and_not_again_for_what_it_publishes(site, connection, monkeypatch):
    looks = []
    monkeypatch.setattr(site.sqs, "reach", lambda: looks.append(1))
    producer = connection.Producer()
    for _ in range(3):
        producer.publish("a", routing_key="q")
    assert len(looks) == 1


@pytest.mark.parametrize("error", [SLOW_DOWN, CredentialsRefusedError("rotated")], ids=repr)
def test_kombu_waits_longer_before_each_retry_of_a_publication(site, connection, intervals, error):
    for _ in range(2):
        for _ in range(2):
            site.sqs.fail_next("SendMessage", error)
        connection.Producer().publish("a", routing_key="q", retry=True, retry_policy={"max_retries": 3})
    assert intervals == [1, 2, 1, 2]
    assert site.counts() == (2, 0, 0)


def test_a_publication_that_was_given_up_has_the_next_one_wait_for_nothing(site, connection, intervals):
    for most in (1, 3):
        for _ in range(most + 1):
            site.sqs.fail_next("SendMessage", SLOW_DOWN)
        with pytest.raises(OperationalError):
            connection.Producer().publish(
                "a", routing_key="q", retry=True, retry_policy={"max_retries": most}
            )
        connection.collect()
    connection.Producer().publish("a", routing_key="q")
    assert intervals == [1, 1, 2, 3]


def test_a_declaration_that_fails_counts_as_an_attempt(site, connection, channel):
    site.sqs.fail_next("GetQueueUrl", SLOW_DOWN)
    with pytest.raises(ThrottledError):
        declared_queue(channel)
    assert channel.context.publish_attempts(connection).failed == 1


def test_a_refusal_is_not_published_again(site, connection, intervals):
    site.sqs.fail_next("SendMessage", AccessDeniedError("no"))
    with pytest.raises(OperationalError):
        connection.Producer().publish("a", routing_key="q", retry=True, retry_policy={"max_retries": 3})
    assert intervals == []


def test_a_channel_whose_connection_was_closed_still_publishes(connection, channel):
    declared_queue(channel)
    connection.collect()  # as kombu does for another producer, before a retry
    channel.basic_publish(channel.prepare_message("{}"), exchange="", routing_key="q")

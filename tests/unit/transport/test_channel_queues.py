"""Queues that are counted and deleted by kombu's own API."""

from __future__ import annotations

import pytest
from kombu import Consumer, Queue
from kombu.exceptions import ChannelError
from support.kombu_site import declared_queue, publish

from celery_sqs_visibility.aws.port import ReceiveOptions
from celery_sqs_visibility.errors import AccessDeniedError, QueueDoesNotExistError

DENIED = AccessDeniedError("not you", code="AccessDenied", action="GetQueueAttributes")


def test_queues_are_counted_by_what_sqs_says(site, connection, channel):
    queue = declared_queue(channel)
    publish(channel, *range(3))
    assert channel.queue_declare("q", passive=True).message_count == 3
    with connection.SimpleQueue("q") as simple:
        assert (simple.qsize(), len(simple)) == (3, 3)
    assert queue.purge() == 3
    assert site.counts() == (0, 0, 0)


def test_a_declaration_asks_for_no_count_and_needs_no_permission(site, channel):
    site.sqs.fail_next("GetQueueAttributes", DENIED)
    declared_queue(channel)
    publish(channel, "a")
    assert "GetQueueAttributes" not in site.actions()


@pytest.mark.parametrize(
    "act",
    [
        lambda queue: queue.channel.queue_declare("q", passive=True),
        lambda queue: queue.delete(if_empty=True),
        lambda queue: queue.delete(if_unused=True),
    ],
    ids=["declared passively", "deleted if empty", "deleted if unused"],
)
def test_a_count_that_sqs_does_not_tell_is_an_error_that_names_the_permission(site, channel, act):
    queue = declared_queue(channel)
    site.sqs.fail_next("GetQueueAttributes", DENIED)
    with pytest.raises(AccessDeniedError, match=r"queue 'q'.*allow sqs:GetQueueAttributes"):
        act(queue)
    assert site.exists("q")


def test_a_passive_declaration_of_a_queue_that_is_not_there_creates_none(site, channel):
    with pytest.raises(ChannelError, match="no queue 'q'"):
        channel.queue_declare("q", passive=True)
    assert "CreateQueue" not in site.actions()


def test_an_empty_queue_is_deleted_if_empty(site, channel):
    declared_queue(channel).delete(if_empty=True)
    assert not site.exists("q")


@pytest.mark.parametrize(
    ("counts", "conditions"),
    [((1, 0, 0), ["if_empty"]), ((0, 1, 0), ["if_empty", "if_unused"]), ((0, 0, 1), ["if_empty"])],
    ids=["visible", "hidden", "delayed"],
)
def test_a_queue_with_a_message_is_not_empty_and_with_a_hidden_one_not_unused(
    site, channel, counts, conditions
):
    queue = declared_queue(channel)
    _, hidden, delayed = counts
    publish(channel, "a", **({"DelaySeconds": 60} if delayed else {}))
    if hidden:
        assert site.sqs.receive(site.sqs.queue_url("q"), 1, 0, ReceiveOptions(visibility_timeout=60))
    for condition in conditions:
        queue.delete(**{condition: True})
    assert site.counts() == counts


def test_a_queue_that_is_consumed_here_is_not_unused(site, connection, channel):
    queue = declared_queue(channel)
    with Consumer(channel, [queue]):
        Queue("q")(connection.channel()).delete(if_unused=True)
        assert site.exists("q")


def test_a_queue_of_two_bindings_is_deleted_once(site, channel):
    queue = declared_queue(channel)
    queue.bind_to("q", routing_key="other")
    queue.delete()
    assert site.actions().count("DeleteQueue") == 1


def test_an_exchange_is_deleted_without_its_queues_and_only_if_unused(site, channel):
    queue = declared_queue(channel)
    publish(channel, "a")
    exchange = queue.exchange(channel)
    exchange.delete(if_unused=True)
    assert "q" in channel.get_exchanges()
    for _ in range(2):
        exchange.delete()
    assert "q" not in channel.get_exchanges()
    assert site.counts() == (1, 0, 0)


def test_unbinding_from_an_exchange_that_nobody_has_declared_is_nothing(channel):
    channel.queue_unbind("q", "nowhere", "q")


def test_a_queue_that_was_deleted_behind_us_is_forgotten_when_it_is_counted(site, channel):
    queue = declared_queue(channel)
    site.sqs.delete_queue(site.sqs.queue_url("q"))
    with pytest.raises(QueueDoesNotExistError):
        queue.queue_declare(passive=True)
    with pytest.raises(ChannelError, match="no queue 'q'"):
        queue.queue_declare(passive=True)


def test_a_purge_that_sqs_refuses_is_an_error(site, channel):
    queue = declared_queue(channel)
    site.sqs.fail_next("PurgeQueue", DENIED)
    with pytest.raises(AccessDeniedError):
        queue.purge()

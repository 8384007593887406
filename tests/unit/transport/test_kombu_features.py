"""What programs do with kombu's SQS transport they do with ours: docs/kombu-features.md has the table."""

from __future__ import annotations

import pytest
from kombu import Consumer, Exchange, Producer, Queue
from support.kombu_site import declared_queue, publish
from support.processes import wait_until

from celery_sqs_visibility.aws.port import ReceiveOptions

EVERYTHING = ReceiveOptions(1, ("All",), ("All",))


def received(site, name):
    (message,) = site.sqs.receive(site.sqs.queue_url(name), 1, 0, EVERYTHING)
    return message


def drained(connection, channel, name, *, no_ack=False):
    """The one message that a consumer of the queue gets."""
    seen = []
    with Consumer(channel, [Queue(name)], callbacks=[lambda body, _: seen.append(body)], no_ack=no_ack):
        while not seen:
            connection.drain_events(timeout=5)
    return seen[0]


def test_a_routing_key_may_be_another_than_the_name_of_its_queue(site, connection, channel):
    orders = Exchange("orders")
    for queue, key in (("eu.orders", "created"), ("eu.refunds", "refunded")):
        Queue(queue, orders, key)(channel).declare()
    for key in ("created", "refunded"):
        Producer(channel, orders).publish(key, routing_key=key, serializer="json")
    assert drained(connection, channel, "eu.orders") == "created"
    assert drained(connection, channel, "eu.refunds") == "refunded"
    assert site.exists("eu-orders")


def test_published_message_attributes_and_the_group_of_a_fair_queue_are_sqss(site, channel):
    trace = {"trace": {"DataType": "String", "StringValue": "1-2"}}
    declared_queue(channel)
    publish(channel, "a", message_attributes=trace, MessageGroupId="tenant-7")
    message = received(site, "q")
    assert message["MessageAttributes"] == trace
    assert message["Attributes"]["MessageGroupId"] == "tenant-7"
    assert "MessageDeduplicationId" not in message["Attributes"]


def test_a_fifo_queue_is_told_group_and_deduplication_id(site, channel):
    declared_queue(channel, "q.fifo")
    publish(channel, "a", "b", name="q.fifo", MessageGroupId="g", MessageDeduplicationId="once")
    publish(channel, "c", name="q.fifo")
    first, default = received(site, "q.fifo"), received(site, "q.fifo")
    assert (first["Attributes"]["MessageGroupId"], first["Attributes"]["MessageDeduplicationId"]) == (
        "g",
        "once",
    )
    assert default["Attributes"]["MessageGroupId"] == "default"
    assert site.counts("q.fifo") == (0, 2, 0), "the duplicate is dropped"


def test_a_consumer_that_acknowledges_nothing_has_its_messages_deleted_when_they_come(
    site, connection, channel
):
    declared_queue(channel)
    publish(channel, "a")
    assert drained(connection, channel, "q", no_ack=True) == "a"
    wait_until(lambda: site.counts() == (0, 0, 0), 5, "the message to be deleted")


@pytest.mark.parametrize("body_encoding", ["base64", "utf-8"])
def test_the_body_encoding_may_be_set(site, body_encoding):
    connection = site.connect(body_encoding=body_encoding)
    channel = connection.channel()
    declared_queue(channel)
    publish(channel, {"n": 1})
    assert drained(connection, channel, "q") == {"n": 1}


def test_a_message_for_which_no_queue_is_bound_goes_to_the_deadletter_queue_of_virtual_transports(site):
    connection = site.connect(deadletter_queue="lost")
    channel = connection.channel()
    with pytest.warns(UserWarning, match="could not be delivered"):
        Producer(channel, Exchange("orders")).publish("a", routing_key="nowhere", serializer="json")
    assert drained(connection, channel, "lost") == "a"


def test_priorities_and_expiration_change_nothing(site, connection, channel):
    declared_queue(channel)
    publish(channel, "a", priority=0, expiration=0.001)
    publish(channel, "b", priority=9)
    assert drained(connection, channel, "q") == "a"


def test_a_purge_deletes_what_is_there_and_says_how_much(site, channel):
    queue = declared_queue(channel)
    publish(channel, "a", "b")
    assert queue.purge() == 2
    assert site.counts() == (0, 0, 0)


@pytest.mark.parametrize("predefined", [True, False])
def test_a_queue_is_deleted_unless_it_is_predefined(site, predefined):
    site.sqs.create_queue("q", {}, {})
    url = site.sqs.queue_url("q")
    options = {"predefined_queues": {"q": {"url": url}}} if predefined else {}
    channel = site.connect(**options).channel()
    declared_queue(channel).delete()
    assert site.exists("q") is predefined


def test_the_management_api_lists_bindings(connection, channel):
    declared_queue(channel)
    assert connection.get_manager().get_bindings() == [
        {"destination": "q", "source": "q", "routing_key": "q"}
    ]


def test_recovering_is_refused_with_what_to_do(channel):
    with pytest.raises(NotImplementedError, match="close the channel"):
        channel.basic_recover(requeue=True)

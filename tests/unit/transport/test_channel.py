"""kombu's own API on SQS, without Celery: consumers, queues, and the features of docs/kombu-features.md."""

import base64
import types

import celery.worker.consumer
import pytest
from kombu import Consumer, Exchange, Producer, Queue
from kombu.exceptions import ChannelError
from kombu.mixins import ConsumerMixin
from kombu.simple import SimpleQueue
from support.kombu_site import declared_queue, publish
from support.processes import SOON, wait_until

from celery_sqs_visibility.aws import queues
from celery_sqs_visibility.aws.port import OutgoingMessage, ReceiveOptions
from celery_sqs_visibility.errors import AccessDeniedError, QueueDoesNotExistError
from celery_sqs_visibility.policy.event_routes import EventRoute, EventRoutes
from celery_sqs_visibility.policy.payload_pointers import pointer_body, size_attribute
from celery_sqs_visibility.policy.prefetch import Slots
from celery_sqs_visibility.transport.event_messages import EventMessages


@pytest.fixture
def queue(channel):
    return declared_queue(channel)


class CallbackError(Exception):
    """What a consumer's callback raises."""


def raising(_body, _message):
    raise CallbackError


@pytest.mark.usefixtures("queue")
def test_one_get_takes_ten_messages_at_the_most(site, connection, channel):
    publish(channel, *range(50))
    queue = SimpleQueue(connection, "q")
    assert queue.get(timeout=SOON).payload == 0
    with pytest.raises(TimeoutError):  # the receiver would have brought more by then
        wait_until(lambda: site.counts()[0] < 40, 1, "more to be received")
    queue.close()
    assert sum(site.counts()) == 50


@pytest.mark.usefixtures("queue")
@pytest.mark.parametrize("slots", [None, lambda: Slots(2, 200)], ids=["alone", "within a worker's task"])
def test_a_consumer_without_a_prefetch_count_may_have_any_number_unsettled(site, connection, channel, slots):
    connection.transport.context.receiving.slots = slots
    publish(channel, *range(35))
    taken = []
    with Consumer(channel, [Queue("q")], callbacks=[lambda _, message: taken.append(message)]):
        while len(taken) < 35:
            connection.drain_events(timeout=SOON)
            assert len(channel.queue_consumer.held()) <= len(taken) + 10
        for message in taken:
            message.ack()
    wait_until(lambda: site.counts() == (0, 0, 0), SOON, "all to be deleted")


@pytest.mark.usefixtures("queue")
def test_a_prefetch_count_of_nothing_still_means_no_limit(site, connection, channel):
    publish(channel, *range(35))
    channel.basic_qos(0, 0, False)
    with Consumer(channel, [Queue("q")], callbacks=[lambda *_: None]):
        wait_until(lambda: site.counts()[0] == 0, SOON, "all to be received")


@pytest.mark.usefixtures("queue")
def test_a_prefetch_count_is_kept(site, connection, channel):
    publish(channel, *range(35))
    channel.basic_qos(0, 3, False)
    taken = []
    with Consumer(channel, [Queue("q")], callbacks=[lambda _, message: taken.append(message)]):
        while len(taken) < 3:
            connection.drain_events(timeout=SOON)
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.1)
        assert site.counts() == (32, 3, 0)


@pytest.mark.usefixtures("queue")
def test_an_exception_in_a_callback_leaves_drain_events_and_its_message_is_held_until_the_channel_closes(
    site, connection, channel
):
    publish(channel, "a", "b")
    with Consumer(channel, [Queue("q")], callbacks=[raising]):
        for _ in range(2):
            with pytest.raises(CallbackError):
                connection.drain_events(timeout=SOON)
    assert site.counts() == (0, 2, 0)
    channel.close()
    assert site.counts() == (2, 0, 0)


@pytest.mark.usefixtures("queue")
def test_a_mixin_stops_by_raising(site, connection, channel):
    publish(channel, "a")

    class Worker(ConsumerMixin):
        def __init__(self, connection):
            self.connection = connection

        def get_consumers(self, Consumer, channel):  # noqa: N803 - kombu's
            return [Consumer([Queue("q")], callbacks=[raising])]

    with pytest.raises(CallbackError):
        Worker(connection).run()


@pytest.mark.usefixtures("queue")
def test_an_exception_in_a_callback_of_celerys_worker_is_logged_and_the_message_comes_back(
    site, connection, channel, caplog
):
    publish(channel, "a")
    connection.transport.for_worker = True
    with Consumer(channel, [Queue("q")], callbacks=[raising]):
        connection.drain_events(timeout=SOON)
    assert "message could not be handed to Celery" in caplog.text
    assert len(channel.queue_consumer.held()) == 0


#: Bodies of other programs, and what kombu's SQS transport hands to its consumers.
OTHERS = {
    "text": ("hello", "hello"),
    "json": (' {"order": 7}', ' {"order": 7}'),
    "list": ("[1, 2]", "[1, 2]"),
    "base64": (base64.b64encode(b"7 apples").decode(), "7 apples"),
    "bytes": (base64.b64encode(b"\xff\xfe").decode(), base64.b64encode(b"\xff\xfe").decode()),
    "faulty": ('{"properties": {}, "headers": []}', '{"properties": {}, "headers": []}'),
    "event": (
        '{"Service": "Amazon S3", "Event": "s3:TestEvent"}',
        '{"Service": "Amazon S3", "Event": "s3:TestEvent"}',
    ),
}


@pytest.mark.usefixtures("queue")
@pytest.mark.parametrize(("body", "delivered"), OTHERS.values(), ids=OTHERS)
def test_a_message_of_another_program_reaches_a_consumer_that_is_not_celerys_as_its_body(
    site, connection, channel, body, delivered
):
    fetched = declared_queue(channel)
    for get in (fetched.get, lambda: SimpleQueue(connection, "q").get(timeout=SOON)):
        site.sqs.send(channel.context.queues.find("q").url, OutgoingMessage(body))
        message = get()
        assert (message.body, message.payload) == (delivered.encode(), delivered)
        assert message.delivery_info["sqs_message"]["MessageId"]
        message.ack()
        wait_until(lambda: site.counts() == (0, 0, 0), SOON, "it to be deleted")


@pytest.mark.usefixtures("queue")
def test_a_worker_whose_events_become_tasks_leaves_those_of_other_consumers_alone(site, connection, channel):
    routes = EventRoutes([EventRoute("s3:ObjectCreated:*", "import")])
    channel.context.decode_for_worker = EventMessages(routes).decode
    connection.transport.for_worker = True
    site.sqs.send(channel.context.queues.find("q").url, OutgoingMessage(OTHERS["event"][0]))
    taken = []
    with Consumer(channel, [Queue("q")], callbacks=[lambda _, message: taken.append(message)]):
        connection.drain_events(timeout=SOON)
        assert [message.payload for message in taken] == [OTHERS["event"][1]]
        assert site.counts() == (0, 1, 0)


@pytest.mark.usefixtures("queue")
def test_a_consumer_that_is_not_celerys_gets_the_pointer_to_a_payload_that_it_may_not_read(
    site, connection, channel
):
    body = pointer_body("elsewhere", "key")
    site.sqs.send(channel.context.queues.find("q").url, OutgoingMessage(body, attributes=size_attribute(9)))
    queue = SimpleQueue(connection, "q")
    assert queue.get(timeout=SOON).payload == body
    queue.close()


@pytest.mark.usefixtures("queue")
def test_a_worker_without_the_bootsteps_is_refused_before_it_loses_a_message(site, channel):
    on_decode_error = types.MethodType(celery.worker.consumer.Consumer.on_decode_error, object())
    consumer = Consumer(channel, [Queue("q")], on_decode_error=on_decode_error)
    with pytest.raises(RuntimeError, match="without the bootsteps of celery_sqs_visibility"):
        consumer.consume()


@pytest.mark.usefixtures("queue")
def test_a_queue_so_new_that_sqs_does_not_know_it_yet_is_sent_to_a_moment_later(site, channel, monkeypatch):
    monkeypatch.setattr(queues, "NEW_QUEUE_PAUSES_SECONDS", (0, 0))
    for _ in range(3):
        site.sqs.fail_next("SendMessage", QueueDoesNotExistError("The specified queue does not exist."))
    publish(channel, 1)
    assert site.counts() == (1, 0, 0)


@pytest.mark.usefixtures("queue")
def test_a_queue_that_was_deleted_after_it_was_found_is_created_again(site, channel):
    site.sqs.delete_queue(site.sqs.queue_url("q"))
    publish(channel, "a")
    assert site.counts() == (1, 0, 0)


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

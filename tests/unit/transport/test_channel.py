"""kombu's own API on SQS, without Celery: how many messages a consumer has, and what its exceptions do."""

from __future__ import annotations

import base64
import types

import celery.worker.consumer
import pytest
from kombu import Consumer, Queue
from kombu.mixins import ConsumerMixin
from kombu.simple import SimpleQueue
from support.kombu_site import declared_queue, publish
from support.processes import SOON, wait_until

from celery_sqs_visibility.aws import queues
from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.errors import QueueDoesNotExistError
from celery_sqs_visibility.policy.event_routes import EventRoute, EventRoutes
from celery_sqs_visibility.policy.payload_pointers import pointer_body, size_attribute
from celery_sqs_visibility.policy.prefetch import Slots
from celery_sqs_visibility.transport.event_messages import EventMessages


@pytest.fixture(autouse=True)
def queue(channel):
    declared_queue(channel)


class CallbackError(Exception):
    """What a consumer's callback raises."""


def raising(_body, _message):
    raise CallbackError


def test_one_get_takes_ten_messages_at_the_most(site, connection, channel):
    publish(channel, *range(50))
    queue = SimpleQueue(connection, "q")
    assert queue.get(timeout=SOON).payload == 0
    with pytest.raises(TimeoutError):  # the receiver would have brought more by then
        wait_until(lambda: site.counts()[0] < 40, 1, "more to be received")
    queue.close()
    assert sum(site.counts()) == 50


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


def test_a_prefetch_count_of_nothing_still_means_no_limit(site, connection, channel):
    publish(channel, *range(35))
    channel.basic_qos(0, 0, False)
    with Consumer(channel, [Queue("q")], callbacks=[lambda *_: None]):
        wait_until(lambda: site.counts()[0] == 0, SOON, "all to be received")


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


def test_a_mixin_stops_by_raising(site, connection, channel):
    publish(channel, "a")

    class Worker(ConsumerMixin):
        def __init__(self, connection):
            self.connection = connection

        def get_consumers(self, Consumer, channel):  # noqa: N803 - kombu's
            return [Consumer([Queue("q")], callbacks=[raising])]

    with pytest.raises(CallbackError):
        Worker(connection).run()


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


@pytest.mark.parametrize(("body", "delivered"), OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("name", ["q", "q.fifo"])
def test_a_message_of_another_program_reaches_a_consumer_that_is_not_celerys_as_its_body(
    site, connection, channel, name, body, delivered
):
    fetched = declared_queue(channel, name)
    target = channel.context.queues.find(name)
    for get in (fetched.get, lambda: SimpleQueue(connection, name).get(timeout=SOON)):
        ids = {"group_id": "g", "deduplication_id": get.__name__.strip("<>")} if target.fifo else {}
        site.sqs.send(target.url, OutgoingMessage(body, **ids))
        message = get()
        assert (message.body, message.payload) == (delivered.encode(), delivered)
        assert message.delivery_info["sqs_message"]["MessageId"]
        message.ack()
        wait_until(lambda: site.counts(name) == (0, 0, 0), SOON, "it to be deleted")


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


def test_a_consumer_that_is_not_celerys_gets_the_pointer_to_a_payload_that_it_may_not_read(
    site, connection, channel
):
    body = pointer_body("elsewhere", "key")
    site.sqs.send(channel.context.queues.find("q").url, OutgoingMessage(body, attributes=size_attribute(9)))
    queue = SimpleQueue(connection, "q")
    assert queue.get(timeout=SOON).payload == body
    queue.close()


def test_a_worker_without_the_bootsteps_is_refused_before_it_loses_a_message(site, channel):
    on_decode_error = types.MethodType(celery.worker.consumer.Consumer.on_decode_error, object())
    consumer = Consumer(channel, [Queue("q")], on_decode_error=on_decode_error)
    with pytest.raises(RuntimeError, match="without the bootsteps of celery_sqs_visibility"):
        consumer.consume()


def test_a_queue_so_new_that_sqs_does_not_know_it_yet_is_sent_to_a_moment_later(site, channel, monkeypatch):
    monkeypatch.setattr(queues, "NEW_QUEUE_PAUSES_SECONDS", (0, 0))
    for _ in range(3):
        site.sqs.fail_next("SendMessage", QueueDoesNotExistError("The specified queue does not exist."))
    publish(channel, 1)
    assert site.counts() == (1, 0, 0)


def test_a_queue_that_was_deleted_after_it_was_found_is_created_again(site, channel):
    site.sqs.delete_queue(site.sqs.queue_url("q"))
    publish(channel, "a")
    assert site.counts() == (1, 0, 0)

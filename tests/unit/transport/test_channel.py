"""kombu's own API on SQS: queues that are counted, deleted and consumed without Celery."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import types
import uuid

import celery.worker.consumer
import pytest
from celery import Celery
from celery.result import AsyncResult
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.common import Broadcast
from kombu.exceptions import ChannelError
from kombu.mixins import ConsumerMixin
from kombu.simple import SimpleQueue
from support.clock import FakeClock
from support.processes import SOON, wait_until

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import ReceiveOptions
from celery_sqs_visibility.aws.queues import Queues
from celery_sqs_visibility.errors import AccessDeniedError, QueueDoesNotExistError, ThrottledError
from celery_sqs_visibility.policy.prefetch import Slots
from celery_sqs_visibility.transport import channel as channel_module
from celery_sqs_visibility.transport.exchanges import UnroutableError
from celery_sqs_visibility.transport.temporary_queues import TemporaryQueues

DENIED = AccessDeniedError("not you", code="AccessDenied", action="GetQueueAttributes")


class CallbackError(Exception):
    """What a consumer's callback raises."""


class Site:
    """Connections of a process to an SQS of their own."""

    def __init__(self):
        self.sqs = FakeSQS()
        self._user = uuid.uuid4().hex
        self._connections, self._brokers = [], []

    def connect(self, **options):
        connection = Connection(
            f"sqs://{self._user}:secret@",
            transport="celery_sqs_visibility",
            transport_options={"wait_time_seconds": 1, **options},
        )
        broker = connection.transport.context
        if broker not in self._brokers:  # connections with equal options share it
            self._brokers.append(broker)
            broker.queues = Queues(self.sqs)
            broker.temporary_queues = TemporaryQueues(broker.queues)
        self._connections.append(connection)
        return connection

    def close(self):
        for connection in self._connections:
            connection.close()

    def actions(self):
        return [action for action, _ in self.sqs.calls]

    def counts(self, name):
        """Messages visible, hidden and delayed."""
        found = self.sqs.queue_attributes(self.sqs.queue_url(name), ["All"])
        beginning = "ApproximateNumberOfMessages"
        return tuple(int(found[beginning + end]) for end in ("", "NotVisible", "Delayed"))

    def exists(self, name):
        try:
            return bool(self.sqs.queue_url(name))
        except QueueDoesNotExistError:
            return False


@pytest.fixture
def site():
    before = set(threading.enumerate())
    site = Site()
    yield site
    site.close()
    wait_until(lambda: not set(threading.enumerate()) - before, SOON, "its threads to end")


@pytest.fixture
def connection(site):
    return site.connect()


@pytest.fixture
def channel(connection):
    return connection.channel()


def declared(channel, name="q", **options):
    queue = Queue(name, Exchange(name), name, **options)(channel)
    queue.declare()
    return queue


def publish(channel, *bodies, name="q"):
    producer = Producer(channel)
    for body in bodies:
        producer.publish(body, routing_key=name, serializer="json")


# How many messages


def test_a_passive_declaration_and_a_simple_queues_size_are_what_sqs_says(site, connection, channel):
    declared(channel)
    publish(channel, *range(3))
    assert channel.queue_declare("q", passive=True).message_count == 3
    with connection.SimpleQueue("q") as queue:
        assert (queue.qsize(), len(queue)) == (3, 3)


def test_a_declaration_asks_for_no_count_and_needs_no_permission(site, channel):
    site.sqs.fail_next("GetQueueAttributes", DENIED)
    declared(channel)
    publish(channel, "a")
    assert "GetQueueAttributes" not in site.actions()


def test_a_count_that_sqs_does_not_tell_is_an_error_that_names_the_permission(site, channel):
    declared(channel)
    site.sqs.fail_next("GetQueueAttributes", DENIED)
    with pytest.raises(AccessDeniedError, match=r"queue 'q'.*allow sqs:GetQueueAttributes"):
        channel.queue_declare("q", passive=True)


def test_a_passive_declaration_of_a_queue_that_is_not_there_creates_none(site, channel):
    with pytest.raises(ChannelError, match="no queue 'q'"):
        channel.queue_declare("q", passive=True)
    assert "CreateQueue" not in site.actions()


# Deleting


def hide_one(site):
    assert site.sqs.receive(site.sqs.queue_url("q"), 1, 0, ReceiveOptions(visibility_timeout=60))


def delay_one(site, channel):
    Producer(channel).publish("late", routing_key="q", DelaySeconds=60)
    assert site.counts("q")[2] == 1


def test_an_empty_queue_is_deleted_if_empty(site, channel):
    declared(channel).delete(if_empty=True)
    assert not site.exists("q")


def test_a_queue_with_a_message_is_not_deleted_if_empty(site, channel):
    queue = declared(channel)
    publish(channel, "a")
    queue.delete(if_empty=True)
    assert site.counts("q") == (1, 0, 0)


def test_a_queue_whose_only_message_is_hidden_is_neither_empty_nor_unused(site, channel):
    queue = declared(channel)
    publish(channel, "a")
    hide_one(site)
    queue.delete(if_empty=True)
    queue.delete(if_unused=True)
    assert site.counts("q") == (0, 1, 0)


def test_a_queue_whose_only_message_is_delayed_is_not_empty(site, channel):
    queue = declared(channel)
    delay_one(site, channel)
    queue.delete(if_empty=True)
    assert site.counts("q") == (0, 0, 1)


def test_a_queue_that_is_consumed_here_is_not_unused(site, connection, channel):
    queue = declared(channel)
    with Consumer(channel, [queue]):
        Queue("q")(connection.channel()).delete(if_unused=True)
        assert site.exists("q")


@pytest.mark.parametrize("condition", ["if_empty", "if_unused"])
def test_nothing_is_deleted_where_sqs_does_not_tell_the_count(site, channel, condition):
    queue = declared(channel)
    site.sqs.fail_next("GetQueueAttributes", DENIED)
    with pytest.raises(AccessDeniedError, match="allow sqs:GetQueueAttributes"):
        queue.delete(**{condition: True})
    assert site.exists("q")


def test_a_queue_of_two_bindings_is_deleted_once(site, channel):
    queue = declared(channel)
    queue.bind_to("q", routing_key="other")
    queue.delete()
    assert site.actions().count("DeleteQueue") == 1


def test_to_delete_an_exchange_deletes_no_queue(site, channel):
    queue = declared(channel)
    publish(channel, "a")
    queue.exchange(channel).delete()
    queue.exchange(channel).delete()
    assert site.counts("q") == (1, 0, 0)
    assert "DeleteQueue" not in site.actions()


def test_an_exchange_with_a_binding_is_not_unused(channel):
    queue = declared(channel)
    queue.exchange(channel).delete(if_unused=True)
    assert "q" in channel.get_exchanges()


# Without a prefetch count


def test_one_get_takes_ten_messages_at_the_most(site, connection, channel):
    declared(channel)
    publish(channel, *range(50))
    queue = SimpleQueue(connection, "q")
    assert queue.get(timeout=SOON).payload == 0
    with pytest.raises(TimeoutError):  # the receiver would have brought more by then
        wait_until(lambda: site.counts("q")[0] < 40, 1, "more to be received")
    queue.close()
    assert sum(site.counts("q")) == 50


@pytest.mark.parametrize("slots", [None, lambda: Slots(2, 200)], ids=["alone", "within a worker's task"])
def test_a_consumer_may_have_any_number_in_hand(site, connection, channel, slots):
    connection.transport.context.slots = slots
    declared(channel)
    publish(channel, *range(35))
    taken = []
    with Consumer(channel, [Queue("q")], callbacks=[lambda _, message: taken.append(message)]):
        while len(taken) < 35:
            connection.drain_events(timeout=SOON)
            assert len(channel.queue_consumer.ledger) <= len(taken) + 10
        for message in taken:
            message.ack()
    wait_until(lambda: site.counts("q") == (0, 0, 0), SOON, "all to be deleted")


def test_a_prefetch_count_of_nothing_still_means_no_limit(site, connection, channel):
    declared(channel)
    publish(channel, *range(35))
    channel.basic_qos(0, 0, False)
    with Consumer(channel, [Queue("q")], callbacks=[lambda *_: None]):
        wait_until(lambda: site.counts("q")[0] == 0, SOON, "all to be received")


def test_a_prefetch_count_is_kept(site, connection, channel):
    declared(channel)
    publish(channel, *range(35))
    channel.basic_qos(0, 3, False)
    taken = []
    with Consumer(channel, [Queue("q")], callbacks=[lambda _, message: taken.append(message)]):
        while len(taken) < 3:
            connection.drain_events(timeout=SOON)
        with pytest.raises(socket.timeout):
            connection.drain_events(timeout=0.1)
        assert site.counts("q") == (32, 3, 0)


# basic_get


def test_what_is_fetched_without_acknowledgement_is_deleted(site, channel):
    queue = declared(channel)
    publish(channel, "a", "b")
    assert [queue.get(no_ack=True).payload, queue.get(no_ack=True).payload] == ["a", "b"]
    assert queue.get(no_ack=True) is None
    assert site.counts("q") == (0, 0, 0)
    assert len(channel._fetched) == 0


def test_what_is_fetched_is_deleted_when_it_is_acknowledged(site, channel):
    queue = declared(channel)
    publish(channel, "a")
    message = queue.get()
    assert site.counts("q") == (0, 1, 0)
    message.ack()
    assert site.counts("q") == (0, 0, 0)


def test_a_deletion_that_fails_is_an_error(site, channel):
    queue = declared(channel)
    publish(channel, "a")
    message = queue.get()
    site.sqs.fail_next("DeleteMessageBatch", ThrottledError("slow down"), position=0)
    with pytest.raises(ThrottledError):
        message.ack()


def test_what_was_fetched_and_not_settled_is_given_back_when_the_channel_closes(site, channel):
    queue = declared(channel)
    publish(channel, *range(12))
    for _ in range(12):
        queue.get()
    channel.close()
    assert site.counts("q") == (12, 0, 0)
    assert site.actions().count("ChangeMessageVisibilityBatch") == 2


def test_a_fork_gives_nothing_back_that_its_parent_has(site, channel):
    queue = declared(channel)
    publish(channel, "a")
    queue.get()
    channel._pid = os.getpid() + 1  # as seen by a child
    channel.close()
    assert site.counts("q") == (0, 1, 0)


def test_handles_whose_time_is_up_do_not_pile_up(site, channel, monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(channel_module, "SYSTEM_CLOCK", clock)
    channel = channel.connection.client.channel()
    queue = declared(channel)
    publish(channel, *range(3))
    queue.get()
    queue.get()
    clock.advance(200)
    queue.get()
    assert len(channel._fetched) == 1


# Exceptions of callbacks


def raising(_body, _message):
    raise CallbackError


def test_an_exception_in_a_callback_leaves_drain_events_and_what_it_had_is_held_until_the_channel_closes(
    site, connection, channel
):
    declared(channel)
    publish(channel, "a", "b")
    with Consumer(channel, [Queue("q")], callbacks=[raising]):
        for _ in range(2):
            with pytest.raises(CallbackError):
                connection.drain_events(timeout=SOON)
    assert site.counts("q") == (0, 2, 0)
    channel.close()
    assert site.counts("q") == (2, 0, 0)


def test_a_mixin_stops_by_raising(site, connection, channel):
    declared(channel)
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
    declared(channel)
    publish(channel, "a")
    connection.transport.for_worker = True
    with Consumer(channel, [Queue("q")], callbacks=[raising]):
        connection.drain_events(timeout=SOON)
    assert "message could not be handed to Celery" in caplog.text
    assert len(channel.queue_consumer.ledger) == 0


def test_a_rejected_message_that_was_fetched_is_left_to_the_redrive_policy(site, channel):
    dead = site.sqs.create_queue("dead", {}, {})
    arn = site.sqs.queue_attributes(dead, ["QueueArn"])["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3})
    site.sqs.create_queue("q", {"RedrivePolicy": policy}, {})
    queue = declared(channel)
    publish(channel, "a")
    queue.get().reject()
    assert site.counts("q") == (0, 1, 0)


def test_a_rejected_message_that_was_fetched_is_deleted_without_a_redrive_policy(site, channel):
    queue = declared(channel)
    publish(channel, "a")
    queue.get().reject()
    assert site.counts("q") == (0, 0, 0)


# Exchanges that SQS cannot have


def test_a_broadcast_queue_is_refused_with_a_sentence(site, channel):
    with pytest.raises(
        UnroutableError, match=r"exchange 'news' is of type 'fanout'.*direct exchange in place"
    ):
        Broadcast("news")(channel).declare()
    assert "CreateQueue" not in site.actions()


def test_to_consume_a_broadcast_queue_is_refused(channel):
    with pytest.raises(UnroutableError, match="'news' is of type 'fanout'"):
        Consumer(channel, [Broadcast("news")])


@pytest.mark.parametrize("kind", ["fanout", "topic", "headers", "x-delayed-message"])
def test_to_publish_to_another_exchange_than_a_direct_one_is_refused(site, channel, kind):
    exchange = Exchange("logs", type=kind)
    with pytest.raises(UnroutableError, match=f"exchange 'logs' is of type '{kind}'"):
        Producer(channel, exchange).publish("a", routing_key="a.b", declare=[exchange])
    with pytest.raises(UnroutableError, match=f"exchange 'logs' is of type '{kind}'"):
        Producer(channel).publish("a", exchange=exchange, routing_key="a.b", declare=[exchange])
    assert "SendMessage" not in site.actions()


def test_a_message_that_no_queue_would_get_is_refused(site, channel):
    with pytest.raises(
        UnroutableError, match="no queue is bound to exchange 'media' with routing key 'video'"
    ):
        Producer(channel).publish("a", exchange="media", routing_key="video")
    Queue("q", Exchange("media"), "video")(channel).declare()
    Producer(channel).publish("a", exchange="media", routing_key="video")
    assert site.counts("q") == (1, 0, 0)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("celery.pidbox", "fanout"),
        ("mine.pidbox", "fanout"),
        ("reply.celery.pidbox", "direct"),
        ("celeryev", "topic"),
        ("our-events", "topic"),
    ],
)
def test_celerys_own_exchanges_are_let_through(site, channel, name, kind):
    app = Celery("events", set_as_current=False)
    app.conf.event_exchange = "our-events"
    assert app.conf.event_exchange
    exchange = Exchange(name, type=kind)
    Producer(channel).publish({}, exchange=exchange, routing_key="worker.online", declare=[exchange])
    assert "SendMessage" not in site.actions()
    app.close()


# Temporary queues


def reply_queue(**options):
    return Queue(str(uuid.uuid4()), Exchange(""), durable=True, auto_delete=True, **options)


def receives(name):
    return any(name in thread.name for thread in threading.enumerate())


def attributes_of(site, name):
    return site.sqs.queue_attributes(site.sqs.queue_url(name), ["All"])


@pytest.mark.parametrize(
    ("expires", "seconds"),
    [(86_400, "86400"), (5, "60"), (10_000_000, "1209600")],
    ids=["day", "5 s", "115 d"],
)
def test_messages_of_a_queue_that_expires_do(site, channel, expires, seconds):
    queue = reply_queue(expires=expires)
    queue(channel).declare()
    assert attributes_of(site, queue.name)["MessageRetentionPeriod"] == seconds


def test_a_temporary_queue_is_told_once(site, channel, caplog):
    for _ in range(2):
        reply_queue(expires=60)(channel).declare()
    [record] = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert "SQS has no queues that expire" in record.message
    assert "use another result backend" in record.message


@pytest.mark.parametrize("options", [{"expires": 60}, {}], ids=["expires", "result_expires=None"])
def test_a_temporary_queue_is_deleted_when_its_consumer_ends(site, connection, channel, options, caplog):
    queue = reply_queue(**options)
    queue(channel).declare()
    consumer = Consumer(connection.channel(), [queue], no_ack=True)
    consumer.consume()
    assert site.exists(queue.name)
    wait_until(lambda: "ReceiveMessage" in site.actions(), SOON, "a poll to be in flight")
    consumer.cancel()
    assert not site.exists(queue.name)
    wait_until(lambda: not receives(queue.name), SOON, "the poll to end")
    assert "cannot receive" not in caplog.text


def test_a_temporary_queue_is_deleted_when_its_consumers_connection_closes(site, channel):
    queue = reply_queue(expires=60)
    queue(channel).declare()
    other = site.connect()
    Consumer(other, [queue], no_ack=True).consume()
    other.close()
    assert not site.exists(queue.name)


def test_what_is_left_in_a_temporary_queue_ends_with_it(site, connection, channel, caplog):
    queue = reply_queue(expires=60)
    queue(channel).declare()
    publish(channel, *range(15), name=queue.name)
    taken = []
    consumer = Consumer(channel, [queue], callbacks=[lambda _, message: taken.append(message)])
    consumer.consume()
    while len(taken) < 5:
        connection.drain_events(timeout=SOON)
    taken[0].ack()
    consumer.cancel()
    taken[1].ack()
    channel.close()
    assert not site.exists(queue.name)
    assert "will try again" not in caplog.text


def test_a_temporary_queue_of_another_process_is_left_alone(site, channel):
    queue = reply_queue(expires=60)
    site.sqs.create_queue(queue.name, {}, {})
    with Consumer(channel, [queue]):
        pass
    assert site.exists(queue.name)


def test_a_queue_that_others_may_consume_is_left_alone(site, channel):
    with Consumer(channel, [Queue("tasks", auto_delete=True)]):
        pass
    assert site.exists("tasks")


def test_a_workers_queues_are_left_alone(site, connection, channel):
    connection.transport.for_worker = True
    with Consumer(channel, [Queue("tasks", auto_delete=True, expires=60)]):
        pass
    assert site.exists("tasks")


def test_a_forked_child_deletes_no_queue_of_its_parents(site, channel):
    queue = reply_queue(expires=60)
    Consumer(channel, [queue]).consume()
    channel._pid = os.getpid() + 1  # as seen by a child
    channel.close()
    assert site.exists(queue.name)
    channel.queue_consumer.close()


def test_a_result_for_a_client_that_has_gone_creates_no_queue(site, channel, caplog):
    caplog.set_level(logging.INFO)
    gone = str(uuid.uuid4())
    Producer(channel).publish({"status": "SUCCESS"}, routing_key=gone, correlation_id="task")
    assert not site.exists(gone)
    assert "dropped a result" in caplog.text


def test_a_task_creates_its_queue_whatever_its_name(site, channel):
    name = str(uuid.uuid4())
    Producer(channel).publish([], routing_key=name, correlation_id="task", headers={"task": "work.quick"})
    assert site.counts(name) == (1, 0, 0)


def test_results_come_through_a_clients_own_queue_which_ends_with_it(site, connection, channel):
    app = Celery("client", set_as_current=False, backend="rpc://")
    app.connection = lambda *_, **__: site.connect()
    backend = app.backend
    backend.on_task_call(Producer(channel), "task")
    result = AsyncResult("task", backend=backend, app=app)
    backend.add_pending_result(result)
    meta = {"task_id": "task", "status": "SUCCESS", "result": 42, "traceback": None, "children": []}
    Producer(channel).publish(meta, routing_key=backend.oid, correlation_id="task", serializer="json")
    assert result.get(timeout=SOON) == 42
    assert site.exists(backend.oid)
    backend.result_consumer.stop()
    assert not site.exists(backend.oid)
    app.close()


# A worker without the bootsteps


def test_a_worker_without_the_bootsteps_is_refused_before_it_loses_a_message(site, channel):
    on_decode_error = types.MethodType(celery.worker.consumer.Consumer.on_decode_error, object())
    consumer = Consumer(channel, [Queue("q")], on_decode_error=on_decode_error)
    with pytest.raises(RuntimeError, match="without the bootsteps of celery_sqs_visibility"):
        consumer.consume()

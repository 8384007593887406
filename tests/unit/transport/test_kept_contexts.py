"""How long the context of a broker lives: as long as something of it is in use, and a while longer."""

from __future__ import annotations

import gc
import os
import uuid
from weakref import ref

import pytest
from kombu import Connection, Consumer, Queue
from support.kombu_site import declared_queue, publish
from support.processes import SOON, wait_until

from celery_sqs_visibility.transport import broker_context
from celery_sqs_visibility.transport.broker_context import KEPT_CONTEXTS


def connect(key, **options):
    return Connection(
        f"sqs://{key}:secret@",
        transport="celery_sqs_visibility",
        transport_options=options or {"region": "eu-west-1"},
    )


def context_of(key):
    """The context of a connection with that key, which is closed."""
    connection = connect(key)
    context = connection.transport.context
    connection.transport.close_connection(connection)
    return context


def use_others():
    """Connect to as many other brokers as are kept."""
    for _ in range(KEPT_CONTEXTS):
        context_of(uuid.uuid4())


@pytest.fixture
def uncollected():
    """Only a count of references frees objects."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
def test_the_context_of_a_closed_connection_is_gone_after_those_of_a_few_other_brokers():
    context, sqs = ref(context_of("rare")), ref(context_of("rare").queues.sqs)
    assert context_of("rare") is context()
    use_others()
    assert (context(), sqs()) == (None, None)


@pytest.mark.usefixtures("uncollected")
def test_of_the_contexts_that_are_not_in_use_those_that_were_used_last_are_kept():
    contexts = [ref(context_of(number)) for number in range(KEPT_CONTEXTS)]
    assert context_of(0) is contexts[0]()
    context_of("another")
    kept = [context() is not None for context in contexts]
    assert kept == [True, False, *[True] * (KEPT_CONTEXTS - 2)]


def test_an_open_connection_shares_its_context_with_a_later_one_after_any_number_of_others():
    connection = connect("shared")
    context = connection.transport.context
    use_others()
    gc.collect()
    assert context_of("shared") is context


def test_what_comes_after_the_end_of_a_connection_finds_the_context_again(site):
    connection = site.connect()
    channel, context = connection.channel(), connection.transport.context
    connection.close()
    assert channel.context is context
    channel.basic_reject("unknown")


def test_a_message_that_is_in_hand_keeps_the_context_of_its_closed_connection(site):
    key = site.connect().userid
    first = site.connect()
    channel = first.channel()
    declared_queue(channel)
    publish(channel, "runs")
    taken = []
    with Consumer(channel, [Queue("q")], callbacks=[lambda _, message: taken.append(message)]):
        first.drain_events(timeout=SOON)
    (message,) = taken
    assert message.delivery.start()
    context = ref(first.transport.context)
    first.close()
    site.forget()
    del first, channel
    use_others()
    gc.collect()
    second = connect(key, wait_time_seconds=1)
    assert second.transport.context is context()
    (consumer,) = second.transport.context.receiving.queue_consumers
    assert consumer.held() == [message.delivery]
    message.ack()
    wait_until(lambda: site.counts() == (0, 0, 0), SOON, "it to be deleted")
    del message, consumer, second
    taken.clear()
    use_others()

    def is_gone():
        gc.collect()
        return context() is None

    wait_until(is_gone, SOON, "its threads to end")


def test_a_predefined_queues_access_is_kept_with_the_context():
    queues = {"q": {"url": "https://sqs.eu-north-1.amazonaws.com/123456789012/q", "region": "eu-north-1"}}
    context = connect("key", predefined_queues=queues).transport.context
    access = ref(context.queues.find("q").sqs)
    context.queues.forget("q")
    gc.collect()
    assert context.queues.find("q").sqs is access()


def test_a_forked_child_keeps_what_it_inherits(monkeypatch):
    monkeypatch.setattr(broker_context, "_inherited", kept := [])
    context = connect("parents").transport.context
    if not (pid := os.fork()):
        os._exit(0 if context in kept else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert kept == []

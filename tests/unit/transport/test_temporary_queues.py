"""Queues that AMQP would delete by itself."""

import logging
import os
import threading
import uuid

import pytest
from celery import Celery
from celery.result import AsyncResult
from kombu import Consumer, Exchange, Producer, Queue
from support.kombu_site import publish
from support.processes import SOON, wait_until


def reply_queue(channel, **options):
    """A client's queue for results, declared."""
    queue = Queue(str(uuid.uuid4()), Exchange(""), durable=True, auto_delete=True, **options)
    queue(channel).declare()
    return queue


@pytest.mark.parametrize(
    ("expires", "seconds"),
    [(86_400, "86400"), (5, "60"), (10_000_000, "1209600")],
    ids=["day", "5 s", "115 d"],
)
def test_messages_of_a_queue_that_expires_do(site, channel, expires, seconds):
    queue = reply_queue(channel, expires=expires)
    assert site.attributes(queue.name)["MessageRetentionPeriod"] == seconds


def test_a_temporary_queue_is_logged_once(site, channel, caplog):
    for _ in range(2):
        reply_queue(channel, expires=60)
    [record] = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert "SQS has no queues that expire" in record.message
    assert "use another result backend" in record.message


@pytest.mark.parametrize("options", [{"expires": 60}, {}], ids=["expires", "result_expires=None"])
def test_a_temporary_queue_is_deleted_when_its_consumer_ends(site, connection, channel, options, caplog):
    queue = reply_queue(channel, **options)
    consumer = Consumer(connection.channel(), [queue], no_ack=True)
    consumer.consume()
    assert site.exists(queue.name)
    wait_until(lambda: "ReceiveMessage" in site.actions(), SOON, "a poll to be in flight")
    consumer.cancel()
    assert not site.exists(queue.name)
    polling = [thread for thread in threading.enumerate() if queue.name in thread.name]
    wait_until(lambda: not any(thread.is_alive() for thread in polling), SOON, "the poll to end")
    assert "cannot receive" not in caplog.text


def test_a_temporary_queue_is_deleted_when_its_consumers_connection_closes(site, channel):
    queue = reply_queue(channel, expires=60)
    other = site.connect()
    Consumer(other, [queue], no_ack=True).consume()
    other.close()
    assert not site.exists(queue.name)


def test_what_is_left_in_a_temporary_queue_ends_with_it(site, connection, channel, caplog):
    queue = reply_queue(channel, expires=60)
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


@pytest.mark.parametrize(
    ("of_a_worker", "created_elsewhere", "options"),
    [(False, True, {"expires": 60}), (False, False, {}), (True, False, {"expires": 60})],
    ids=["another process's", "others may consume it", "a worker's"],
)
def test_a_queue_is_left_alone_that_is(site, connection, channel, of_a_worker, created_elsewhere, options):
    if created_elsewhere:
        site.sqs.create_queue("tasks", {}, {})
    connection.transport.for_worker = of_a_worker
    with Consumer(channel, [Queue("tasks", auto_delete=True, **options)]):
        pass
    assert site.exists("tasks")


def test_a_forked_child_deletes_no_queue_of_its_parents(site, channel):
    queue = reply_queue(channel, expires=60)
    Consumer(channel, [queue]).consume()
    channel._pid = os.getpid() + 1  # as seen by a child
    channel.close()
    assert site.exists(queue.name)
    channel.queue_consumer.close()


def test_a_result_for_a_client_that_has_gone_creates_no_queue(site, channel, caplog):
    caplog.set_level(logging.INFO)
    gone = str(uuid.uuid4())
    publish(channel, {"status": "SUCCESS"}, name=gone, correlation_id="task")
    assert not site.exists(gone)
    assert "dropped a result" in caplog.text


def test_a_task_creates_its_queue_whatever_its_name(site, channel):
    name = str(uuid.uuid4())
    publish(channel, [], name=name, correlation_id="task", headers={"task": "work.quick"})
    assert site.counts(name) == (1, 0, 0)


def test_results_come_through_a_clients_own_queue_which_ends_with_it(site, connection, channel):
    app = Celery("client", set_as_current=False, backend="rpc://")
    app.connection = lambda *_, **__: site.connect()
    backend = app.backend
    backend.on_task_call(Producer(channel), "task")
    result = AsyncResult("task", backend=backend, app=app)
    backend.add_pending_result(result)
    meta = {"task_id": "task", "status": "SUCCESS", "result": 42, "traceback": None, "children": []}
    publish(channel, meta, name=backend.oid, correlation_id="task")
    assert result.get(timeout=SOON) == 42
    assert site.exists(backend.oid)
    backend.result_consumer.stop()
    assert not site.exists(backend.oid)
    app.close()


def test_a_clients_own_queue_ends_with_its_process(site, channel):
    mine, other = reply_queue(channel, expires=60), Queue("shared", auto_delete=True, expires=60)(channel)
    other.declare()
    Consumer(channel, [mine]).consume()
    queues = channel.context.temporary_queues
    queues._pid += 1  # as seen by a child
    queues.end_clients()
    assert site.exists(mine.name)
    queues._pid -= 1
    queues.end_clients()
    assert not site.exists(mine.name)
    assert site.exists("shared"), "others may read it"

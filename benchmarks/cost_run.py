"""Does one kind of work in this process, on one thread, and prints its count as JSON: see cost.py."""

from __future__ import annotations

import argparse
import json
import logging
import os
import traceback
from collections import deque
from functools import partial

import cost_server
import cost_worlds as worlds
from celery import Celery
from cost_counter import Counter
from cost_instructions import Instructions
from cost_kinds import KINDS
from free_broker import FreeBroker
from kombu import Queue

from celery_sqs_visibility import VisibilityTask, publish_batch
from celery_sqs_visibility.aws.boto import BotoSQS
from celery_sqs_visibility.aws.client_settings import ClientSettings
from celery_sqs_visibility.aws.port import OutgoingMessage, ReceiveOptions
from celery_sqs_visibility.delivery.supervisor import CHECK_INTERVAL_SECONDS

TOGETHER = 10  # messages of a request
WARM_UP = 1000
SLOTS = 10
MINUTE_SECONDS = 60
POOLS = {"prefork": worlds.Processes, "threads": worlds.Threads}


def make_app(kind):
    app = Celery("cost", task_cls=VisibilityTask if kind.visibility else None)
    app.conf.update(task_acks_late=not kind.early, worker_hijack_root_logger=False)
    if kind.free:
        app.conf.update(broker_url="memory://localhost", broker_transport="free_broker:FreeBroker")
    else:
        app.conf.update(broker_transport="celery_sqs_visibility", broker_transport_options=kind.options)
    app.conf.task_queues = [Queue(name) for name in kind.queues]
    app.task(noop, name="noop")
    return app


def noop(_number):
    pass


class FreeSupply:
    """Messages of the broker that costs nothing."""

    def __init__(self, app, queues, messages, _sqs):
        for number in range(messages):
            app.tasks["noop"].apply_async([number], queue=queues[number % len(queues)])
        waiting = FreeBroker.waiting
        self._stock = {name: deque(waiting[name]) for name in queues}
        for name in queues:
            waiting[name].clear()

    def feed(self):
        for name, stock in self._stock.items():
            FreeBroker.waiting[name].extend(stock.popleft() for _ in range(min(TOGETHER, len(stock))))

    @property
    def left(self):
        return sum(map(len, FreeBroker.waiting.values()))

    def work(self, _consumer):
        """There are no threads."""

    def wait(self, _consumer, _seconds):
        """There are no threads."""


class Supply:
    """Messages for the fake SQS, ten at a time: a backlog would cost the fake more than a task."""

    def __init__(self, app, queues, messages, sqs):
        self._sqs = sqs
        for number in range(messages):
            app.tasks["noop"].apply_async([number], queue=queues[number % len(queues)])
        self._stock = {}
        for url, queue in sqs.queues.items():
            if url.rpartition("/")[2] in queues:
                sent = [
                    what["message"]
                    for action, what in sqs.calls
                    if action == "SendMessage" and what["queue_url"] == url
                ]
                self._stock[url] = deque(sent)
                queue.purge()

    def feed(self):
        for url, stock in self._stock.items():
            for _ in range(min(TOGETHER, len(stock))):
                self._sqs.send(url, stock.popleft())

    @property
    def left(self):
        return sum(len(self._sqs.queues[url].messages) for url in self._stock)

    def work(self, consumer):
        """What the threads do: settle what is due, then poll."""
        worlds.advance(worlds.LATENCY_SECONDS)
        for queue_consumer in queue_consumers(consumer):
            for threads in queue_consumer._lanes:
                while threads.send_next():
                    worlds.advance(worlds.LATENCY_SECONDS)
            for receiver in queue_consumer._receivers.all():
                if self.left:
                    receiver.lane.send_next()

    def wait(self, consumer, seconds):
        """What the threads do while nothing comes: long polls, and the supervisor's checks meanwhile."""
        (queue_consumer,) = queue_consumers(consumer)

        def meanwhile(wait):
            supervise(queue_consumer, wait)

        self._sqs.meanwhile = meanwhile
        until = worlds.Clock.monotonic() + seconds
        while worlds.Clock.monotonic() < until:
            for receiver in queue_consumer._receivers.all():
                receiver.lane.send_next()


def queue_consumers(consumer):
    return list(consumer.connection.transport.context.receiving.worker_queue_consumers)


def supervise(queue_consumer, seconds):
    """Have the supervisor check a consumer for so many seconds of the clock, as its thread does."""
    for _ in range(int(seconds / CHECK_INTERVAL_SECONDS)):
        worlds.advance(CHECK_INTERVAL_SECONDS)
        queue_consumer._supervisor.check(worlds.Clock.monotonic())


def consume(consumer, kind, supply, counter, messages):
    """Warm up, then count that many messages from their receive to their deletion."""
    for counted, many in enumerate((WARM_UP, messages)):
        if counted:
            counter.start()
        for _ in range(0, many, TOGETHER * len(kind.queues)):
            supply.feed()
            supply.work(consumer)
            while supply.left:
                yield
                supply.work(consumer)
    counter.stop()


def extend(consumer, _kind, supply, counter, messages):
    """Have all messages run, and no run end; the second time that they are extended is counted."""
    (queue_consumer,) = queue_consumers(consumer)
    while len(queue_consumer.held()) < messages:
        supply.feed()
        supply.work(consumer)
        yield
    for number in range(2):
        worlds.advance(80)
        if number:
            counter.start()
        while queue_consumer.holder._heartbeat.lane.send_next():
            pass
    counter.stop()


def idle(consumer, _kind, supply, counter, _messages):
    """The second minute without a message: the threads' part, then the turns of the loop that it has."""
    turns = consumer.hub.poller.poll = Turns()
    return minutes(consumer, supply, counter, turns)


class Turns:
    """Takes the place of the event loop's wait for descriptors."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self, seconds):
        self.seconds += seconds
        return ()


def minutes(consumer, supply, counter, turns):
    for counted in (False, True):
        if counted:
            counter.start()
        supply.wait(consumer, MINUTE_SECONDS)
        turns.seconds = 0.0
        while turns.seconds < MINUTE_SECONDS:
            yield
    counter.stop()


def publish(app, counter, messages):
    delay = app.tasks["noop"].delay
    for number in range(WARM_UP):
        delay(number)
    counter.start()
    for number in range(messages):
        delay(number)
    counter.stop()


def publish_in_a_block(app, counter, messages):
    """A block, whose threads' part this thread does after each ten messages."""
    delay = app.tasks["noop"].delay
    for counted, many in enumerate((WARM_UP, messages)):
        if counted:
            counter.start()
        with publish_batch(app) as batch:
            for number in range(many):
                delay(number)
                if number % TOGETHER == TOGETHER - 1:
                    batch._senders[-1].lane.send_next()
    counter.stop()


def ask(action, counter, requests):
    """Requests of a real client, over a real connection, to a server that answers at once."""
    options = ReceiveOptions(120, ("ApproximateReceiveCount", "SentTimestamp"), ("All",), None)
    with cost_server.running() as url:
        sqs = BotoSQS(ClientSettings("us-east-1", url, access_key_id="made-up", secret_access_key="made-up"))
        handles = [cost_server.HANDLE] * TOGETHER
        queue = sqs.queue_url("celery")
        asked = {
            "receive_ten": lambda: sqs.receive(queue, TOGETHER, 20, options),
            "delete_ten": lambda: sqs.delete(queue, handles),
            "send_one": lambda: sqs.send(queue, OutgoingMessage(cost_server.message(0)["Body"])),
        }[action]
        for counted, many in enumerate((TOGETHER, requests)):
            if counted:
                counter.start()
            for _ in range(many):
                asked()
        counter.stop()


CONSUMING = {"consume": consume, "extend": extend, "idle": idle}
ASKING = ("receive_ten", "delete_ten", "send_one")
PUBLISHING = {"publish": publish, "publish_batch": publish_in_a_block}


def work(kind, app, sqs, counter, messages):
    """Consume, extend or idle, as the kind says, and count that."""
    supply = (FreeSupply if kind.free else Supply)(app, kind.queues, WARM_UP + messages, sqs)
    worlds.Processes.answers = kind.work != "extend"
    run_worker(
        app,
        POOLS[kind.pool],
        messages if kind.work == "extend" else SLOTS,
        lambda consumer: CONSUMING[kind.work](consumer, kind, supply, counter, messages),
        partial(finish, counter),
    )


def run_worker(app, pool, slots, turns_of, end):
    """A worker that Celery starts and whose event loop is Celery's: `turns_of` has a turn in each of its."""

    def begin(consumer):
        turns = turns_of(consumer)

        def turn():
            try:
                if next(turns, end) is end:
                    end()
            except Exception:  # noqa: BLE001 - Celery would begin anew
                end_at_once(traceback.format_exc(), 1)

        consumer.hub.timer.clear()  # which goes by the machine's clock
        consumer.hub.on_tick.add(turn)

    worker = app.WorkController(
        pool_cls=pool,
        concurrency=slots,
        ready_callback=begin,
        without_mingle=True,
        without_gossip=True,
    )
    worker.stop = lambda **_: end_at_once("the worker stops", 1)
    worker.start()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--messages", type=int, default=1000)
    parser.add_argument("--instructions", action="store_true", help="for callgrind, under which it runs")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    kind, messages = KINDS[arguments.kind], arguments.messages
    counter = Instructions() if arguments.instructions else Counter()
    if kind.work in ASKING:
        ask(kind.work, counter, messages)
        finish(counter)
    sqs = worlds.single_threaded_sqs(counter)
    app = make_app(kind)
    if kind.work in CONSUMING:
        work(kind, app, sqs, counter, messages)
    PUBLISHING[kind.work](app, counter, messages)
    finish(counter)


def finish(counter):
    rows = [[*function, t.calls, t.c_calls, t.bytecodes] for function, t in counter.tallies.items()]
    end_at_once(json.dumps(rows), 0)


def end_at_once(said, status):
    """A worker without threads cannot end in order."""
    print(said, flush=True)
    os._exit(status)


if __name__ == "__main__":
    main()

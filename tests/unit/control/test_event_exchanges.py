"""A monitor's command tells workers where to send their events, and they come."""

from __future__ import annotations

import json
import threading

import pytest
from support.processes import SOON, wait_until

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.control import inbox, wire
from celery_sqs_visibility.control import remote as remote_control
from celery_sqs_visibility.control.monitors import MAX_TOLD
from celery_sqs_visibility.control.remote import RemoteControl
from celery_sqs_visibility.policy.options import Options

COMMANDS, EVENTS = "celery.pidbox", "celeryev"


def message(body):
    return {"body": json.dumps(body), "content-type": "application/json", "content-encoding": "utf-8"}


@pytest.fixture
def remote():
    """Make a process's remote control, on the same SQS."""
    before, sqs, made = set(threading.enumerate()), FakeSQS(), []

    def make(**options):
        made.append(RemoteControl(sqs, Options.parse({"remote_control": True}), **options))
        return made[-1]

    yield make
    for each in made:
        each.close()
    wait_until(lambda: not set(threading.enumerate()) - before, SOON, "their threads to end")


def test_a_worker_sends_its_events_to_the_monitor_whose_command_it_received(remote):
    worker, monitor = remote(in_worker=lambda: True), remote()
    commands, events = [], []
    worker.consume("w.celery.pidbox", COMMANDS, lambda payload, _: commands.append(payload))
    wait_until(lambda: monitor.queues.sqs.list_queues("celery-control-celery-pidbox"), SOON, "the worker")
    worker.events.publish(EVENTS, message({"type": "unheard"}))
    monitor.consume("celeryev.1", EVENTS, lambda payload, _: events.append(payload))
    monitor.broadcast(COMMANDS, message({"method": "heartbeat", "destination": None}))
    wait_until(lambda: commands, SOON, "the command")
    worker.events.publish(EVENTS, message({"type": "worker-heartbeat"}))
    wait_until(lambda: events, SOON, "the event")
    assert json.loads(events[0]["body"]) == {"type": "worker-heartbeat"}


def test_a_process_that_listens_no_more_names_no_queue(remote, monkeypatch):
    monkeypatch.setattr(remote_control, "KEPT_SECONDS", 0)
    monitor, command = remote(), message({"method": "heartbeat"})
    assert monitor.events.announced(command) is command
    monitor.consume("celeryev.1", EVENTS, lambda *_: None)
    (address,) = monitor.events.announced(command)["headers"][wire.MONITORS][EVENTS]
    assert monitor.queues.url_of(EVENTS, address) is not None
    monitor.cancel("celeryev.1", EVENTS)
    wait_until(lambda: monitor.events.announced(command) is command, SOON, "its end")


def test_a_monitor_whose_queue_was_swept_announces_its_new_one(remote, monkeypatch):
    monkeypatch.setattr(inbox, "NEW_SECONDS", 0)
    worker, monitor, commands = remote(), remote(), []
    worker.consume("w.celery.pidbox", COMMANDS, lambda payload, _: commands.append(payload))
    worker._members["w.celery.pidbox"].inbox.address()
    monitor.consume("celeryev.1", EVENTS, lambda *_: None)
    monitor.broadcast(COMMANDS, message({"method": "heartbeat", "destination": None}))
    (swept,) = monitor.queues.sqs.list_queues("celery-control-celeryev-")
    monitor.queues.sqs.delete_queue(swept)
    wait_until(lambda: len(commands) == 2, SOON, "the second announcement")
    first, second = (each["headers"][wire.MONITORS][EVENTS] for each in commands)
    assert first != second
    assert json.loads(commands[1]["body"])["method"] == "heartbeat"


@pytest.mark.parametrize("named", ["celeryev", {"celeryev": 5}, ["celeryev"]])
def test_monitors_that_cannot_be_read_make_a_message_unreadable(named):
    text = wire.envelope('{"method": "ping"}', {wire.MONITORS: named}, COMMANDS, "")
    with pytest.raises(wire.UnreadableError):
        wire.decode({"Body": text, "MessageId": "m", "Attributes": {}})


def test_a_command_that_names_thousands_of_monitors_costs_few_threads_and_no_lists(remote):
    worker = remote(in_worker=lambda: True)
    commands = []
    worker.consume("w.celery.pidbox", COMMANDS, lambda payload, _: commands.append(payload))
    worker._members["w.celery.pidbox"].inbox.address()
    (queue,) = worker.queues.sqs.list_queues("celery-control-celery-pidbox")
    many = [f"{number:08x}-{number:012x}" for number in range(2000)]
    named = {**{f"exchange-{number}": many[:1] for number in range(1000)}, EVENTS: many}
    before = threading.active_count(), len(worker.queues.sqs.calls)
    body = wire.envelope('{"method": "heartbeat"}', {wire.MONITORS: named}, COMMANDS, "")
    worker.queues.sqs.send(queue, OutgoingMessage(body))
    wait_until(lambda: commands, SOON, "the command")
    assert threading.active_count() - before[0] <= wire.MAX_ADDRESSES + 2
    lists = [action for action, _ in worker.queues.sqs.calls[before[1] :] if action == "ListQueues"]
    assert len(lists) <= 2


def test_monitors_of_which_commands_told_are_few(remote):
    worker = remote(in_worker=lambda: True)
    worker.queues.create(EVENTS, "w")
    for start in range(0, 100, 10):
        worker.events.heard({EVENTS: [f"{number:08x}-{number:012x}" for number in range(start, start + 10)]})
    assert len(worker.events._of(EVENTS)._feeds) == MAX_TOLD

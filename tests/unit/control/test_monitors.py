"""A worker is told who listens; a client asks seldom; nobody's events cost nothing."""

import json
import logging
import threading

import pytest
from support import factories
from support.clock import FakeClock
from support.processes import SOON, wait_until

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.control import inbox, monitors, wire
from celery_sqs_visibility.control import remote as remote_control
from celery_sqs_visibility.control.monitors import (
    CLIENT_LOOK_SECONDS,
    FORGET_SECONDS,
    LATER_LOOKS_SECONDS,
    LOOK_ATTEMPTS,
    LOOK_SECONDS,
    MAX_ANNOUNCED,
    SPREAD,
    Monitors,
)
from celery_sqs_visibility.control.queues import STALE_SECONDS, ControlQueues
from celery_sqs_visibility.control.remote import RemoteControl
from celery_sqs_visibility.delivery.pump import Pump
from celery_sqs_visibility.errors import AccessDeniedError, ThrottledError, UnavailableError
from celery_sqs_visibility.policy.backoff import MAX_PAUSE_SECONDS
from celery_sqs_visibility.policy.control_names import address_in
from celery_sqs_visibility.policy.options import Options

LISTS, SENDS = "ListQueues", "SendMessageBatch"


class World:
    def __init__(self, *, in_worker):
        self.clock = FakeClock()
        self.sqs = FakeSQS(self.clock)
        self.queues = ControlQueues(self.sqs, "control-", {}, self.clock)
        self.monitors = Monitors("celeryev", self.queues, self.clock, Pump(self.clock), in_worker=in_worker)

    def open(self):
        """A monitor starts."""
        return self.queues.create("celeryev", "monitor")

    def publish(self, number=1):
        body = json.dumps({"n": number})
        self.monitors.publish(
            {"body": body, "content-type": "application/json", "headers": {"hostname": "w"}}
        )

    def left(self, queue):
        return factories.left(Queue("celeryev", queue, self.sqs))

    def requests(self, action):
        return len(factories.requests(self.sqs, action))


@pytest.fixture
def worker():
    before, world = set(threading.enumerate()), World(in_worker=True)
    yield world
    world.monitors.close()
    wait_until(lambda: not set(threading.enumerate()) - before, SOON, "its threads to end")


@pytest.fixture
def client():
    return World(in_worker=False)


def test_where_nobody_listens_a_worker_makes_no_request(worker):
    for _ in range(100):
        worker.publish()
    assert not worker.sqs.calls
    assert worker.monitors.flush(0)


def test_a_worker_sends_to_all_that_it_is_told_of_and_that_it_finds(worker):
    early, new = worker.open(), worker.open()
    worker.monitors.add_announced([address_in(new), address_in(new), "no-address"])
    worker.monitors.look()
    worker.publish()
    assert worker.monitors.flush(SOON)
    assert [worker.left(queue) for queue in (early, new)] == [1, 1]


def test_a_worker_looks_until_nobody_listens_and_sweeps_monitors_that_were_killed(worker):
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        if seconds >= LOOK_SECONDS:
            worker.clock.advance(STALE_SECONDS + 1)
        worker.publish()  # finds out that the queue is gone
        worker.monitors.flush(SOON)

    worker.monitors._pause = pause
    killed = worker.open()
    worker.monitors.watch()
    wait_until(lambda: not worker.monitors._watched, SOON, "the watch to end")
    assert 120 < sum(LATER_LOOKS_SECONDS) < 130
    for paused, seconds in zip(pauses, [*LATER_LOOKS_SECONDS, LOOK_SECONDS, LOOK_SECONDS], strict=True):
        assert seconds < paused < seconds * (1 + SPREAD)
    assert [call["queue_url"] for call in factories.requests(worker.sqs, "DeleteQueue")] == [killed]
    assert not worker.monitors._feeds


@pytest.mark.parametrize(
    ("error", "times", "requests", "warnings"),
    [
        (ThrottledError("too fast"), LOOK_ATTEMPTS - 1, LOOK_ATTEMPTS, 0),
        (ThrottledError("too fast"), LOOK_ATTEMPTS, LOOK_ATTEMPTS, 1),
        (AccessDeniedError("not allowed"), 1, 1, 1),
    ],
)
def test_a_workers_look_is_made_again_soon_after_an_error_that_passes(
    worker, caplog, error, times, requests, warnings
):
    queue, over = worker.open(), threading.Event()
    for _ in range(times):
        worker.sqs.fail_next(LISTS, error)

    def pause(seconds):
        if seconds > MAX_PAUSE_SECONDS:
            over.set()
        return over.is_set()

    worker.monitors._pause = pause
    worker.monitors.watch()
    assert over.wait(SOON)
    assert worker.requests(LISTS) == requests
    assert len([each for each in caplog.records if each.levelname == "WARNING"]) == warnings
    assert (queue in worker.monitors._feeds) == (not warnings)


def test_what_may_not_be_listed_is_said_once_and_the_told_ones_get_their_events(worker, caplog):
    for _ in range(2):
        worker.sqs.fail_next(LISTS, AccessDeniedError("not allowed"))
        worker.monitors.look()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    new = worker.open()
    worker.monitors.add_announced([address_in(new)])
    worker.publish()
    assert worker.monitors.flush(SOON)
    assert worker.left(new) == 1


def test_a_monitor_that_is_gone_costs_nothing_any_more(worker):
    new = worker.open()
    worker.monitors.add_announced([address_in(new)])
    worker.sqs.delete_queue(new)
    worker.clock.advance(60)
    worker.publish()
    worker.monitors.flush(SOON)
    wait_until(lambda: not worker.monitors._feeds, SOON, "the monitor to be forgotten")
    worker.publish()
    assert worker.requests(SENDS) == 1


def test_a_look_forgets_a_monitor_that_is_gone_and_none_that_may_not_be_listed_yet(worker):
    gone, here = worker.open(), worker.open()
    worker.monitors.add_announced([address_in(gone), address_in(here)])
    worker.queues.delete(gone)
    worker.monitors.look()
    assert len(worker.monitors._feeds) == 2
    worker.clock.advance(FORGET_SECONDS + 1)
    worker.monitors.look()
    assert [*worker.monitors._feeds] == [here]


def test_a_client_asks_now_and_then_and_sends_at_once(client):
    client.publish()
    new = client.open()
    client.publish()
    assert (client.requests(LISTS), client.left(new)) == (1, 0)
    client.clock.advance(CLIENT_LOOK_SECONDS)
    client.publish()
    client.publish()
    assert (client.requests(LISTS), client.left(new)) == (2, 2)


def test_a_client_is_not_kept_waiting_by_an_outage(client):
    new = client.open()
    client.sqs.fail_next(SENDS, UnavailableError("no answer"))
    for number in range(3):
        client.publish(number)
    assert client.requests(SENDS) == 1
    client.clock.advance(3)
    client.publish()
    assert client.left(new) == 1  # with the four events


def test_a_monitor_that_announces_itself_again_is_known_to_listen(worker):
    queue = worker.open()
    worker.monitors.add_announced([address_in(queue)])
    worker.clock.advance(FORGET_SECONDS)
    worker.monitors.add_announced([address_in(queue)])
    worker.queues.delete(queue)
    worker.clock.advance(FORGET_SECONDS)
    worker.monitors.look()
    assert len(worker.monitors._feeds) == 1
    worker.clock.advance(1)
    worker.monitors.look()
    assert not worker.monitors._feeds


def test_a_watch_looks_at_its_start_and_after_each_pause(worker):
    looks = []
    worker.monitors._pause = lambda _seconds: looks.append(worker.requests(LISTS))
    worker.clock.advance(1)
    find = worker.queues.find
    worker.queues.find = lambda exchange: (worker.clock.advance(100), find(exchange))[1]
    worker.monitors._watched = True
    worker.monitors._watch()
    assert looks == [1, 2]
    assert worker.requests(LISTS) == 3
    assert not worker.monitors._watched


def test_a_client_starts_no_threads_for_its_monitors(client):
    before = set(threading.enumerate())
    client.open()
    for _ in range(2):
        client.publish()
    assert client.requests(SENDS) == 2
    assert set(threading.enumerate()) == before
    assert not client.monitors._watched


def test_a_watch_that_no_thread_can_do_may_begin_later(worker, monkeypatch):
    started = []
    monkeypatch.setattr(monitors, "start_thread", lambda *_: started.append(1))
    worker.monitors.watch()
    assert not worker.monitors._watched
    worker.monitors.watch()
    assert len(started) == 2


def test_a_look_that_ends_after_the_worker_complains_of_nothing(worker, caplog):
    def list_queues(*_):
        worker.monitors._closed.set()
        raise AccessDeniedError("no")

    worker.sqs.list_queues = list_queues
    worker.monitors.look()
    assert caplog.messages == []


def test_a_monitor_that_two_threads_find_at_once_is_listened_to_once_and_forgotten_once(client, caplog):
    caplog.set_level(logging.INFO)
    queue = Queue("celeryev", client.open(), client.sqs)
    for _ in range(2):
        client.monitors._add(queue)
    (feed,) = client.monitors._feeds.values()
    for _ in range(2):
        client.monitors._forget(feed)
    assert client.monitors._feeds == {}
    assert [line.partition(" (")[0] for line in caplog.messages] == [
        "a monitor listens to Celery's events",
        "a monitor listens no more",
    ]


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
    assert monitor.events.with_addresses(command) is command
    monitor.consume("celeryev.1", EVENTS, lambda *_: None)
    (address,) = monitor.events.with_addresses(command)["headers"][wire.MONITORS][EVENTS]
    assert monitor.queues.url_of(EVENTS, address) is not None
    monitor.cancel("celeryev.1", EVENTS)
    wait_until(lambda: monitor.events.with_addresses(command) is command, SOON, "its end")


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
        worker.events.add_monitors(
            {EVENTS: [f"{number:08x}-{number:012x}" for number in range(start, start + 10)]}
        )
    assert len(worker.events._of(EVENTS)._feeds) == MAX_ANNOUNCED

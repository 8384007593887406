"""What a command says of its caller."""

import json
import os
from functools import partial

import pytest
from support.clock import FakeClock

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import ReceiveOptions
from celery_sqs_visibility.control import remote as module
from celery_sqs_visibility.control import wire
from celery_sqs_visibility.control.remote import KEPT_SECONDS, RemoteControl
from celery_sqs_visibility.errors import UnavailableError
from celery_sqs_visibility.policy.options import Options

COMMANDS, REPLIES, EVENTS = "celery.pidbox", "reply.celery.pidbox", "celeryev"
NODE = f"w@host.{COMMANDS}"


class SlowSQS(FakeSQS):
    """Its list of queues takes five seconds, as making the clients of a new process may."""

    def list_queues(self, prefix):
        self.clock.advance(5)
        return super().list_queues(prefix)


def test_a_caller_waits_from_when_its_command_is_sent_however_long_that_takes():
    sqs, clock = SlowSQS(), FakeClock()
    sqs.clock = clock
    control = RemoteControl(sqs, Options.parse({"remote_control": True}), clock)
    queue = control.queues.create(COMMANDS, "node")
    reply_to = {"exchange": f"reply.{COMMANDS}", "routing_key": "caller"}
    command = {"method": "ping", "ticket": "t", "reply_to": reply_to}
    content = {"body": json.dumps(command), "content-type": "application/json", "content-encoding": "utf-8"}
    try:
        control.broadcast(COMMANDS, {**content, "headers": {wire.EXPIRES: clock.wall() + 1}})
    finally:
        control.close()
    (sent,) = sqs.receive(queue, 1, 0, ReceiveOptions(system_attributes=("All",)))
    assert wire.decode(sent).expires_in == pytest.approx(1, abs=0.5)  # less what it has waited


class StubInbox:
    """An inbox that neither polls nor makes a queue."""

    def __init__(self, _queues, exchange, node, deliver, _clock, **options):
        self.exchange, self.node, self.deliver, self.options = exchange, node, deliver, options
        self.calls = []
        self.is_deleting = True

    def start(self):
        self.calls.append("start")

    def stop(self):
        self.calls.append("stop")

    def join(self, seconds):
        self.calls.append(seconds)


class World:
    def __init__(self, monkeypatch):
        self.clock = FakeClock()
        self.inboxes, self.threads = [], []
        monkeypatch.setattr(module, "Inbox", self.make_inbox)
        monkeypatch.setattr(module, "start_thread", self.start_thread)
        self.control = RemoteControl(FakeSQS(self.clock), Options.parse({"remote_control": True}), self.clock)
        self.got = []

    def make_inbox(self, *args, **options):
        self.inboxes.append(StubInbox(*args, **options))
        return self.inboxes[-1]

    def start_thread(self, act, _name, *args):
        self.threads.append(partial(act, *args))
        return self.threads[-1]

    def consume(self, queue=NODE, exchange=COMMANDS, **options):
        self.control.consume(queue, exchange, lambda payload, _: self.got.append(payload["n"]), **options)

    def cancel(self, queue=NODE, exchange=COMMANDS):
        self.control.cancel(queue, exchange)

    def time_is_over(self, number=0):
        """That of a consumer that went."""
        waited = []
        self.control._closed.wait = waited.append
        self.threads.pop(number)()
        assert waited == [KEPT_SECONDS]

    def requeue(self, number, queue=NODE):
        self.control.requeue(queue, {"n": number}, lambda: True)


@pytest.fixture
def world(monkeypatch):
    world = World(monkeypatch)
    yield world
    world.control.close()


def test_a_consumer_has_an_inbox_of_its_node_which_sweeps_commands_and_replies(world):
    world.consume(is_full=lambda: True)
    (inbox,) = world.inboxes
    assert (inbox.exchange, inbox.node, inbox.calls) == (COMMANDS, "w@host", ["start"])
    assert inbox.options["sweeps"] == (COMMANDS, REPLIES)
    assert inbox.options["is_full"]()


def test_a_consumer_that_comes_back_in_time_keeps_its_queue_and_has_what_came_meanwhile(world):
    world.consume()
    world.cancel()
    world.requeue(1)
    assert world.got == []
    world.consume()
    world.time_is_over()
    assert world.got == [1]
    assert [each.calls for each in world.inboxes] == [["start"]]


def test_a_consumer_that_comes_back_says_anew_whether_it_is_full(world):
    world.consume(is_full=lambda: True)
    world.cancel()
    world.consume()
    assert not world.inboxes[0].options["is_full"]()


def test_a_consumer_that_stays_away_has_its_queue_deleted(world):
    world.consume()
    world.cancel()
    assert world.inboxes[0].calls == ["start"]
    world.time_is_over()
    assert world.inboxes[0].calls == ["start", "stop"]
    world.requeue(1)
    world.consume()
    assert (len(world.inboxes), world.got) == (2, [])


def test_a_consumer_that_went_twice_has_its_time_anew(world):
    world.consume()
    world.cancel()
    world.consume()
    world.cancel()
    world.time_is_over()  # that of the first time
    assert world.inboxes[0].calls == ["start"]
    world.time_is_over()
    assert world.inboxes[0].calls == ["start", "stop"]


def test_a_queue_is_deleted_once_and_a_consumer_of_its_name_that_came_since_keeps_its_own(world):
    world.consume()
    world.cancel()
    world.cancel()
    world.time_is_over(1)
    world.consume()
    world.time_is_over()
    assert [each.calls for each in world.inboxes] == [["start", "stop"], ["start"]]


def test_where_no_thread_can_wait_the_queue_is_deleted_at_once(world, monkeypatch):
    world.consume()
    monkeypatch.setattr(module, "start_thread", lambda *_: None)
    world.cancel()
    assert world.inboxes[0].calls == ["start", "stop"]


def test_a_consumer_that_nobody_knows_is_cancelled_without_a_thread(world):
    world.cancel()
    world.requeue(1)
    assert (world.threads, world.got) == ([], [])


def test_a_monitor_that_stays_away_listens_no_more(world):
    world.consume("celeryev.1", EVENTS)
    assert world.control.events.listens
    world.cancel("celeryev.1", EVENTS)
    assert world.control.events.listens
    world.time_is_over()
    assert not world.control.events.listens


def test_an_end_stops_all_queues_and_waits_for_their_deletion_as_long_as_it_may_in_all(world):
    world.consume()
    world.consume("celeryev.1", EVENTS)
    first, second = world.inboxes
    join = first.join
    first.join = lambda seconds: (join(seconds), world.clock.advance(1))
    world.control.close(1.5)
    assert first.calls == ["start", "stop", 1.5]
    assert second.calls == ["start", "stop", 0.5]
    world.control.close(1.5)
    assert second.calls.count("stop") == 1


def test_an_end_waits_for_queues_that_are_being_deleted_and_for_none_that_are_gone(world):
    for number in range(3):
        world.consume(f"{number}@host.{COMMANDS}")
        world.cancel(f"{number}@host.{COMMANDS}")
        world.time_is_over()
        if number == 0:
            world.inboxes[0].is_deleting = False
    world.control.close(1.5)
    assert [each.calls[2:] for each in world.inboxes] == [[], [1.5], [1.5]]


def test_an_end_ends_the_waits_of_consumers_that_went(world):
    world.control.close()
    assert world.control._closed.is_set()


def test_the_end_of_a_forked_child_ends_nothing_of_its_parents(world, monkeypatch):
    world.consume()
    monkeypatch.setattr(world.control, "_pid", os.getpid() + 1)
    world.control.close()
    assert world.inboxes[0].calls == ["start"]
    monkeypatch.setattr(world.control, "_pid", os.getpid())


@pytest.mark.parametrize(("pid", "hooks"), [(0, ["unregister", "register"]), (1, [])])
def test_a_process_that_asks_is_closed_before_the_exit_hooks_of_others_and_its_child_is_not(
    world, monkeypatch, pid, hooks
):
    calls = []
    monkeypatch.setattr(module.atexit, "unregister", lambda hook: calls.append(("unregister", hook)))
    monkeypatch.setattr(module.atexit, "register", lambda hook: calls.append(("register", hook)))
    monkeypatch.setattr(world.control, "_pid", os.getpid() + pid)
    world.control.close_first()
    assert calls == [(name, world.control.close) for name in hooks]
    monkeypatch.undo()


def received(payload, **properties):
    text = wire.envelope(json.dumps(payload), {}, COMMANDS, "", properties)
    times = {"ApproximateFirstReceiveTimestamp": "1000", "SentTimestamp": "1000"}
    return {"Body": text, "MessageId": "m", "Attributes": times}


@pytest.mark.parametrize(("seconds", "in_time"), [(0.0, True), (2.0, True), (2.1, False)])
def test_a_command_is_handled_while_its_caller_waits(world, caplog, seconds, in_time):
    caplog.set_level("INFO")
    asked = []
    world.control.consume(NODE, COMMANDS, lambda _, is_in_time: asked.append(is_in_time))
    world.inboxes[0].deliver(received({"method": "ping"}, **{wire.EXPIRES_IN: 2.0}))
    world.clock.advance(seconds)
    assert asked[0]() == in_time
    assert ("no longer waits for the reply" in caplog.text) != in_time


def test_a_command_without_a_caller_that_waits_is_handled_however_late(world):
    asked = []
    world.control.consume(NODE, COMMANDS, lambda _, is_in_time: asked.append(is_in_time))
    world.inboxes[0].deliver(received({"method": "ping"}))
    world.clock.advance(3600)
    assert asked[0]()


@pytest.mark.parametrize(("listens", "told"), [(True, ["one.pidbox", "two.pidbox"]), (False, [])])
def test_a_monitor_with_another_queue_tells_all_to_whom_it_has_sent_commands(
    world, monkeypatch, caplog, listens, told
):
    caplog.set_level("INFO")
    if listens:
        world.consume("celeryev.1", EVENTS)
    monkeypatch.setattr(world.control.events, "with_addresses", lambda message: message)
    for exchange in ("one.pidbox", "two.pidbox"):
        world.control.broadcast(exchange, {**wire.HEARTBEAT})
    sent = []

    def fail(exchange, message):
        sent.append((exchange, message))
        raise UnavailableError("not now")

    monkeypatch.setattr(world.control, "broadcast", fail)
    world.control._announce()
    assert sorted(exchange for exchange, _ in sent) == told
    assert all(message is wire.HEARTBEAT for _, message in sent)
    assert caplog.text.count("workers find a monitor's new queue later: not now") == len(told)

"""A caller's reply does not wait for those to callers that have gone."""

from __future__ import annotations

import threading

import pytest
from support.clock import FakeClock
from support.factories import requests
from support.lanes import work_off
from support.processes import SOON, wait_until

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import ReceiveOptions
from celery_sqs_visibility.control import replies
from celery_sqs_visibility.control.queues import ControlQueues
from celery_sqs_visibility.control.replies import MAX_IN_FLIGHT, REPLY_PAUSES_SECONDS, ReplySender
from celery_sqs_visibility.errors import AccessDeniedError, UnavailableError
from celery_sqs_visibility.events import ReplyDropped, subscribe

EXCHANGE = "reply.celery.pidbox"
REPLY = {"body": '{"w@h": "pong"}', "content-type": "application/json", "content-encoding": "utf-8"}


class World:
    """A sender whose threads do not run: the test's own sends what is due."""

    def __init__(self):
        self.clock = FakeClock()
        self.sqs = FakeSQS(self.clock)
        self.queues = ControlQueues(self.sqs, "p-", {}, self.clock)
        self.sender = ReplySender(self.queues, self.clock)
        self.dropped = []

    def caller(self):
        return self.queues.create(EXCHANGE, "caller")

    def reply(self, *callers):
        for caller in callers:
            self.sender.reply(EXCHANGE, f"{caller.address}.key", REPLY)

    def work(self, seconds=0.0):
        self.clock.advance(seconds)
        work_off(self.sender.lane)

    def got(self, caller):
        return len(self.sqs.receive(caller.url, 10, 0, ReceiveOptions()))


@pytest.fixture
def world(monkeypatch):
    world = World()
    monkeypatch.setattr(world.sender.lane, "start", lambda: None)
    end = subscribe(world.dropped.append, ReplyDropped)
    yield world
    end()


def test_replies_to_callers_that_have_gone_delay_no_other(world):
    gone, here = world.caller(), world.caller()
    world.queues.delete(gone)
    world.reply(*2 * MAX_IN_FLIGHT * [gone], here)
    world.work()
    assert world.got(here) == 1
    assert world.dropped == []
    for seconds in REPLY_PAUSES_SECONDS:
        world.work(seconds)
    assert len(world.dropped) == 2 * MAX_IN_FLIGHT


def test_a_reply_is_sent_again_where_an_error_passes(world):
    caller = world.caller()
    world.sqs.fail_next("SendMessage", UnavailableError("not now"))
    world.reply(caller)
    world.work()
    assert world.got(caller) == 0
    world.work(REPLY_PAUSES_SECONDS[0])
    assert world.got(caller) == 1


def test_a_refused_reply_is_dropped_at_once(world, caplog):
    world.sqs.fail_next("SendMessage", AccessDeniedError("allow sqs:SendMessage"))
    world.reply(world.caller())
    world.work()
    assert "cannot send the reply to a command: allow sqs:SendMessage" in caplog.text
    assert world.dropped == [ReplyDropped()]


def test_what_exceeds_the_bound_is_dropped_and_told(world, monkeypatch, caplog):
    monkeypatch.setattr(replies, "MAX_CHARACTERS", 400)
    caller = world.caller()
    world.reply(caller, caller)
    world.work()
    assert (world.got(caller), world.dropped) == (1, [ReplyDropped()])
    assert "too many wait for SQS" in caplog.text


def test_a_process_that_ends_sends_what_was_not_tried():
    world = World()
    gone, here = world.caller(), world.caller()
    world.queues.delete(gone)
    world.reply(gone, here)
    world.sender.close(SOON)
    assert world.got(here) == 1
    pump = world.sender.lane._pump
    wait_until(lambda: world.work(1) or not pump._threads, SOON, "its threads to end")


def test_whoever_waits_for_the_last_replies_is_woken_by_them(world):
    caller = world.caller()
    world.reply(caller)
    waits = threading.Thread(target=world.sender.close, args=[3600.0], daemon=True)
    waits.start()
    wait_until(lambda: world.sender.lane._pump.waiting, SOON, "the thread to wait")
    world.work()
    waits.join(SOON)
    assert not waits.is_alive()


def test_an_end_without_replies_waits_for_none(world):
    world.reply(world.caller())
    world.work()
    world.sender.close(3600.0)


def test_replies_that_were_sent_or_dropped_make_room_for_others(world, monkeypatch):
    monkeypatch.setattr(replies, "MAX_CHARACTERS", 400)
    gone, here = world.caller(), world.caller()
    for number in range(5):
        world.reply(here)
        world.work()
        assert world.got(here) == 1, number
    world.queues.delete(gone)
    world.reply(gone)
    world.work()
    for seconds in REPLY_PAUSES_SECONDS:
        world.reply(here)
        assert world.dropped, "the first waits for another attempt"
        world.dropped.clear()
        world.work(seconds)
    world.dropped.clear()
    world.reply(here)
    world.work()
    assert (world.got(here), world.dropped) == (1, [])


def test_each_attempt_at_a_reply_waits_for_its_pause(world):
    caller = world.caller()
    for _ in REPLY_PAUSES_SECONDS:
        world.sqs.fail_next("SendMessage", UnavailableError("not now"))
    world.reply(caller)
    world.work()
    for number, seconds in enumerate(REPLY_PAUSES_SECONDS, 1):
        world.work(seconds - 0.01)
        assert len(requests(world.sqs, "SendMessage")) == number
        world.work(0.01)
    assert (world.got(caller), world.dropped) == (1, [])


def test_of_replies_that_wait_the_earliest_is_due_first_and_each_takes_a_thread(world):
    here, later = world.caller(), world.caller()
    sender, now = world.sender, world.clock.monotonic()
    assert (sender.due(now), sender.ready(), sender.take(now)) == (None, 0, None)
    world.sqs.fail_next("SendMessage", UnavailableError("not now"))
    world.reply(later)
    world.work()
    assert sender.due(now) == now + REPLY_PAUSES_SECONDS[0]
    assert sender.take(now) is None
    world.reply(here)
    assert (sender.due(now), sender.ready()) == (now, 2)
    ((first,), second) = sender.take(now), sender.take(now)
    assert (first.url, second) == (here.url, None)


def test_a_dropped_reply_is_counted_once_and_says_why(world, caplog):
    caplog.set_level("INFO")
    gone = world.caller()
    world.queues.delete(gone)
    world.reply(gone)
    world.work()
    for seconds in REPLY_PAUSES_SECONDS:
        world.work(seconds)
    assert world.dropped == [ReplyDropped()]
    assert caplog.text.count("its caller has gone") == 1
    world.work(10)
    assert len(requests(world.sqs, "SendMessage")) == 1 + len(REPLY_PAUSES_SECONDS)


def test_a_reply_starts_the_threads_that_send_it(world, monkeypatch):
    started = []
    monkeypatch.setattr(world.sender.lane, "start", lambda: started.append(1))
    world.reply(world.caller())
    assert started == [1]

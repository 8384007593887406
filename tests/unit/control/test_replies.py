"""A caller's reply does not wait for those to callers that have gone."""

from __future__ import annotations

import pytest
from support.batch_threads import work_off
from support.clock import FakeClock
from support.processes import SOON, wait_until

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import ReceiveOptions
from celery_sqs_visibility.control import replies
from celery_sqs_visibility.control.queues import ControlQueues
from celery_sqs_visibility.control.replies import REPLY_PAUSES_SECONDS, REPLY_THREADS, ReplySender
from celery_sqs_visibility.errors import AccessDeniedError, UnavailableError
from celery_sqs_visibility.events import subscribe
from celery_sqs_visibility.measurements import ReplyDropped

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
        work_off(self.sender.batch_threads)

    def got(self, caller):
        return len(self.sqs.receive(caller.url, 10, 0, ReceiveOptions()))


@pytest.fixture
def world(monkeypatch):
    world = World()
    monkeypatch.setattr(world.sender.batch_threads, "start", lambda: None)
    end = subscribe(world.dropped.append, ReplyDropped)
    yield world
    end()


def test_replies_to_callers_that_have_gone_delay_no_other(world):
    gone, here = world.caller(), world.caller()
    world.queues.delete(gone)
    world.reply(*2 * REPLY_THREADS * [gone], here)
    world.work()
    assert world.got(here) == 1
    assert world.dropped == []
    for seconds in REPLY_PAUSES_SECONDS:
        world.work(seconds)
    assert len(world.dropped) == 2 * REPLY_THREADS


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
    monkeypatch.setattr(replies, "MOST_CHARACTERS", 400)
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
    threads = world.sender.batch_threads
    wait_until(lambda: world.work(1) or not threads._threads, SOON, "its threads to end")

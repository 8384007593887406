"""Events go to a monitor in batches; what cannot be sent is dropped and counted, and nothing grows."""

from __future__ import annotations

import json
import threading

import pytest
from support import factories
from support.clock import FakeClock
from support.lanes import work_off
from support.processes import SOON, wait_until

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.control import event_feed
from celery_sqs_visibility.control.event_feed import LINGER_SECONDS, NEW_SECONDS, EventFeed, EventMessage
from celery_sqs_visibility.errors import AccessDeniedError, UnavailableError
from celery_sqs_visibility.events import EventsDropped, subscribe

SENDS = "SendMessageBatch"


def encode(message):
    return OutgoingMessage(message.body)


class World:
    def __init__(self):
        self.clock = FakeClock()
        self.sqs = FakeSQS(self.clock)
        self.queue = factories.queue(self.sqs, "celeryev")
        self.gone, self.dropped = [], []
        self.feed = EventFeed(self.queue, encode, self.gone.append, self.clock)
        self.unsubscribe = subscribe(self.dropped.append, EventsDropped)

    def submit(self, *numbers):
        for number in numbers:
            self.feed.submit(EventMessage(json.dumps({"n": number}), {}))

    def later(self, seconds=LINGER_SECONDS):
        self.clock.advance(seconds)
        return work_off(self.feed.lane)

    @property
    def sent(self):
        return [[each.body for each in call["messages"]] for call in factories.requests(self.sqs, SENDS)]


@pytest.fixture
def world():
    world = World()
    yield world
    world.unsubscribe()


def test_events_of_half_a_second_share_a_message(world):
    world.submit(1, 2, 3)
    assert work_off(world.feed.lane) == 0
    assert world.later() == 1
    assert world.sent == [['[{"n": 1},{"n": 2},{"n": 3}]']]
    assert world.later() == 0


def test_a_full_batch_does_not_wait(world, monkeypatch):
    monkeypatch.setattr(event_feed, "BATCH_BYTES", 20)
    world.submit(1, 2, 3)
    assert work_off(world.feed.lane) == 1


def test_a_flush_waits_for_nothing_else(world):
    world.submit(1)
    world.feed.lane.start()
    assert world.feed.flush(5)
    assert world.sent == [['{"n": 1}']]
    world.feed.lane.stop()


def test_what_exceeds_the_bound_is_dropped_counted_and_said_once(world, monkeypatch, caplog):
    monkeypatch.setattr(event_feed, "MAX_BYTES", 20)
    world.submit(1, 2, 3, 4)
    assert [event.count for event in world.dropped] == [1, 1]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "dropped events of Celery for a monitor, which will miss them" in caplog.text
    world.later()
    assert world.sent == [['[{"n": 1},{"n": 2}]']]


def test_what_fails_for_a_while_is_sent_again_in_order(world, caplog):
    world.sqs.fail_next(SENDS, UnavailableError("no answer"))
    world.submit(1)
    world.later()
    world.submit(2)
    world.later(3)
    assert world.sent[-1] == ['[{"n": 1},{"n": 2}]']
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert not world.dropped


def test_what_sqs_refuses_is_dropped(world):
    world.sqs.fail_next(SENDS, AccessDeniedError("not allowed"))
    world.submit(1, 2)
    assert world.later() == 1
    assert world.dropped == [EventsDropped("celeryev", 2)]
    assert world.feed.flush(0)


def test_a_monitor_whose_queue_is_gone_is_gone_but_not_while_its_queue_is_new(world, caplog):
    world.sqs.delete_queue(world.queue.url)
    world.submit(1)
    world.later()
    assert not world.gone
    world.later(NEW_SECONDS)
    assert world.gone == [world.feed]
    assert not world.dropped
    assert not caplog.records  # a monitor that ends, as Flower does, is no error


def test_what_waits_for_a_monitor_that_is_gone_is_dropped_at_once(world, caplog):
    world.submit(1)
    world.clock.advance(NEW_SECONDS)
    world.sqs.delete_queue(world.queue.url)
    send = world.feed.send

    def slow(*args):
        world.submit(2)  # comes meanwhile
        return send(*args)

    world.feed.send = slow
    world.later()
    world.submit(3)
    assert (world.gone, world.later(10), world.dropped) == ([world.feed], 0, [])
    assert world.feed.flush(0)
    assert not caplog.records


def test_a_thread_that_could_not_be_started_is_started_for_a_later_event(world, monkeypatch):
    woken = []
    monkeypatch.setattr(world.feed.lane, "wake", lambda: woken.append(1))
    world.submit(1, 2)
    world.clock.advance(LINGER_SECONDS + 0.1)
    world.submit(3)
    assert len(woken) == 2


def test_events_may_fill_the_bound_to_the_byte(world, monkeypatch):
    monkeypatch.setattr(event_feed, "MAX_BYTES", 3 * len('{"n": 1}'))
    world.submit(1, 2, 3)
    assert not world.dropped
    world.submit(4)
    assert len(world.dropped) == 1
    world.later()
    world.submit(5, 6, 7)
    assert len(world.dropped) == 1


@pytest.mark.parametrize("gone", [False, True])
def test_whoever_waits_for_the_last_events_is_woken_when_they_are_sent_or_their_monitor_is_gone(world, gone):
    if gone:
        world.clock.advance(NEW_SECONDS)
        world.sqs.delete_queue(world.queue.url)
    world.submit(1)
    flushed = []
    waits = threading.Thread(target=lambda: flushed.append(world.feed.flush(3600.0)), daemon=True)
    waits.start()
    wait_until(lambda: world.feed.lane._pump.waiting, SOON, "the thread to wait")
    assert work_off(world.feed.lane) == 1
    waits.join(SOON)
    assert flushed == [True]


def test_a_flush_without_events_waits_for_nothing_and_one_in_vain_says_so(world):
    assert world.feed.flush(3600.0)
    world.submit(1)
    assert not world.feed.flush(0)
    assert work_off(world.feed.lane) == 0, "events wait for others again"

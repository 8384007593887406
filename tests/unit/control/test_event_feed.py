"""Events go to a monitor in batches; what cannot be sent is dropped and counted, and nothing grows."""

import json
import threading
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import factories
from support.clock import FakeClock
from support.lanes import work_off
from support.processes import SOON, wait_until

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import OutgoingMessage, ReceiveOptions
from celery_sqs_visibility.control import event_feed
from celery_sqs_visibility.control.event_feed import (
    BATCH_BYTES,
    LINGER_SECONDS,
    LIVENESS_CHECK_SECONDS,
    LIVENESS_CHECKS,
    NEW_SECONDS,
    EventFeed,
    EventMessage,
    Liveness,
    bytes_of,
    take_batch,
)
from celery_sqs_visibility.delivery.pump import Pump
from celery_sqs_visibility.errors import AccessDeniedError, UnavailableError
from celery_sqs_visibility.events import EventsDropped, subscribe
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES

SENDS, ASKS = "SendMessageBatch", "GetQueueAttributes"


def encode(message):
    return OutgoingMessage(message.body)


class World:
    def __init__(self, *, lingers=True):
        self.clock = FakeClock()
        self.sqs = FakeSQS(self.clock)
        self.queue = factories.queue(self.sqs, "celeryev")
        self.gone, self.dropped = [], []
        self.feed = EventFeed(
            self.queue, encode, self.gone.append, self.clock, Pump(self.clock), lingers=lingers
        )
        self.unsubscribe = subscribe(self.dropped.append, EventsDropped)

    def submit(self, *numbers):
        for number in numbers:
            self.feed.submit(EventMessage(json.dumps({"n": number}), {}))

    def later(self, seconds=LINGER_SECONDS):
        self.clock.advance(seconds)
        return work_off(self.feed.lane)

    def count(self, action):
        return len(factories.requests(self.sqs, action))

    def send(self, seconds, *, receives=False):
        """An event each second; how many requests brought them."""
        before = self.count(SENDS)
        for number in range(int(seconds)):
            self.submit(number)
            self.later(1)
            if receives:
                self.receive()
        return self.count(SENDS) - before

    def receive(self):
        """What is received stays in flight until it expires."""
        self.sqs.receive(self.queue.url, 10, 0, ReceiveOptions(visibility_timeout=600))

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


EVENTS = st.builds(lambda n: {"n": n, "text": '],["'}, st.integers(0, 9))
CONTENTS = st.lists(EVENTS | st.lists(EVENTS, max_size=4), max_size=20)


def message(content, sender="a"):
    return EventMessage(json.dumps(content), {"hostname": sender})


def flat(contents):
    return [event for each in contents for event in (each if isinstance(each, list) else [each])]


@pytest.mark.parametrize("limit", [1, 40, BATCH_BYTES])
@given(contents=CONTENTS)
def test_all_events_of_a_sender_arrive_in_order(contents, limit):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_feed, "BATCH_BYTES", limit)
        waiting, arrived = deque(map(message, contents)), []
        while waiting:
            (merged,) = take_batch(waiting)
            assert merged.events == len(flat([json.loads(merged.body)]))
            arrived.append(json.loads(merged.body))
    assert flat(arrived) == flat(contents)


def test_other_senders_have_messages_of_their_own():
    waiting = deque([message({"n": 1}), message([{"n": 2}, {"n": 3}]), message({"n": 4}, sender="b")])
    batch = take_batch(waiting)
    assert [each.body for each in batch] == ['[{"n": 1},{"n": 2}, {"n": 3}]', '{"n": 4}']
    assert [each.events for each in batch] == [3, 1]


def test_a_request_has_ten_messages_and_so_many_bytes_at_the_most():
    senders = [message({}, sender=str(number)) for number in range(BATCH_ENTRIES + 1)]
    large = [message("x" * (BATCH_BYTES // 2))] * 3
    for waiting, taken in ((deque(senders), BATCH_ENTRIES), (deque(large), 1)):
        assert len(take_batch(waiting)) == taken
        assert waiting
    assert bytes_of(take_batch(deque([message("x" * (2 * BATCH_BYTES))]))) > BATCH_BYTES


def test_a_monitor_that_receives_gets_all_and_is_looked_at_seldom(world):
    assert world.send(300, receives=True) == 300
    assert world.count(ASKS) == pytest.approx(300 / LIVENESS_CHECK_SECONDS, abs=1)


def test_a_monitor_that_receives_no_more_gets_few_until_it_receives_again(world, caplog):
    caplog.set_level("INFO")
    world.send(LIVENESS_CHECKS * LIVENESS_CHECK_SECONDS + 1)
    assert world.send(300) == pytest.approx(300 / LIVENESS_CHECK_SECONDS, abs=1)
    assert caplog.text.count("receives no more") == 1
    world.receive()
    world.send(LIVENESS_CHECK_SECONDS + 1)
    assert world.send(100, receives=True) == 100
    assert caplog.text.count("receives again") == 1


def test_without_the_right_it_gets_all(world, caplog):
    caplog.set_level("INFO")
    world.sqs.fail_next(ASKS, AccessDeniedError("not allowed"))
    assert world.send(300) == 300
    assert caplog.text.count("allow sqs:GetQueueAttributes") == 1


def test_an_error_that_passes_says_nothing_about_it(world):
    world.sqs.fail_next(ASKS, UnavailableError("no answer"))
    assert world.send(2 * LIVENESS_CHECK_SECONDS + 1) == 2 * LIVENESS_CHECK_SECONDS + 1


def test_a_client_does_not_look():
    world = World(lingers=False)
    world.unsubscribe()
    assert world.send(300) == 300
    assert world.count(ASKS) == 0


def test_a_monitor_is_silent_after_as_many_looks_as_ever_when_it_has_received_once(world):
    now = world.clock.monotonic()
    listener = Liveness(world.queue, world.clock)
    for waiting, received, silent in (
        (1, 0, False),
        (0, 1, False),
        (1, 0, False),
        (1, 0, True),
        (0, 0, True),
    ):
        listener._judge(waiting, received)
        assert listener.is_silent == silent
    listener._judge(1, 1)
    assert not listener.is_silent
    assert world.clock.monotonic() == now

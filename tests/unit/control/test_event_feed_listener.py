"""A monitor that receives no more gets few events, until it receives again."""

from __future__ import annotations

import pytest
from support import factories
from support.clock import FakeClock
from support.lanes import work_off

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import OutgoingMessage, ReceiveOptions
from celery_sqs_visibility.control.event_feed import (
    LIVENESS_CHECK_SECONDS,
    LIVENESS_CHECKS,
    EventFeed,
    EventMessage,
    Liveness,
)
from celery_sqs_visibility.errors import AccessDeniedError, UnavailableError

SENDS, ASKS = "SendMessageBatch", "GetQueueAttributes"


class World:
    def __init__(self, *, lingers=True):
        self.clock = FakeClock()
        self.sqs = FakeSQS(self.clock)
        self.queue = factories.queue(self.sqs, "celeryev")
        self.feed = EventFeed(
            self.queue, lambda each: OutgoingMessage(each.body), print, self.clock, lingers=lingers
        )

    def count(self, action):
        return len(factories.requests(self.sqs, action))

    def send(self, seconds, *, receives=False):
        """An event each second; how many requests brought them."""
        before = self.count(SENDS)
        for _ in range(int(seconds)):
            self.feed.submit(EventMessage("{}", {}))
            self.clock.advance(1)
            work_off(self.feed.lane)
            if receives:
                self.receive()
        return self.count(SENDS) - before

    def receive(self):
        """What is received stays in flight until it expires."""
        self.sqs.receive(self.queue.url, 10, 0, ReceiveOptions(visibility_timeout=600))


@pytest.fixture
def world():
    return World()


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

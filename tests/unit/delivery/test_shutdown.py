"""How consumers end whose long polls are open: as few receives as possible, and nothing hidden for long."""

from functools import partial

import pytest
from support import factories
from support.factories import CHANGES, EVERYTHING, counts
from support.processes import SOON, wait_until

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.core.settlements import Hide
from celery_sqs_visibility.errors import UnavailableError
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK


class SilentSQS(FakeSQS):
    """It may be silent when visibilities are to be changed."""

    silent = False

    def change_visibility(self, queue_url, changes, **how):
        if self.silent:
            raise UnavailableError("no answer")
        return super().change_visibility(queue_url, changes, **how)


@pytest.fixture
def sqs():
    return SilentSQS(SYSTEM_CLOCK)


@pytest.fixture
def queue(sqs):
    return factories.queue(sqs)


@pytest.fixture
def start(make, sqs, queue):
    """Start a consumer as a process of its own has it, whose long polls wait as SQS's do."""
    worlds = []

    def start(**options):
        world = make(clock=SYSTEM_CLOCK, sqs=sqs, polling_interval=0, **options)
        worlds.append(world)
        world.consume(queue)
        wait_until(lambda: polls(world), SOON, "a poll")
        return world

    yield start
    for world in worlds:
        world.consumer.stop_polling()
    sqs.delete_queue(queue.url)
    wait_until(lambda: not any(map(polls, worlds)), SOON, "their polls to end with it")


def polls(world):
    """Whether a poll is in flight."""
    return not world.consumer.wait_for_polls(0)


def holds(world, count):
    """Hand over what has come, as far as that number."""
    world.hand_over()
    return len(world.handed) == count


def end(world):
    """As a shutdown begins."""
    now = SYSTEM_CLOCK.monotonic()
    world.consumer.stop_polling()
    world.consumer.end_by(now + SOON, now + SOON)


def wait_for_counts(queue, *expected):
    wait_until(lambda: counts(queue) == expected, SOON, lambda: str(counts(queue)))


def receives(queue):
    """How often each visible message was received, this look included."""
    messages = queue.sqs.receive(queue.url, 10, 0, EVERYTHING)
    return sorted(int(message["Attributes"]["ApproximateReceiveCount"]) for message in messages)


def test_one_message_ends_the_long_poll_and_the_others_are_received_once(start, queue):
    world = start()
    factories.send(queue, *"abcd")
    wait_until(lambda: holds(world, 4) and polls(world), SOON, "four and a poll")
    end(world)
    assert len(world.consumer.give_back_unstarted()) == 4
    assert not polls(world)
    wait_for_counts(queue, 4, 0)
    assert receives(queue) == [2, 2, 2, 3]


def test_what_the_last_poll_brings_is_released_at_once(start, queue):
    world = start()
    end(world)
    factories.send(queue, "a")
    wait_until(lambda: not polls(world), SOON, "the poll's end")
    wait_for_counts(queue, 1, 0)
    assert receives(queue) == [2]


def test_a_message_does_not_go_from_one_worker_that_ends_to_the_next(start, sqs, queue):
    worlds = [start() for _ in range(6)]
    for world in worlds:
        end(world)
    factories.send(queue, "a")
    wait_until(lambda: len(factories.entries(sqs, CHANGES)) == 2, SOON, "the second to give it back")
    wait_until(lambda: not any(len(world.consumer.held()) for world in worlds), SOON, "the settlements")
    wait_until(lambda: sum(map(polls, worlds)) == 4, SOON, "two of six to have received it")
    assert counts(queue) == (0, 1)
    ((_, seconds),) = factories.entries(sqs, CHANGES)[-1]
    assert 0 < seconds <= worlds[0].consumer.options.wait_time_seconds, "until the polls of all are over"


def test_what_an_ending_waits_for_is_bounded_where_sqs_does_not_answer(start, sqs, queue):
    """Its bound is that of `GivingBack.flush_ends`; without it, this would not end."""
    world = start()
    factories.send(queue, "a", "b")
    wait_until(lambda: holds(world, 2), SOON, "two messages")
    sqs.silent = True
    began = SYSTEM_CLOCK.monotonic()
    world.consumer.stop_polling()
    world.consumer.end_by(began, began)
    world.consumer.give_back_unstarted()
    world.consumer.close()
    assert counts(queue) == (0, 2)
    sqs.silent = False
    wait_for_counts(queue, 2, 0)


def test_what_the_last_poll_brings_goes_to_the_next_consumer_of_the_process(start, queue):
    world = start(consumers=lambda: world.consumers)
    for _ in range(3):
        end(world)
        world.consumer = world.new_consumer()
        world.consumer.consume(queue, world.on_message(world.handed.append))
    for count in range(1, 5):
        factories.send(queue, "a")
        wait_until(partial(holds, world, count), SOON, "the message, whichever poll took it")
        assert [len(each.held()) for each in world.consumers] == [0, 0, 0, count]
        assert [each.capacity.held for each in world.consumers] == [0, 0, 0, count]
    assert counts(queue) == (0, 4)
    assert not factories.entries(world.sqs, CHANGES), "none was given back"


def test_a_message_that_an_earlier_consumer_hid_is_expected_by_the_one_that_polls(start, queue):
    world = start(consumers=lambda: world.consumers)
    factories.send(queue, "a")
    wait_until(partial(holds, world, 1), SOON, "the message")
    (one,) = world.consumer.held()
    end(world)
    world.consumer = world.new_consumer()
    world.consumer.consume(queue, world.on_message(world.handed.append))
    one.settle(Hide(100))
    receiver = world.consumer._receivers.get("q")
    wait_until(receiver._polls.schedule.next_expected, SOON, "it to be expected")

"""A paused queue is not polled, gives back what waits, and costs the other queues nothing."""

import math
from dataclasses import replace

import pytest
from support import factories
from support.clock import FakeClock
from support.factories import counts
from support.processes import SOON, wait_until

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.kept_pauses import end_kept_pause, keep_pause
from celery_sqs_visibility.core.settlements import Delete
from celery_sqs_visibility.core.turns import Turns
from celery_sqs_visibility.delivery.receive.pauses import THROTTLED_TRIES, Pauses
from celery_sqs_visibility.errors import AccessDeniedError, ThrottledError, UnavailableError
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.policy.health import PollingFacts
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.prefetch import Slots


def pause(world, queue, seconds=math.inf):
    """As the control command does it, and then a thread."""
    world.pauses.pause(queue.name, seconds)
    world.consumer.notice_pause(queue.name)
    return world.consumer.give_back_unstarted(queue.name)


def resume(world, queue):
    world.pauses.resume(queue.name)
    world.consumer.notice_pause(queue.name)


def polls(world, queue):
    return not world.consumer._receivers.wait_for_polls(0, queue.name)


def arrived(world, count):
    world.hand_over()
    return len(world.handed) == count


def wait_for_counts(queue, *expected):
    wait_until(lambda: counts(queue) == expected, SOON, lambda: str(counts(queue)))


def test_a_pause_ends_by_itself_and_resuming_twice_is_harmless():
    clock = FakeClock()
    pauses = Pauses(clock)
    pauses.pause("q", 60)
    assert pauses.seconds_left("q") == 60
    assert pauses.get("other") is None
    clock.advance(60)
    assert pauses.get("q") is None
    assert pauses.seconds_left("q") == 0
    pauses.pause("q")
    assert pauses.seconds_left("q") == math.inf
    pauses.resume("q")
    pauses.resume("q")
    assert pauses.get("q") is None


def test_what_waits_goes_back_and_what_runs_goes_on(make):
    world = make()
    queue, other = world.queue(), world.queue("other")
    running, reserved = world.deliveries(queue, "running", "reserved")
    running.start()
    world.consume(other, "elsewhere")
    wait_until(lambda: arrived(world, 3), SOON, "the other queue's message")
    assert pause(world, queue) == [reserved]
    wait_for_counts(queue, 1, 1)
    assert not reserved.start()
    assert counts(other) == (0, 1)
    assert running.settle(Delete())
    wait_for_counts(queue, 1, 0)


@pytest.fixture
def polling(make):
    """A consumer whose long polls wait as SQS's do."""
    world = make(clock=SYSTEM_CLOCK, sqs=FakeSQS(SYSTEM_CLOCK), polling_interval=0)
    queue = world.queue()
    world.consume(queue)
    wait_until(lambda: polls(world, queue), SOON, "a poll")
    yield world, queue
    world.consumer.stop_polling()
    world.sqs.delete_queue(queue.url)


def test_no_poll_begins_until_the_queue_is_resumed(polling):
    world, queue = polling
    pause(world, queue)
    factories.send(queue, "late")  # the poll in flight takes it, and nobody cuts that off
    wait_until(lambda: not polls(world, queue), SOON, "the poll's end")
    wait_for_counts(queue, 1, 0)
    assert not arrived(world, 1)
    assert world.consumer.capacity._queues.total() == 0
    (facts,) = world.consumer.polling_facts(SYSTEM_CLOCK.monotonic() + 3600)
    assert facts == PollingFacts(queue.name, paused=True), "and is not late"
    resume(world, queue)
    wait_until(lambda: arrived(world, 1), SOON, "the message")
    assert world.consumer.capacity._queues.total() == 1


def test_a_pause_for_a_time_ends_without_anybody(polling):
    world, queue = polling
    factories.send(queue, "a")
    wait_until(lambda: arrived(world, 1) and polls(world, queue), SOON, "a message, and another poll")
    pause(world, queue, 0.3)
    wait_until(lambda: arrived(world, 2), SOON, "it again")


def test_workers_that_pause_together_do_not_hand_a_message_round(polling):
    world, queue = polling
    factories.send(queue, "a")
    wait_until(lambda: arrived(world, 1) and polls(world, queue), SOON, "a message, and another poll")
    (delivery,) = world.consumer.held()
    world.pauses.pause(queue.name)
    world.consumer.notice_pause(queue.name)
    delivery.settle(factories.Hide(0))  # as another worker that was paused gives it back
    wait_until(lambda: not polls(world, queue) and not len(world.consumer.held()), SOON, "its last poll")
    wait_for_counts(queue, 0, 1)


def test_what_was_given_back_in_an_earlier_pause_is_one_of_many_workers_messages(polling):
    world, queue = polling
    factories.send(queue, "a")
    wait_until(lambda: arrived(world, 1) and polls(world, queue), SOON, "a message, and another poll")
    pause(world, queue)
    resume(world, queue)
    wait_until(lambda: arrived(world, 2) and polls(world, queue), SOON, "it again, and another poll")
    (delivery,) = world.consumer.held()
    delivery.settle(factories.Hide(1))
    assert pause(world, queue) == []
    wait_until(lambda: not polls(world, queue) and not len(world.consumer.held()), SOON, "its last poll")
    wait_for_counts(queue, 0, 1)


def meanwhile(world, act):
    """Do it while the giving back waits for the end of the long poll."""
    receivers = world.consumer._receivers
    wait_for_polls = receivers.wait_for_polls

    def wait(*args):
        receivers.wait_for_polls = wait_for_polls
        wait_for_polls(*args)
        act()

    receivers.wait_for_polls = wait


def test_what_comes_after_the_pause_has_ended_stays(polling):
    world, queue = polling
    factories.send(queue, "a")
    wait_until(lambda: arrived(world, 1) and polls(world, queue), SOON, "a message, and another poll")

    def resume_and_receive():
        resume(world, queue)
        factories.send(queue, "b")
        wait_until(lambda: arrived(world, 3), SOON, "the new message, and the other again")

    meanwhile(world, resume_and_receive)
    assert len(pause(world, queue)) == 1
    assert len(world.consumer.held()) == 2
    world.pauses.pause(queue.name)
    world.pauses.resume(queue.name)
    assert world.consumer.give_back_unstarted(queue.name) == [], "its thread came too late"


def test_what_begins_while_others_go_back_goes_on(polling):
    world, queue = polling
    factories.send(queue, "a", "b")
    wait_until(lambda: arrived(world, 2) and polls(world, queue), SOON, "two messages, and another poll")
    first, second = world.consumer.held()
    meanwhile(world, second.start)
    assert pause(world, queue) == [first]
    assert world.consumer.held() == [second]


def test_a_connection_made_anew_finds_the_pause(make):
    world = make()
    queue = world.queue()
    pause(world, queue)
    factories.send(queue, "a")
    world.consumer = world.new_consumer()
    world.consumer.consume(queue, world.on_message(world.handed.append))
    assert world.consumer.consumed() == [queue.name]
    wait_until(lambda: world.consumer.capacity._queues.total() == 0, SOON, "its receiver to wait")
    resume(world, queue)
    wait_until(lambda: arrived(world, 1), SOON, "the message")


def test_a_stop_ends_a_pause_and_leaves_the_capacity_as_it_was(make):
    world = make()
    queue = world.queue()
    pause(world, queue)
    world.consume(queue)
    wait_until(lambda: world.consumer.capacity._queues.total() == 0, SOON, "its receiver to wait")
    world.consumer.cancel(queue.name)
    assert world.consumer.capacity._queues.total() == 0


@pytest.mark.parametrize("own", [{}, {"max_running": 1}])
def test_a_paused_queue_that_comes_first_leaves_its_turn_to_others(make, own):
    queues = {"high": own, "low": {}}
    turns = Turns("strict", Options.parse({"queues": queues}).for_queue)
    world = make(queues=queues, slots=lambda: Slots(1, 10), turns=turns)
    high = world.queue("high")
    world.consume(high, "a", "b")
    wait_until(lambda: arrived(world, 1), SOON, "the first message")
    running = world.delivery(world.handed[0])
    assert running.start()
    pause(world, high)
    wait_for_counts(high, 1, 1)
    world.consume(world.queue("low"), "c")
    assert running.settle(Delete())
    wait_until(lambda: arrived(world, 2), SOON, "the other queue's message")
    assert world.delivery(world.handed[1]).settle(Delete())
    resume(world, high)  # it is polled at once, and not after its interval
    wait_until(lambda: arrived(world, 3), SOON, "the message that stayed")
    assert world.bodies() == ["a", "c", "b"]


@pytest.fixture
def tagged(make):
    """A worker that is about to consume a queue whose pause is kept for so many seconds."""

    def start(seconds=math.inf, **options):
        world = make(clock=SYSTEM_CLOCK, sqs=FakeSQS(SYSTEM_CLOCK), remote_control=True, polling_interval=0)
        worlds.append((world, world.queue()))
        _, queue = worlds[-1]
        keep_pause(queue, SYSTEM_CLOCK.wall() + seconds)
        factories.send(queue, "a")
        return worlds[-1]

    worlds = []
    yield start
    for world, queue in worlds:
        world.consumer.stop_polling()
        world.sqs.delete_queue(queue.url)


def actions(world):
    return [action for action, _ in world.sqs.calls if action in {"ListQueueTags", "ReceiveMessage"}]


def resting(world, queue):
    """It has ended its polls."""
    return world.pauses.get(queue.name) is not None and not polls(world, queue)


def test_a_worker_that_starts_under_a_kept_pause_polls_nothing_until_it_is_resumed(tagged, caplog):
    caplog.set_level("INFO")
    world, queue = tagged()
    world.consume(queue)
    wait_until(lambda: resting(world, queue), SOON, "the tag to be read")
    assert actions(world) == ["ListQueueTags"]
    assert world.pauses.get(queue.name).kept
    assert "is paused by its tag" in caplog.text
    (facts,) = world.consumer.polling_facts(SYSTEM_CLOCK.monotonic() + 3600)
    assert facts == PollingFacts(queue.name, paused=True, accepted=False), "and is not late"
    end_kept_pause(queue)
    resume(world, queue)
    wait_until(lambda: arrived(world, 1), SOON, "the message")
    assert actions(world).count("ListQueueTags") == 2, "the other was that of the command"


def test_a_kept_pause_ends_at_the_time_of_its_tag(tagged):
    world, queue = tagged(1)
    world.consume(queue)
    wait_until(lambda: arrived(world, 1), SOON, "the message")
    over, queue = tagged(-60)
    over.consume(queue)
    wait_until(lambda: arrived(over, 1), SOON, "the message")
    assert over.pauses.get(queue.name) is None


def test_tags_are_read_by_workers_with_remote_control_alone_and_not_of_queues_they_made(make):
    world = make()
    world.deliveries(world.queue(), "a")
    assert "ListQueueTags" not in actions(world)
    world = make(remote_control=True)
    world.deliveries(replace(world.queue("made"), origin="created"), "a")
    assert "ListQueueTags" not in actions(world)


def test_without_permission_to_read_tags_all_queues_are_polled_and_the_log_says_it_once(make, caplog):
    world = make(remote_control=True)
    for number, name in enumerate("ab", 1):
        world.sqs.fail_next("ListQueueTags", AccessDeniedError("not allowed: sqs:ListQueueTags"))
        world.consume(world.queue(name), name)
        wait_until(lambda number=number: arrived(world, number), SOON, "its message")
    assert caplog.text.count("not allowed: sqs:ListQueueTags") == 1
    assert "cannot read the tags of queue 'a', so this worker polls it even if" in caplog.text


@pytest.fixture
def pauses():
    return Pauses(FakeClock())


@pytest.fixture
def throttled(pauses):
    """A queue with a tag, whose next request for it is throttled."""
    queue = factories.sqs_queue("q", FakeSQS(FakeClock()))
    keep_pause(queue, math.inf)
    queue.sqs.fail_next("ListQueueTags", ThrottledError("rate exceeded"))
    return queue


def test_a_throttled_tag_is_read_again_before_the_queue_is_polled(pauses, throttled, caplog):
    with pytest.raises(ThrottledError):
        pauses.read_tag(throttled, THROTTLED_TRIES - 1)
    pauses.read_tag(throttled, THROTTLED_TRIES - 1)
    assert pauses.get("q").kept
    assert not [record for record in caplog.records if record.levelname != "INFO"]


def test_a_tag_that_is_throttled_for_long_keeps_no_queue_from_being_polled(pauses, throttled, caplog):
    pauses.read_tag(throttled, THROTTLED_TRIES)
    assert pauses.get("q") is None
    assert "rate exceeded" in caplog.text


def test_while_sqs_does_not_answer_the_tag_is_asked_for_again(pauses, throttled):
    with pytest.raises(ThrottledError):
        pauses.read_tag(throttled, 0)
    throttled.sqs.fail_next("ListQueueTags", UnavailableError("no answer"))
    with pytest.raises(UnavailableError):
        pauses.read_tag(throttled, 10 * THROTTLED_TRIES)


@pytest.mark.parametrize("command", [Pauses.resume, Pauses.pause])
def test_a_command_that_comes_while_the_tag_is_read_counts(pauses, command):
    class Late(FakeSQS):
        def queue_tags(self, queue_url):
            tags = super().queue_tags(queue_url)
            command(pauses, "q")
            return tags

    queue = factories.sqs_queue("q", Late(FakeClock()))
    keep_pause(queue, math.inf)
    pauses.read_tag(queue, 0)
    pause = pauses.get("q")
    assert pause is None if command is Pauses.resume else not pause.kept


def test_a_command_before_counts_while_its_pause_lasts(pauses):
    queue = factories.sqs_queue("q", FakeSQS(FakeClock()))
    keep_pause(queue, math.inf)
    pauses.pause("q", 60)
    pauses.read_tag(queue, 0)
    assert pauses.seconds_left("q") == 60
    pauses.resume("q")
    pauses.read_tag(queue, 0)
    assert pauses.seconds_left("q") == math.inf

"""A message of several records: each goes on as a message of its own, and none is lost."""

import pytest
from support import factories
from support.factories import DELETES
from support.lanes import work_off
from support.processes import SOON, wait_until

from celery_sqs_visibility.aws.fake import FakeObjectStore
from celery_sqs_visibility.core.delivery import State
from celery_sqs_visibility.core.settlements import Hold
from celery_sqs_visibility.errors import AccessDeniedError, RequestRefusedError, ThrottledError
from celery_sqs_visibility.events import DeadLettered, Deleted, Hidden, Released, Renewed, subscribe
from celery_sqs_visibility.policy.payload_pointers import PayloadPointer, new_key

SENDS = ("SendMessage", "SendMessageBatch")


@pytest.fixture
def actions(world):
    """The requests that a message costs, its own sending aside."""
    return lambda: [name for name, _ in world.sqs.calls if name in (*SENDS, DELETES)][1:]


@pytest.fixture
def no_poll_after_the_first(world, queue):
    """Records are sent once the receiver sleeps, which would receive them."""
    send_batch = world.sqs.send_batch

    def sent_later(*message, **how):
        wait_until(lambda: world.next_poll(queue) > world.clock.monotonic(), SOON, "the receiver to sleep")
        return send_batch(*message, **how)

    world.sqs.send_batch = sent_later


@pytest.mark.usefixtures("no_poll_after_the_first")
def test_records_are_sent_before_their_message_is_deleted(world, queue, events, actions):
    world.consume(queue, "records:a:b")
    events.wait(Deleted)
    assert actions() == [DELETES, SENDS[1], DELETES], "the first asks for the permission"
    assert world.visible(queue) == ["a", "b"]
    assert world.held() == 0


def test_without_the_right_to_send_it_is_a_bad_message(world, redriven, dead_letters, events):
    factories.send(redriven, "records:a:b")
    world.sqs.fail_next(SENDS[1], AccessDeniedError("allow sqs:SendMessage: no"))
    world.consume(redriven)
    (letter,) = events.wait(DeadLettered)
    assert letter.reason == (
        "its 2 records cannot be sent to queue 'redriven' as a message each: allow sqs:SendMessage: no"
    )
    assert world.visible(dead_letters) == ["records:a:b"]


SHORTER = RequestRefusedError("Message must be shorter than 7 bytes.", code="InvalidParameterValue")


def test_a_record_beyond_the_queues_limit_has_its_payload_in_s3(make, events):
    store = FakeObjectStore()
    world = make(payloads=store, payload_store=f"s3://{store.bucket}")
    queue = world.queue()
    factories.send(queue, "records:larger b:a")
    world.sqs.fail_next(SENDS[1], SHORTER, position=0)
    world.consume(queue)
    events.wait(Deleted)
    assert list(store.objects.values()) == [b"larger b"]
    assert factories.left(queue) == 2


def test_without_a_bucket_the_reason_is_the_size_and_no_right(world, redriven, dead_letters, events):
    factories.send(redriven, "records:large b:a")
    world.sqs.fail_next(SENDS[1], SHORTER, position=0)
    world.consume(redriven)
    (letter,) = events.wait(DeadLettered)
    assert "has 7 bytes with its attributes, and the queue takes 7" in letter.reason
    assert "payload_store" in letter.reason
    assert "sqs:SendMessage" not in letter.reason


def test_without_a_dead_letter_queue_either_it_is_hidden(make, events):
    world = make(error_visibility_timeout=45)
    queue = world.queue()
    factories.send(queue, "records:a:b")
    world.sqs.fail_next(SENDS[1], AccessDeniedError("no"))
    world.consume(queue)
    assert events.wait(Hidden)[0].seconds == 45


def test_during_a_shutdown_nothing_is_sent(world, queue, events, actions):
    factories.send(queue, "records:a:b")
    world.consumer._receivers.on_message = lambda _name: None
    world.consume(queue)
    events.wait(Released)
    assert actions() == []


def test_the_test_event_of_s3_is_deleted_during_a_shutdown_too(world, queue, events):
    factories.send(queue, "test event")
    world.consumer._receivers.on_message = lambda _name: None
    world.consume(queue)
    events.wait(Deleted)
    assert world.handed == []


def waits_for_its_copy(world, queue):
    """A delivery whose copy cannot be sent for now."""
    (one,) = world.deliveries(queue, "a")
    world.sqs.send = refuse(ThrottledError("slow down"))
    lane = world.consumer.holder.copies.lane

    def pauses():
        with lane.lock:
            return lane.next_due > world.clock.monotonic() and not lane.in_progress()

    assert one.settle(factories.renewal(otherwise=Hold({}), delay=60))
    wait_until(pauses, SOON, "the first attempt to fail")
    return one


def refuse(error):
    def send(*_):
        raise error

    return send


def received_by_the_next_consumer(world, queue):
    """Celery has connected anew, and the message comes back to the new connection's consumer."""
    earlier, later = world.consumer, world.new_consumer()
    later.consume(queue, world.on_message(world.handed.append))
    earlier.stop_polling()
    world.come_back(queue, later, early=True)


def test_a_copied_message_that_came_back_to_the_next_consumer_is_settled_once(world, queue, events):
    one = waits_for_its_copy(world, queue)
    received_by_the_next_consumer(world, queue)
    assert one.state is State.COPYING, "its copy's sender settles it"
    assert [consumer.capacity.held for consumer in world.consumers] == [0, 0]
    del world.sqs.send
    world.clock.advance(10)  # beyond the pause of its sender
    work_off(world.consumer.holder.copies.lane)
    assert events.wait(Deleted)[0].delivery.message_id == one.facts.message_id
    assert world.entries(DELETES)[-1] == one.handle
    assert [world.held(consumer) for consumer in world.consumers] == [0, 0]
    assert factories.requests(world.sqs, SENDS[0])[-1]["message"].body == "copy"


def test_one_whose_copy_is_refused_is_taken_back_by_the_consumer_that_polls_now(world, queue, events):
    one = waits_for_its_copy(world, queue)
    for consumer in world.consumers:
        consumer._consumers = lambda: world.consumers
    received_by_the_next_consumer(world, queue)
    world.handed.clear()
    world.sqs.send = refuse(AccessDeniedError("no"))
    world.clock.advance(10)  # beyond the pause of its sender
    work_off(world.consumer.holder.copies.lane)
    wait_until(lambda: world.hand_over() or world.handed, SOON, "the message, which Celery holds now")
    assert one.state is State.HELD
    assert [world.held(consumer) for consumer in world.consumers] == [0, 1]


def test_a_message_that_comes_back_as_its_copy_is_sent_leaves_the_payload_to_the_copy(make, events):
    store = FakeObjectStore()
    world = make(payloads=store, payload_store=f"s3://{store.bucket}")
    queue = world.queue()
    (one,) = world.deliveries(queue, "a")
    key = new_key("")
    store.objects[key] = b"large"
    one.pointer = pointer = PayloadPointer(store.bucket, key)

    def come_back(_):
        (newer,) = world.come_back(queue, early=True)
        newer.pointer = pointer

    end = subscribe(come_back, Renewed)
    assert one.settle(factories.renewal(delay=900))
    events.wait(Deleted)
    end()
    world.consumer.holder._removals.flush(SOON)
    assert list(store.objects) == [key]


def test_handing_back_releases_what_its_copy_could_not_be_sent_of(world, queue, events):
    one = waits_for_its_copy(world, queue)
    world.consumer.stop_polling()
    now = world.clock.monotonic()
    world.consumer.end_by(now, now)
    world.consumer.hand_back()
    assert events.wait(Released) == [Released(one.facts)]
    assert factories.counts(queue) == (1, 0)

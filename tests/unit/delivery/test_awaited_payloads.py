"""A message whose payload is in S3, from its receive to the removal of both."""

import threading

import pytest
from support import factories
from support.factories import TIMEOUT, counts, left
from support.lanes import work_off
from support.processes import SOON, wait_until

from celery_sqs_visibility import events as kinds
from celery_sqs_visibility.aws.fake import FakeObjectStore
from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.core.held import Past
from celery_sqs_visibility.core.settlements import RELEASE, Delete, Hide, Lapse, Why
from celery_sqs_visibility.delivery.awaited_payloads import (
    MAX_FETCHES,
    SILENCE_SECONDS,
    TRY_SECONDS,
)
from celery_sqs_visibility.delivery.receive.content import DecodedMessage
from celery_sqs_visibility.delivery.settle.dead_letters import ATTRIBUTE
from celery_sqs_visibility.delivery.settle.rejection import KEPT_SECONDS
from celery_sqs_visibility.errors import AccessDeniedError, UnavailableError
from celery_sqs_visibility.policy.message_limits import PAYLOAD_BYTES
from celery_sqs_visibility.policy.payload_pointers import new_key, pointer_body, size_attribute

KEY = new_key("")
DOWN = UnavailableError("no answer from S3")


class GatedStore(FakeObjectStore):
    """Answers when the test opens the gate."""

    def __init__(self):
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()

    def get(self, key, most, progress):
        assert self.gate.wait(SOON)
        return super().get(key, most, progress)


@pytest.fixture
def store():
    return GatedStore()


@pytest.fixture
def world(make, store):
    world = make(payloads=store, payload_store=f"s3://{store.bucket}")
    yield world
    store.gate.set()


def send(queue, store, body="a task", key=KEY, bucket=None):
    """Send a message whose payload is in S3, unless `body` is `None`."""
    if body is not None:
        store.objects[key] = body if isinstance(body, bytes) else body.encode()
    pointer = pointer_body(bucket or store.bucket, key)
    queue.sqs.send(queue.url, OutgoingMessage(pointer, size_attribute(7)))
    return pointer


def held(world, queue, store):
    """A message that was handed over, with its payload from S3."""
    send(queue, store)
    (delivery,) = world.deliveries(queue)
    assert world.bodies() == ["a task"]
    return delivery


def flushed(world):
    """Everything is settled and removed."""
    assert world.consumer.holder.copies.flush(SOON)
    assert world.consumer.holder.settler.flush(SOON)
    assert world.consumer.holder._removals.flush(SOON)


def fetches(world):
    """The lane that fetches: its work is done by the test, where the clock stands still."""
    return next(each for each in world.consumer._lanes if each.duty == "fetches payloads from S3")


def test_a_payload_is_removed_after_its_message_and_not_before(world, queue, store):
    delivery = held(world, queue, store)
    world.sqs.fail_next("DeleteMessageBatch", UnavailableError("down"))
    delivery.settle(Delete())
    wait_until(lambda: len(world.entries("DeleteMessageBatch")) == 1, SOON, "the deletion that fails")
    world.consumer.holder._removals.flush(0)
    assert store.objects
    wait_until(
        lambda: world.clock.advance(1) or world.consumer.holder.settler.flush(0.05), SOON, "the deletion"
    )
    flushed(world)
    assert (store.objects, left(queue)) == ({}, 0)


def test_a_payload_of_another_producer_stays_since_others_may_need_it(world, queue, store):
    send(queue, store, key="6ff6efbf-7c5d-4d0b-9f5b-2f6c1a2b3c4d")
    (delivery,) = world.deliveries(queue)
    delivery.settle(Delete())
    flushed(world)
    assert (len(store.objects), left(queue)) == (1, 0)


@pytest.mark.parametrize("settlement", [Hide(5), Lapse(), RELEASE, Hide(5, Why.PARKED)], ids=repr)
def test_a_message_that_comes_back_keeps_its_payload(world, queue, store, settlement):
    held(world, queue, store).settle(settlement)
    flushed(world)
    assert (list(store.objects), left(queue)) == ([KEY], 1)


def test_a_lost_message_keeps_its_payload_for_whoever_has_it(world, queue, store):
    delivery = held(world, queue, store)
    world.clock.advance(TIMEOUT + 1)
    delivery.settle(Delete())
    flushed(world)
    assert list(store.objects) == [KEY]


def test_a_message_whose_deletion_was_answered_late_keeps_its_payload(world, queue, store):
    delivery = held(world, queue, store)
    delete = world.sqs.delete
    world.sqs.delete = lambda *job: (delete(*job), world.clock.advance(TIMEOUT + 1))[0]
    delivery.settle(Delete())
    flushed(world)
    assert list(store.objects) == [KEY]


def test_a_dead_letter_has_the_pointer_and_the_payload_stays(world, redriven, dead_letters, store):
    pointer = send(redriven, store)
    (delivery,) = world.deliveries(redriven)
    delivery.give_up("of no use", lambda: pointer)
    flushed(world)
    (letter,) = world.sqs.receive(dead_letters.url, 10, 0, factories.EVERYTHING)
    assert letter["Body"] == pointer
    assert letter["MessageAttributes"].keys() == {"ExtendedPayloadSize", ATTRIBUTE}
    assert (list(store.objects), left(redriven)) == ([KEY], 0)


def test_a_renewed_message_leaves_its_payload_to_its_copy(world, queue, store):
    delivery = held(world, queue, store)
    delivery.settle(factories.renewal(delivery.pointer.body, attributes=delivery.message_attributes))
    flushed(world)
    assert (list(store.objects), left(queue)) == ([KEY], 1)


def test_a_finished_message_that_comes_back_does_not_take_the_payload_with_it(world, queue, store):
    delivery = held(world, queue, store)
    world.consumer.holder.remember(Past.FINISHED, delivery)
    delivery.settle(Lapse())
    world.come_back(queue)
    flushed(world)
    assert (list(store.objects), left(queue)) == ([KEY], 0)


def test_a_slow_payload_keeps_no_other_message_waiting_and_its_own_is_extended(world, queue, store):
    store.gate.clear()
    send(queue, store)
    world.buffered(queue, "small")
    world.hand_over()
    assert world.bodies() == ["small"]
    world.extend()
    assert len(world.entries("ChangeMessageVisibilityBatch")) == 2
    store.gate.set()
    wait_until(world.hand_over, SOON, "the payload")
    assert world.bodies() == ["small", "a task"]


def test_the_task_is_known_once_the_payload_is_and_a_far_eta_waits_in_sqs(world, queue, store, events):
    send(queue, store, "eta:90000")
    world.consume(queue)
    (parked,) = events.wait(kinds.Parked)
    assert parked.seconds > TIMEOUT
    flushed(world)
    assert list(store.objects) == [KEY]


def test_a_large_message_that_goes_on_waiting_as_a_copy_keeps_its_payload(world, dead_letters, store, events):
    queue = world.queue("once", letters=dead_letters, most=1)  # to be parked would be its last receive
    pointer = send(queue, store, "eta:1800")
    world.consume(queue)
    events.wait(kinds.Renewed)
    flushed(world)
    copy = factories.requests(world.sqs, "SendMessage")[-1]["message"]
    assert (copy.body, copy.attributes, copy.delay) == (pointer, size_attribute(7), 900)
    assert (list(store.objects), left(queue)) == ([KEY], 0), "it is delayed"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (None, f"its payload s3://payloads/{KEY} is gone: deleted, or expired by a lifecycle rule"),
        (b"\xff", f"its payload s3://payloads/{KEY} is not text"),
        (b"x" * (PAYLOAD_BYTES + 1), "its payload is larger than 67,108,864 bytes"),
        ("unreadable", "nobody can read it"),
    ],
    ids=["gone", "bytes", "too large", "foreign"],
)
def test_a_payload_that_is_no_task_makes_a_dead_letter_and_stays(
    world, redriven, dead_letters, store, events, body, words
):
    pointer = send(redriven, store, body)
    world.consume(redriven)
    (letter,) = events.wait(kinds.DeadLettered)
    assert words in letter.reason
    flushed(world)
    assert world.visible(dead_letters) == [pointer]
    assert len(store.objects) == (body is not None)


def test_another_bucket_is_neither_read_nor_emptied(world, redriven, dead_letters, store, events):
    pointer = send(redriven, store, bucket="secrets")
    world.consume(redriven)
    (letter,) = events.wait(kinds.DeadLettered)
    assert f"in s3://secrets/{KEY}, and only one in payload_store is read" in letter.reason
    flushed(world)
    assert (world.visible(dead_letters), store.calls) == ([pointer], [])


def failing(world, queue, store, error, **facts):
    """A message whose payload cannot be had, tried to the end by the test itself."""
    store.fail_next("GetObject", *[error] * 1000)
    world.consumer._lanes.remove(threads := fetches(world))  # they do not start
    send(queue, store)
    world.consume(queue)
    wait_until(threads._work.ready, SOON, "the message")
    for _ in range(int(TRY_SECONDS) + 2):
        work_off(threads)
        world.clock.advance(1)
        world.beat()


@pytest.mark.parametrize("error", [DOWN, AccessDeniedError("denied")])
def test_a_payload_that_cannot_be_had_for_a_while_has_its_message_come_back(
    make, store, events, caplog, error
):
    world = make(payloads=store, payload_store=f"s3://{store.bucket}", error_visibility_timeout=7)
    queue = world.queue()
    failing(world, queue, store, error)
    (hidden,) = events.wait(kinds.Hidden)
    assert hidden.seconds == 7
    assert f"cannot fetch payloads: {error}; trying again (bucket=payloads)" in caplog.text
    assert "a payload could not be fetched from S3, so its message comes back (queue=q" in caplog.text
    assert world.held() == 0
    flushed(world)
    assert (list(store.objects), counts(queue)) == ([KEY], (0, 1))


def test_before_sqs_would_move_it_an_operator_has_an_hour(world, dead_letters, store, events):
    queue = world.queue("last", letters=dead_letters, most=1)
    failing(world, queue, store, AccessDeniedError("denied"))
    (hidden,) = events.wait(kinds.Hidden)
    assert hidden.seconds == KEPT_SECONDS


def test_a_payload_comes_when_s3_is_back_and_meanwhile_others_have_its_messages_place(
    world, queue, store, caplog
):
    world.consumer._lanes.remove(threads := fetches(world))
    store.fail_next("GetObject", DOWN)
    send(queue, store)
    world.consume(queue)
    wait_until(threads._work.ready, SOON, "the message")
    work_off(threads)
    assert (world.consumer.capacity.held, len(world.consumer.held())) == (0, 1)
    world.clock.advance(2)
    work_off(threads)
    assert world.held() == 1
    assert world.hand_over() == 1
    assert world.bodies() == ["a task"]
    assert "can fetch payloads again after 2 s" in caplog.text


def test_after_an_outage_no_more_payloads_are_fetched_than_the_worker_has_place_for(make, store):
    world = make(payloads=store, payload_store=f"s3://{store.bucket}")
    queue = world.queue()
    world.consumer.set_prefetch_count(2)
    world.consumer._lanes.remove(threads := fetches(world))
    store.fail_next("GetObject", *[DOWN] * 5)
    for _ in range(5):
        send(queue, store, key=new_key(""))
    world.consume(queue)
    wait_until(lambda: (work_off(threads), len(store.calls) == 5)[1], SOON, "all to wait for S3")
    assert (world.consumer.capacity.held, len(world.consumer.held())) == (0, 5)
    world.clock.advance(2)
    work_off(threads)
    assert len(world.buffer) == 3  # one beyond the two that it may hold
    world.hand_over()
    world.delivery(world.handed[0]).settle(Delete())
    world.clock.advance(2)
    work_off(threads)
    assert len(world.buffer) == 1


def in_progress(world, queue, store, count):
    """That many messages, whose fetches have begun as far as there are threads; S3 is silent."""
    store.gate.clear()
    for _ in range(count):
        send(queue, store, key=new_key(""))
    world.consume(queue)
    threads = fetches(world)
    wait_until(
        lambda: (world.held(), len(threads.in_progress())) == (count, min(count, MAX_FETCHES)),
        SOON,
        "the fetches",
    )


def test_while_s3_is_silent_no_message_keeps_its_place_whether_its_fetch_has_begun_or_not(
    world, queue, store
):
    in_progress(world, queue, store, MAX_FETCHES + 2)
    watch = world.consumer._awaited
    watch.replace_stuck(world.clock.monotonic())
    assert world.consumer.capacity.held == MAX_FETCHES + 2
    world.clock.advance(SILENCE_SECONDS)
    watch.replace_stuck(world.clock.monotonic())
    assert (world.consumer.capacity.held, len(world.consumer.held())) == (0, MAX_FETCHES + 2)
    store.gate.set()
    wait_until(lambda: len(world.buffer) == MAX_FETCHES + 2, SOON, "the payloads")
    assert world.consumer.capacity.held == MAX_FETCHES + 2


def test_while_one_fetch_gets_on_the_messages_behind_it_keep_their_places(world, queue, store):
    in_progress(world, queue, store, MAX_FETCHES + 2)
    world.clock.advance(SILENCE_SECONDS)
    fetches(world).in_progress()[0].seen = world.clock.monotonic()
    world.consumer._awaited.replace_stuck(world.clock.monotonic())
    assert world.consumer.capacity.held == 3  # the one that gets on, and the two that wait for a thread


def test_what_is_given_back_meanwhile_is_not_handed_over(world, queue, store):
    store.gate.clear()
    send(queue, store)
    world.consume(queue)
    wait_until(lambda: world.held() == 1, SOON, "the message")
    world.consumer.stop_polling()
    assert len(world.consumer.give_back_unstarted()) == 1
    store.gate.set()
    wait_until(lambda: store.calls, SOON, "the fetch")
    assert (world.hand_over(), counts(queue)) == (0, (1, 0))


def test_a_message_that_comes_back_during_its_fetch_is_fetched_and_run_once(world, queue, store):
    store.gate.clear()
    send(queue, store)
    handed = []
    world.consume(queue, on_message=lambda payload: handed.append(world.delivery(payload)))
    wait_until(lambda: world.held() == 1, SOON, "the message")
    (again,) = world.come_back(queue)
    store.gate.set()
    wait_until(world.hand_over, SOON, "the payload")
    assert store.calls == ["GetObject"]
    handed[0].settle(Delete())
    flushed(world)
    assert (store.objects, left(queue), again.facts.receive_count) == ({}, 0, 2)


@pytest.mark.parametrize("during", [True, False], ids=["during its fetch", "after it"])
def test_a_message_that_comes_back_knows_its_task_and_its_parks_by_the_payload(
    world, queue, store, monkeypatch, during
):
    monkeypatch.setattr(world.consumer.holder.parking, "parks_until_eta", lambda _delivery, _content: 3)
    content = DecodedMessage({"handle": "h", "body": "a task"}, "proj.add", "i\nd", eta=1.0)
    monkeypatch.setattr(world.consumer._arrivals._decoder, "_open", lambda _queue, _message: content)
    if during:
        store.gate.clear()
    send(queue, store)
    world.consume(queue)
    wait_until(lambda: world.held() == 1, SOON, "the message")
    if not during:
        wait_until(lambda: len(world.buffer), SOON, "the payload")
    (again,) = world.come_back(queue)
    store.gate.set()
    wait_until(lambda: len(world.buffer), SOON, "the payload")
    assert (again.parkings, again.facts.task, again.facts.task_id) == (
        3,
        "proj.add",
        "i\N{REPLACEMENT CHARACTER}d",
    )


def test_a_message_that_comes_back_while_it_is_held_is_not_fetched_again_and_keeps_its_parks(
    world, queue, store
):
    held(world, queue, store).parkings = 3
    (again,) = world.come_back(queue)
    assert (again.parkings, store.calls) == (3, ["GetObject"])

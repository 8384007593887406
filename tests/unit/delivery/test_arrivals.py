"""What arrives is handed to Celery, parked, refused or given back; none of it costs the others."""

import pytest
from support import factories
from support.factories import CHANGES, DELETES, TIMEOUT, BusySQS
from support.processes import SOON, wait_until

from celery_sqs_visibility.aws.port import OutgoingMessage, ReceiveOptions
from celery_sqs_visibility.core.settlements import Delete
from celery_sqs_visibility.delivery.holder import REAPPEARS_AFTER_SECONDS
from celery_sqs_visibility.errors import AccessDeniedError, ThrottledError
from celery_sqs_visibility.events import (
    DeadLettered,
    Deleted,
    Hidden,
    Lost,
    Parked,
    Released,
    Renewed,
    Unreadable,
)
from celery_sqs_visibility.policy.eta import LEAD_SECONDS


class ListsTwice(BusySQS):
    """Its answers list each message twice, with one receipt handle."""

    def receive(self, *args):
        return [message for message in super().receive(*args) for _ in range(2)]


def received_before(queue, times):
    for _ in range(times):
        queue.sqs.receive(queue.url, 10, 0, ReceiveOptions(visibility_timeout=0))


def test_the_main_thread_hands_over_for_a_moment_only_and_is_woken_for_the_rest(world, queue):
    loop = world.buffer.fileno()
    world.buffered(queue, "a", "b", on_message=lambda _payload: world.clock.advance(1))
    world.buffer.woken()
    assert world.hand_over() == 1
    assert loop == world.buffer.fileno()
    assert world.hand_over() == 1


def test_a_message_that_an_answer_lists_twice_is_held_and_run_once(make, events):
    world = make()
    world.sqs.__class__ = ListsTwice
    for delivery in world.deliveries(world.queue(), "a", "b"):
        assert delivery.start()
        assert delivery.settle(Delete())
    events.wait(Deleted, 2)
    assert world.bodies() == ["a", "b"]
    assert world.held() == 0


def test_a_message_that_a_late_answer_lists_again_is_held_once(world, queue):
    """As where a poll of a FIFO queue was repeated under its ReceiveRequestAttemptId."""
    (delivery,) = world.deliveries(queue, "a")
    again = {"MessageId": delivery.facts.message_id, "ReceiptHandle": delivery.handle, "Body": "a"}
    world.consumer._arrived(queue, [again], world.clock.monotonic(), world.clock.monotonic())
    assert world.hand_over() == 0
    assert world.held() == 1
    assert delivery.settle(Delete())
    assert world.held() == 0


def test_a_message_that_lapsed_in_the_buffer_is_not_run_and_is_lost(make, events):
    world = make(heartbeat_interval=0)
    world.buffered(world.queue(), "a")
    world.clock.advance(TIMEOUT)
    world.hand_over()
    assert world.handed == []
    assert world.held() == 0
    assert [type(event) for event in events.seen[1:]] == [Lost]


def test_a_message_that_celery_cannot_take_is_hidden_as_after_an_error(make, events, caplog):
    world = make(error_visibility_timeout=45)

    def broken(payload):
        raise KeyError("body")

    world.buffered(world.queue(), "a", on_message=broken)
    world.hand_over()
    assert events.wait(Hidden)[0].seconds == 45
    assert "message could not be handed to Celery" in caplog.text


@pytest.mark.parametrize(
    ("name", "receives"), [("q", 0), ("redriven", 1)], ids=["always", "where its copy is refused"]
)
def test_a_far_eta_that_may_come_back_is_parked_and_not_handed_over(
    world, queue, redriven, events, name, receives
):
    queue = redriven if name == "redriven" else queue
    factories.send(queue, "eta:3600")
    received_before(queue, receives)
    world.sqs.fail_next("SendMessage", AccessDeniedError("no"))
    world.consume(queue)
    assert events.wait(Parked)[0].seconds == pytest.approx(3595)
    assert world.hand_over() == world.held() == 0


def test_a_dead_letter_that_sqs_has_moved_had_its_attempts_elsewhere(world, redriven, dead_letters):
    factories.send(redriven, "a")
    received_before(redriven, 4)
    (delivery,) = world.deliveries(dead_letters)
    assert (delivery.facts.receive_count, delivery.facts.attempt) == (4, None)
    assert delivery.parkings == 3


def test_a_far_eta_waits_on_as_a_copy_where_sqs_would_not_hand_it_out_again(world, redriven, events):
    factories.send(redriven, "eta:3600")
    received_before(redriven, 2)
    world.consume(redriven)
    (renewed,) = events.wait(Renewed)
    assert (renewed.seconds, renewed.cause) == (900, "eta")
    again_at = pytest.approx(world.clock.monotonic() + 900 + REAPPEARS_AFTER_SECONDS)
    wait_until(lambda: world.next_poll(redriven) == again_at, SOON, "it to be expected")
    events.wait(Deleted)
    actions = [name for name, _ in world.sqs.calls if name in ("SendMessage", DELETES)]
    assert actions == ["SendMessage", DELETES, "SendMessage", DELETES], "sent, asked, copied, then deleted"
    assert events.of(Parked) == []
    assert world.held() == 0
    assert world.visible(redriven) == []
    world.clock.advance(900)
    (copy,) = world.sqs.receive(redriven.url, 1, 0, factories.EVERYTHING)
    assert (copy["Body"], copy["Attributes"]["ApproximateReceiveCount"]) == ("eta:3600", "1")


@pytest.mark.parametrize("seconds", [60, 3600])
def test_receives_in_vain_before_the_eta_do_not_count_as_attempts(world, queue, events, seconds):
    factories.send(queue, f"eta:{seconds}")
    received_before(queue, 3)
    visible_at = world.clock.wall() + seconds - LEAD_SECONDS
    world.consume(queue)
    events.wait(Deleted)
    sent = factories.requests(world.sqs, "SendMessage")[-1]["message"]
    assert sent.visible_at == pytest.approx(visible_at), "however late it is sent"
    world.clock.advance(900)
    (copy,) = world.sqs.receive(queue.url, 1, 0, factories.EVERYTHING)
    assert (copy["Body"], copy["Attributes"]["ApproximateReceiveCount"]) == (f"eta:{seconds}", "1")


def test_a_near_eta_whose_copy_is_refused_is_held(world, queue, events):
    factories.send(queue, "eta:60")
    received_before(queue, 3)
    world.sqs.fail_next("SendMessage", AccessDeniedError("no"))
    world.consume(queue)
    wait_until(lambda: len(world.buffer) == 1, SOON, "it to be buffered")
    assert events.of(Parked) == []


def test_in_a_fifo_queue_an_eta_keeps_its_place_and_its_receives(world, events):
    queue = world.queue("q.fifo")
    world.sqs.send(queue.url, OutgoingMessage("eta:3600", {}, group_id="g", deduplication_id="d"))
    received_before(queue, 3)
    world.consume(queue)
    assert events.wait(Parked)


def test_a_copy_keeps_attributes_and_group_but_not_the_deduplication_id(world, dead_letters, events):
    queue = world.queue("q.fifo", letters=dead_letters)
    attributes = {"trace": {"DataType": "String", "StringValue": "1-2-3"}}
    message = OutgoingMessage("eta:3600", attributes, group_id="g", deduplication_id="d")
    world.sqs.send(queue.url, message)
    received_before(queue, 2)
    world.consume(queue)
    events.wait(Deleted)
    assert factories.left(queue) == 1
    copy = factories.requests(world.sqs, "SendMessage")[-1]["message"]
    assert (copy.group_id, copy.delay) == ("g", None), "in a FIFO queue it is there at once"
    assert copy.deduplication_id == events.of(Renewed)[0].delivery.message_id
    assert copy.attributes == attributes


def test_a_far_eta_is_held_where_the_queue_takes_no_copy_of_it(world, redriven, events, caplog):
    factories.send(redriven, "eta:3600", "eta:7200")
    received_before(redriven, 2)
    for action in ("SendMessage", "SendMessageBatch") * 2:
        world.sqs.fail_next(action, AccessDeniedError("no"))
    world.consume(redriven)
    wait_until(lambda: len(world.buffer) == 2, SOON, "both to be buffered")
    world.hand_over()
    held = [world.delivery(payload) for payload in world.handed]
    assert set(world.consumer.held()) == set(held)  # two threads tried to send the copies
    assert world.held() == len(held) == 2
    assert events.of(Parked) == events.of(Lost) == []
    assert caplog.text.count("allow sqs:SendMessage") == 1
    assert held[0].settle(Delete())
    events.wait(Deleted)
    assert factories.left(redriven) == 1


@pytest.mark.parametrize(
    ("body", "receives", "sent"), [("eta:3600", 2, Renewed), ("unreadable", 0, DeadLettered)]
)
def test_a_copy_that_cannot_be_sent_now_is_tried_again_and_nothing_is_deleted_meanwhile(
    world, redriven, events, body, receives, sent
):
    factories.send(redriven, body)
    received_before(redriven, receives)
    world.sqs.fail_next("SendMessage", ThrottledError("slow down"))
    world.consume(redriven)
    wait_until(lambda: len(factories.requests(world.sqs, "SendMessage")) == 2, SOON, "the copy to be tried")
    assert factories.left(redriven) == 1
    world.clock.advance(5)
    with world.pump.lock:
        world.consumer.holder.settler.lane.wake()
        world.consumer.holder.copies.lane.wake()
    events.wait(sent)
    events.wait(Deleted)


def test_parks_are_told_of_what_was_received_for_another_reason(world, queue):
    factories.send(queue, "eta:-60")
    received_before(queue, 1)
    world.clock.advance(3600)
    (one,) = world.deliveries(queue)
    assert one.parkings == 1


@pytest.mark.parametrize(("name", "becomes"), [("redriven", DeadLettered), ("q", Hidden)])
def test_an_unreadable_message_is_moved_to_the_dead_letters_and_never_deleted_without(
    world, redriven, dead_letters, queue, events, name, becomes
):
    moved = becomes is DeadLettered
    world.consume(redriven if moved else queue, "unreadable")
    events.wait(Deleted if moved else Hidden)
    assert events.of(Unreadable)[0].reason == "nobody can read it"
    assert len(events.of(becomes)) == 1
    assert [factories.left(each) for each in (redriven, queue, dead_letters)] == [0, not moved, moved]
    assert len(world.entries(DELETES)) == 2 * moved, "the first asks for the permission"


def test_a_bug_in_opening_a_message_is_logged_once_and_costs_neither_the_others_nor_capacity(
    world, queue, events, caplog
):
    world.deliveries(queue, "bug", "a")
    assert world.bodies() == ["a"]
    assert world.held() == 1
    world.come_back(queue)
    assert len(events.wait(Unreadable)) == 1
    (record,) = [record for record in caplog.records if "cannot be decoded: " in record.getMessage()]
    assert record.exc_info[0] is ZeroDivisionError


def test_a_bug_after_that_has_the_message_lapse_and_does_not_cost_the_others(world, queue, events, caplog):
    world.deliveries(queue, "a", "later bug", "b")
    assert world.bodies() == ["a", "b"]
    assert [event.seconds for event in events.wait(Hidden)] == [TIMEOUT]
    assert world.entries(CHANGES) == []
    assert world.held() == 2
    assert "unexpected error with a message of 'q'; it comes back" in caplog.text


def test_a_far_eta_whose_copy_is_refused_is_given_back_by_a_queue_that_is_cancelled_meanwhile(
    world, redriven, events
):
    factories.send(redriven, "eta:3600")
    received_before(redriven, 2)

    def refuse(*_):
        world.consumer.cancel(redriven.name)
        raise AccessDeniedError("no")

    world.sqs.send = refuse
    world.consume(redriven)
    events.wait(Released)
    assert world.hand_over() == world.held() == 0


def test_of_a_fifo_queue_whose_policy_takes_a_message_after_one_receive_a_far_eta_is_held(
    world, dead_letters, events
):
    queue = world.queue("once.fifo", letters=dead_letters, most=1)
    world.sqs.send(queue.url, OutgoingMessage("eta:3600", {}, group_id="g", deduplication_id="d"))
    world.consume(queue)
    wait_until(lambda: len(world.buffer) == 1, SOON, "it to be buffered")
    assert events.of(Parked) == events.of(Renewed) == []


def test_a_message_for_which_memory_lacks_comes_back_and_costs_no_other(world, queue, events):
    world.deliveries(queue, "lack", "b")
    events.wait(Hidden)
    assert world.bodies() == ["b"]
    assert events.of(Unreadable) == []
    assert factories.left(queue) == 2

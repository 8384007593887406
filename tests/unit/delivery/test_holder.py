"""What is held is settled once, with its newest handle, and expected back when it is visible again."""

import threading
from dataclasses import replace

import pytest
from support import factories
from support.factories import CHANGES, DELETES, TIMEOUT
from support.processes import SOON, wait_until

from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.core.capacity import Waiter
from celery_sqs_visibility.core.copies import Sending
from celery_sqs_visibility.core.delivery import State
from celery_sqs_visibility.core.held import MARGIN_SECONDS, Arrival, Past
from celery_sqs_visibility.core.settlements import Delete, Hide, Hold, Lapse, Why
from celery_sqs_visibility.core.turns import Turns
from celery_sqs_visibility.delivery import holder
from celery_sqs_visibility.delivery.holder import REAPPEARS_AFTER_SECONDS
from celery_sqs_visibility.errors import AccessDeniedError, ReceiptHandleInvalidError, RequestRefusedError
from celery_sqs_visibility.events import (
    DeadLettered,
    Deleted,
    DeliveryEnded,
    FinishedBefore,
    Hidden,
    Lost,
    Released,
    SettlementEnded,
    Started,
    Superseded,
    subscribe,
)
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON_SECONDS


@pytest.mark.parametrize(
    ("end", "event", "seconds", "requests"),
    [
        (lambda one: one.settle(Hide(30)), lambda facts: Hidden(facts, 30), 30, 1),
        (lambda one: one.reject(requeue=True), Released, 0, 1),
        (lambda one: one.settle(Lapse()), lambda facts: Hidden(facts, TIMEOUT - 20), TIMEOUT - 20, 0),
    ],
    ids=["hidden", "requeued", "at the deadline, which costs no request"],
)
def test_what_will_be_visible_comes_back_although_the_queue_sleeps(
    world, queue, events, end, event, seconds, requests
):
    (one,) = world.deliveries(queue, "a")
    world.clock.advance(20)
    end(one)
    told = event(one.facts)
    assert events.wait(type(told)) == [told]
    assert len(world.entries(CHANGES)) == requests
    again_at = world.clock.monotonic() + seconds + REAPPEARS_AFTER_SECONDS
    assert world.next_poll(queue) == pytest.approx(again_at, abs=1e-6)
    world.clock.advance(seconds + REAPPEARS_AFTER_SECONDS)
    receiver = world.consumer._receivers.get("q")
    receiver.expect("to have it look at the clock again", world.clock.monotonic() - 1)
    assert world.buffer.wait(SOON)


ENDS = [(Delete(), "discarded"), (Hide(5), "retried"), (Lapse(), "retried"), (factories.renewal(), "delayed")]


@pytest.mark.parametrize(("settlement", "outcome"), ENDS)
def test_an_end_and_its_settlement_are_measured_where_somebody_listens(
    world, queue, events, settlement, outcome
):
    (one,) = world.deliveries(queue, "a")
    ends = [subscribe(events, kind) for kind in (DeliveryEnded, SettlementEnded)]
    one.settle(settlement)
    (told,) = events.wait(DeliveryEnded)
    assert (told.delivery, told.outcome) == (one.facts, outcome)
    assert [each.delivery for each in events.wait(SettlementEnded)] == [one.facts]
    for end in ends:
        end()


@pytest.mark.parametrize(("settlement", "outcome"), ENDS)
def test_where_nobody_listens_no_end_is_made(world, queue, monkeypatch, settlement, outcome):
    (one,) = world.deliveries(queue, "a")
    for made in ("end_of", "settlement_end_of"):
        monkeypatch.setattr(holder, made, lambda *_: pytest.fail(f"of what is {outcome}"))
    one.settle(settlement)
    wait_until(lambda: one.state is State.SETTLED, SOON, "it to be settled")
    assert world.consumer.holder.settler.flush(SOON)


def test_what_a_freed_slot_wakes_keeps_no_settlement_from_being_sent(world, queue, events, monkeypatch):
    (one,) = world.deliveries(queue, "a")
    monkeypatch.setattr(world.consumer, "free", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        one.settle(Delete())
    events.wait(Deleted)


def test_an_error_after_one_settlement_concerns_no_other(world, queue, events, monkeypatch, caplog):
    first, second = world.deliveries(queue, "a", "b")
    first.pointer = object()  # which is none
    monkeypatch.setattr(world.consumer.holder, "_remove_payload", lambda *_: 1 / 0)
    first.settle(Delete())
    second.settle(Delete())
    assert events.wait(Deleted) == [Deleted(second.facts)]
    told = "unexpected error after a message was settled; continuing"
    wait_until(lambda: told in caplog.text, SOON, "the error to be logged")


@pytest.mark.parametrize("why", [Why.RETRIED, Why.KEPT])
def test_a_hide_beyond_the_horizon_is_told_and_expected_as_sqs_was_asked(world, queue, events, why):
    (one,) = world.deliveries(queue, "a")
    one.deadline = world.clock.monotonic() + 11 * 3600 + TIMEOUT  # after eleven hours of heartbeats
    world.clock.advance(11 * 3600)
    one.settle(Hide(VISIBILITY_HORIZON_SECONDS, why))
    (hidden,) = events.wait(Hidden)
    ((_, asked),) = world.entries(CHANGES)
    assert asked <= 3600
    assert (hidden.seconds, hidden.kept) == (asked, why is Why.KEPT)


def test_what_lapsed_is_not_hidden_any_more_but_may_still_be_deleted(make, events):
    world = make(heartbeat_interval=0)
    hidden, deleted = world.deliveries(world.queue(), "a", "b")
    world.clock.advance(TIMEOUT)
    hidden.settle(Hide(5))
    deleted.settle(Delete())
    events.wait(Deleted)
    assert [event.delivery for event in events.of(Lost)] == [hidden.facts, deleted.facts]
    assert world.entries(CHANGES) == []


@pytest.mark.parametrize(("late", "arrival"), [(0, Arrival.FINISHED), (-1, Arrival.NEW)])
def test_what_was_deleted_too_late_may_come_back_and_is_remembered_for_longer(make, events, late, arrival):
    """SQS says OK to a delete with an old handle, and need not have deleted anything."""
    world = make(heartbeat_interval=0)
    one, other = world.deliveries(world.queue(), "a", "b")
    world.clock.advance(TIMEOUT + late)
    one.settle(Delete())
    events.wait(Deleted)
    world.clock.advance(TIMEOUT + MARGIN_SECONDS + 1)
    other.settle(Delete())  # what is finished is forgotten as others are
    events.wait(Deleted, 2)
    again = replace(one, handle="again", deadline=world.clock.monotonic() + TIMEOUT)
    assert world.consumer.holder.receive([again]) == [(arrival, again)]
    again.settle(Lapse())


def test_what_was_dispatched_runs_although_it_is_lost_and_its_success_is_settled(make, events):
    world = make(heartbeat_interval=0)
    queue = world.queue()
    (one,) = world.deliveries(queue, "a")
    assert one.dispatch()
    world.clock.advance(TIMEOUT)
    world.beat()
    assert one.lost
    assert one.start()
    assert events.of(Started) == [Started(one.facts)]
    assert one.settle(Delete())
    events.wait(Deleted)
    assert (world.held(), factories.left(queue)) == (0, 0)


def test_what_failed_for_good_is_moved_to_the_dead_letters_with_the_reason(
    world, redriven, dead_letters, events
):
    (one,) = world.deliveries(redriven, "a")
    one.give_up("its last attempt failed", lambda: "the body", exception="ValueError()")
    events.wait(Deleted)
    assert events.of(DeadLettered) == [DeadLettered(one.facts, "its last attempt failed")]
    assert (factories.left(redriven), factories.left(dead_letters)) == (0, 1)
    actions = [name for name, _ in world.sqs.calls if name in ("SendMessage", DELETES)]
    assert actions[-2:] == ["SendMessage", DELETES]


def test_what_has_a_dead_letter_is_deleted_once_if_it_comes_back_while_a_listener_hears_of_it(
    world, redriven, dead_letters, events
):
    (one,) = world.deliveries(redriven, "a")
    unsubscribe = subscribe(lambda _letter: world.come_back(redriven), DeadLettered)
    try:
        one.give_up("its last attempt failed", lambda: "the body")
        events.wait(Deleted)
    finally:
        unsubscribe()
    assert len(events.of(Superseded)) == 1
    assert (len(world.buffer), factories.left(dead_letters)) == (0, 1)


@pytest.mark.parametrize("error", [AccessDeniedError("no leave to send"), RequestRefusedError("too large")])
def test_what_failed_for_good_is_released_where_only_sqs_may_move_it(world, redriven, events, error, caplog):
    (one,) = world.deliveries(redriven, "a")
    world.sqs.fail_next("SendMessage", error)
    one.give_up("failed", lambda: "the body")
    events.wait(Released)
    assert factories.left(redriven) == 1
    assert "cannot send to the dead-letter queue of 'redriven'" in caplog.text


@pytest.mark.parametrize(("name", "becomes"), [("redriven", Hidden), ("q", Deleted)])
def test_a_rejected_message_is_left_to_the_redrive_policy_or_deleted(
    world, redriven, queue, events, name, becomes
):
    (one,) = world.deliveries(redriven if name == "redriven" else queue, "a")
    one.reject(requeue=False)
    events.wait(becomes)


class TestComingBack:
    """A message comes back to the process that has it; the newest handle is the only one that counts."""

    @pytest.fixture
    def world(self, make):
        return make(heartbeat_interval=0)

    @pytest.fixture
    def taken(self, world, queue):
        """Deliveries of one message, still buffered; they are added here when they are handed over."""
        handed = []
        world.buffered(queue, "a", on_message=lambda payload: handed.append(world.delivery(payload)))
        return handed

    @pytest.fixture
    def one(self, world, queue):
        """A delivery that Celery has."""
        (one,) = world.deliveries(queue, "a")
        return one

    @pytest.fixture
    def other(self, world):
        """Another consumer of the process, of another queue."""
        other = world.new_consumer()
        other.consume(world.queue("elsewhere"), world.on_message(world.handed.append))
        return other

    def test_in_the_buffer_it_waits_on_and_is_handed_over_once(self, world, queue, taken, events):
        (back,) = world.come_back(queue)
        assert world.hand_over() == 1
        assert taken == [back]
        assert back.handle != back.tag
        assert world.delivery({"handle": back.tag}) is back, "kombu acknowledges by the first handle"
        assert events.of(Superseded) == [Superseded(back.facts)]
        assert events.of(Lost) == []
        assert world.held() == 1

    def test_it_keeps_its_turn(self, make):
        turns = Turns("strict", Options.parse({}).for_queue)
        world = make(heartbeat_interval=0, turns=turns)
        queue = world.queue("turns")
        (one,) = world.deliveries(queue, "a")
        turns.begin(one)
        (back,) = world.come_back(queue)
        assert one is back
        assert list(turns._begun[queue.name].values()) == [one]

    @pytest.mark.parametrize("whose", ["its own", "another"])
    def test_in_the_buffer_it_may_lapse_again_and_is_let_go(self, world, queue, taken, other, whose):
        world.come_back(queue, other if whose == "another" else world.consumer)
        world.clock.advance(TIMEOUT)
        world.hand_over()
        assert taken == []
        assert (world.held(), world.held(other)) == (0, 0)

    @pytest.mark.parametrize("begin", ["start", "dispatch"])
    @pytest.mark.parametrize("runs", ["before it comes back", "after it came back"])
    def test_what_celery_has_is_run_once_and_settled_with_its_newest_handle(
        self, world, queue, one, events, begin, runs
    ):
        if runs == "before it comes back":
            assert getattr(one, begin)()
        (back,) = world.come_back(queue)
        if runs == "after it came back":
            assert getattr(one, begin)()
        assert len(world.buffer) == 0
        assert back.state is (State.RUNNING if begin == "start" else State.DISPATCHED)
        assert factories.unstarted(world.consumer) == []
        assert world.held() == 1
        assert one.settle(Delete())
        events.wait(Deleted)
        assert world.entries(DELETES) == [back.handle]
        assert (world.held(), factories.left(queue)) == (0, 0)

    def test_a_second_settlement_does_nothing_whichever_delivery_is_in_hand(self, world, queue, one, events):
        one.start()
        (back,) = world.come_back(queue)
        assert one.settle(Hide(30))
        assert not one.settle(Delete())
        assert not back.settle(Delete())
        events.wait(Hidden)
        assert world.entries(CHANGES) == [(back.handle, 30)]
        assert (world.held(), factories.left(queue)) == (0, 1)
        world.come_back(queue)
        assert len(world.buffer) == 1, "it is run again, not deleted"
        assert events.of(FinishedBefore) == []

    def test_what_was_lost_is_no_longer_when_it_came_back_here(self, world, queue, one, events):
        one.start()
        world.clock.advance(TIMEOUT)
        world.beat()
        assert one.lost
        (back,) = world.come_back(queue)
        assert one is back
        assert not back.lost
        one.settle(Hide(30))
        assert events.wait(Hidden) == [Hidden(back.facts, 30)]

    def test_a_run_whose_key_is_anothers_is_told_and_ended_with_the_newest_delivery(self, make):
        world = make()
        queue = world.queue()
        (one,) = world.deliveries(queue, "a")
        one.start()
        ended = []
        one.on_lost = ended.append
        (back,) = world.come_back(queue)
        one.tell_lost()
        assert ended == [back.handle]

    def test_an_extension_of_the_old_handle_that_is_refused_then_is_no_loss(self, make, events):
        world = make()
        queue = world.queue()
        (one,) = world.deliveries(queue, "a")
        one.start()
        one.on_lost = lambda _: pytest.fail("it is held")
        came = []

        def come_back():
            world.sqs.meanwhile = lambda: None
            came.extend(world.come_back(queue))
            raise ReceiptHandleInvalidError("stale")

        world.sqs.meanwhile = come_back
        world.extend()
        assert one is came[0]
        assert events.of(Lost) == []
        assert not one.lost

    def test_a_wish_is_heard_although_its_message_comes_back(self, world, queue, one):
        one.start()
        one.extend(world.clock.monotonic() + TIMEOUT + 300)
        (back,) = world.come_back(queue)
        world.beat()
        assert world.entries(CHANGES) == [(back.handle, 300)]

    def test_what_was_finished_is_deleted_with_the_new_handle(self, world, queue, one, events):
        world.sqs.fail_next(DELETES, ReceiptHandleInvalidError("stale"))
        one.settle(Delete())
        events.wait(Lost)
        world.come_back(queue)
        assert len(events.wait(FinishedBefore)) == 1
        events.wait(Deleted)
        assert (len(world.buffer), world.held(), factories.left(queue)) == (0, 0, 0)

    def test_what_was_finished_in_an_outage_is_deleted_when_it_comes_back_however_long_that_lasted(
        self, world, queue, one, events
    ):
        world.sqs.fail_next(DELETES, ReceiptHandleInvalidError("stale"))
        one.settle(Delete())
        events.wait(Lost)
        for _ in range(2):  # meanwhile others are finished, whereupon what is over is forgotten
            world.clock.advance(5 * TIMEOUT)
            another = factories.delivery(queue, message_id="another", now=world.clock.monotonic())
            world.consumer.holder.remember(Past.FINISHED, another)
        world.come_back(queue)
        assert len(events.wait(FinishedBefore)) == 1
        events.wait(Deleted)
        assert (world.held(), factories.left(queue)) == (0, 0)

    @pytest.mark.parametrize("found", ["in the buffer", "start", "dispatch"])
    def test_it_may_come_back_at_the_moment_it_is_found_lapsed(self, world, queue, taken, found):
        if found != "in the buffer":
            world.hand_over()
        came = []
        holder = world.consumer.holder
        settle = holder.settle

        def settle_too_late(*asked):
            holder.settle = settle
            came.extend(world.come_back(queue))
            return settle(*asked)

        world.clock.advance(TIMEOUT)
        holder.settle = settle_too_late
        if found == "in the buffer":
            world.hand_over()
        (one,) = taken
        assert one.start() if found == "in the buffer" else getattr(one, found)()
        assert [one] == came == world.consumer.held()
        assert factories.unstarted(world.consumer) == []

    @pytest.mark.parametrize("settlement", [Delete(), Hide(30)])
    def test_it_may_be_settled_while_it_comes_back(self, world, queue, one, events, settlement):
        one.start()
        holder = world.consumer.holder
        receive = holder.receive

        def settle_first(deliveries):
            one.settle(settlement)
            return receive(deliveries)

        holder.receive = settle_first
        (back,) = world.come_back(queue)
        if settlement == Delete():
            events.wait(Deleted, 2)
            assert (len(world.buffer), world.held(), factories.left(queue)) == (0, 0, 0)
        else:  # it is run again
            assert len(world.buffer) == 1
            assert world.consumer.held() == [back]
            assert world.held() == 1

    def test_it_may_be_received_by_another_consumer_of_the_process(self, world, queue, one, other, events):
        one.start()
        first = one.handle
        world.consumer.close()
        world.come_back(queue, other)
        assert one.handle != first
        assert events.of(Superseded)[0].delivery.receive_count == 2
        assert (world.held(), world.held(other)) == (1, 0)
        assert world.consumer.held() == [one]
        one.settle(Delete())
        events.wait(Deleted)
        assert world.entries(DELETES) == [one.handle]
        assert (world.held(), factories.left(queue)) == (0, 0)

    def test_what_is_buffered_by_a_consumer_that_closes_is_given_back(
        self, world, queue, taken, other, events
    ):
        world.come_back(queue, other)
        (one,) = world.consumer.held()
        world.consumer.close()
        assert events.wait(Released) == [Released(one.facts)]
        assert world.entries(CHANGES) == [(one.handle, 0)]
        assert (world.held(), world.held(other), len(world.buffer)) == (0, 0, 0)


def test_who_waits_until_nothing_is_held_hears_of_the_last_end(world, queue):
    (one,) = world.deliveries(queue, "a")
    heard = []

    def wait():
        heard.append(world.consumer.wait_until_empty(10 * SOON))

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    wait_until(lambda: world.pump.waiting, SOON, "the other thread to wait")
    one.settle(Lapse())
    waiter.join(SOON)
    assert heard == [True]


def test_a_poll_that_waits_has_the_place_of_what_is_settled(world, queue):
    (one,) = world.deliveries(queue, "a")
    world.consumer.set_prefetch_count(1)
    waiter = Waiter("other", False, lambda: None)
    with world.pump.lock:
        world.consumer.capacity.add_waiter(waiter, world.clock.monotonic())
    assert waiter.reservation is None
    one.settle(Lapse())
    assert waiter.reservation is not None


def test_what_arrives_has_the_pump_look_at_extensions_in_time(world, queue):
    world.deliveries(queue, "a")
    holder = world.consumer.holder
    assert holder._heartbeat.lane.next_due == holder.next_extension() < float("inf")


def test_copies_are_sent_of_a_message_once(world, queue, events):
    (one,) = world.deliveries(queue, "a")
    assert one.settle(factories.split([OutgoingMessage("b")]))
    assert not one.settle(factories.split([OutgoingMessage("b")]))
    events.wait(Deleted)
    assert world.visible(queue) == ["b"]


def test_the_end_of_a_run_that_never_began_frees_nothing(world, queue):
    (one,) = world.deliveries(queue, "a")
    world.consumer.holder.run_ended(one)
    assert world.held() == 1


def test_a_message_of_which_no_copy_can_be_made_has_no_renewal(world, queue):
    (one,) = world.deliveries(queue, "a")
    eta = world.clock.wall() + 3600
    assert world.consumer.holder.parking.renewal(one, eta, lambda _: None, Hide(9)) is None


@pytest.mark.parametrize(("otherwise", "why"), [(Hide(9, Why.KEY), Why.KEY), (Hold({}), Why.RATE)])
def test_a_copy_knows_what_it_waits_for(world, queue, otherwise, why):
    (one,) = world.deliveries(queue, "a")
    eta = world.clock.wall() + 3600
    renewal = world.consumer.holder.parking.renewal(one, eta, lambda _: ("a", {}), otherwise)
    assert renewal.why is why


def newer(delivery):
    """Its message, received once more."""
    facts = replace(delivery.facts, receive_count=delivery.facts.receive_count + 1)
    return replace(delivery, handle=f"{delivery.handle} again", facts=facts)


@pytest.mark.parametrize(
    ("settlement", "arrival"),
    [(Delete(), Arrival.FINISHED), (Hide(9), Arrival.NEW)],
    ids=["sent", "not sent"],
)
def test_what_comes_back_when_its_copies_are_sent_is_finished_and_else_is_not(
    world, queue, settlement, arrival
):
    (one,) = world.deliveries(queue, "a")
    holder = world.consumer.holder
    assert holder._held.claim(one, 0.0)
    assert holder.settle_copied(one, settlement)
    assert not holder.settle_copied(one, settlement)
    again = newer(one)
    assert holder.receive([again]) == [(arrival, again)]
    again.settle(Lapse())


def test_a_message_that_comes_back_while_its_copies_are_sent_is_deleted_under_its_newest_receipt(
    world, queue, events
):
    (one,) = world.deliveries(queue, "a")
    holder, older = world.consumer.holder, one.handle
    assert holder._held.claim(one, 0.0)
    world.come_back(queue, early=True)
    assert one.handle != older
    holder._copied(Sending(one, factories.renewal(), next=1, sent=1, message_id="copy"))
    events.wait(Deleted)
    assert world.entries(DELETES) == [one.handle]
    assert world.held() == 0


def test_a_task_extends_its_message_under_the_newest_receipt(world, queue):
    (one,) = world.deliveries(queue, "a")
    again = newer(one)
    assert world.consumer.holder.receive([again]) == [(Arrival.HELD, one)]
    one.extend(one.deadline + 100)
    world.beat()
    assert [handle for handle, _ in world.entries(CHANGES)] == [again.handle]


def test_what_lapsed_before_it_arrived_does_not_take_the_place_of_a_newer_delivery(world, queue, events):
    """The process was stopped during two polls, and decodes last the answer that came first."""
    (one,) = world.deliveries(queue, "a")
    late = replace(one, handle="older", deadline=world.clock.monotonic())  # `one` lapses later
    assert world.consumer.holder.receive([late]) == [(Arrival.OUTDATED, one)]
    assert world.consumer.held() == [one]
    assert world.held() == 1
    one.settle(Delete())
    events.wait(Deleted)
    assert events.of((Lost, Superseded)) == []
    assert factories.left(queue) == 0


def test_what_lapsed_before_it_arrived_takes_the_place_of_what_had_lapsed_before(make):
    """The process was stopped, and SQS has delivered the message to it once more meanwhile."""
    world = make(heartbeat_interval=0)
    queue = world.queue()
    (one,) = world.deliveries(queue, "a")
    world.clock.advance(TIMEOUT + 1)
    (message,) = world.sqs.receive(queue.url, 10, 0, factories.EVERYTHING)
    newest = replace(one, handle=message["ReceiptHandle"], deadline=world.clock.monotonic() + TIMEOUT)
    world.clock.advance(TIMEOUT + 1)
    assert world.consumer.holder.receive([newest]) == [(Arrival.HELD, one)]
    assert (one.handle, one.lost) == (newest.handle, False)


@pytest.mark.parametrize("act", ["start", "dispatch"])
def test_a_run_that_does_not_begin_takes_no_lease(make, leases, act):
    world = make()
    world.consumer.holder.give_leases(leases)
    one, lost = world.deliveries(world.queue(), "a", "b")
    assert getattr(one, act)()
    lost.settle(Delete())
    assert (getattr(lost, act)(), lost.lease) == (False, None)
    assert list(leases._taken) == [one.lease.key]

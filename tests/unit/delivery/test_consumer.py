"""A queue is consumed until it is cancelled or the consumer closes; what does not run is given back."""

import select

import pytest
from support import factories
from support.clock import FakeClock
from support.factories import DELETES, TIMEOUT, CrowdedSQS, requests
from support.processes import SOON, wait_until

from celery_sqs_visibility.aws.redrive import REDRIVE_SECONDS
from celery_sqs_visibility.core.settlements import RELEASE, Delete, Hide, Lapse
from celery_sqs_visibility.core.turns import Turns
from celery_sqs_visibility.events import Deleted, Hidden, HorizonNear, Released
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.prefetch import Slots
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON_SECONDS
from celery_sqs_visibility.policy.run_limits import NEAR_HORIZON_SECONDS


def test_a_cancelled_queue_gives_back_what_is_buffered(world, queue, events):
    other = world.queue("other")
    for each, body in ((queue, "a"), (other, "b")):
        loop = world.buffer.fileno()
        world.consume(each, body)
        assert select.select([loop], [], [], SOON)[0]
        world.buffer.woken()
    world.consumer.cancel("q")
    assert events.wait(Released)[0].delivery.queue == "q"
    assert world.hand_over() == 1
    assert world.bodies() == ["b"]


def test_an_abandoned_queue_costs_no_request_and_others_keep_what_they_hold(world, queue, events):
    (one,) = world.deliveries(queue, "a")
    (kept,) = world.deliveries(world.queue("other"), "b")[1:]
    world.consumer.cancel("q")
    world.consumer.abandon("q")
    assert world.consumer.held() == [kept]
    kept.settle(Lapse())
    assert [event.delivery for event in events.of(Hidden)] == [one.facts, kept.facts]
    world.come_back(queue)
    assert world.held() == 0
    assert world.entries(factories.CHANGES) == world.entries(DELETES) == []


def test_what_is_given_back_while_it_is_handed_over_is_not_run(world, queue, events):
    handed = []

    def on_message(payload):
        world.consumer.stop_polling()
        world.consumer.give_back_unstarted()
        handed.append(world.delivery(payload))

    world.buffered(queue, "a", on_message=on_message)
    world.hand_over()
    assert events.wait(Released) == [Released(handed[0].facts)]
    assert not handed[0].start()
    assert not handed[0].settle(Delete())


def test_what_arrived_before_the_polls_were_stopped_is_not_handed_over(world, queue, events):
    world.buffered(queue, "a")
    world.consumer.stop_polling()
    world.hand_over()
    assert world.handed == []
    world.consumer.close()
    assert len(events.of(Released)) == 1
    assert world.visible(queue) == ["a"]


def test_closing_gives_back_what_did_not_start_and_keeps_what_runs(world, queue, events):
    runs, waits, dispatched = world.deliveries(queue, "a", "b", "c")
    assert runs.start()
    assert dispatched.dispatch()
    world.consumer.close()
    assert events.of(Released) == [Released(waits.facts)]
    assert world.visible(queue) == ["b"]
    assert world.consumer.held() == [runs, dispatched]
    world.extend()
    assert not runs.lost
    assert dispatched.start()
    for one in (runs, dispatched):
        assert one.settle(Delete())
    events.wait(Deleted, 2)


def test_a_settlement_that_waits_for_an_extension_survives_the_closing(world, queue, events):
    world.deliveries(queue, "a")

    def close():
        world.sqs.meanwhile = lambda: None
        world.consumer.end_by(world.clock.monotonic(), world.clock.monotonic())
        world.consumer.close()
        for thread in list(world.pump._threads):
            thread.join(0.1)  # those that end have ended

    world.sqs.meanwhile = close
    world.extend()
    events.wait(Released)
    assert world.visible(queue) == ["a"]


def test_what_a_poll_brings_after_the_closing_is_given_back_and_leaves_no_thread(world, queue, events):
    world.deliveries(queue, "a")
    world.consumer.close()
    world.come_back(queue)
    events.wait(Released, 2)
    settlers = world.pump._threads
    for thread in list(settlers):
        thread.join(SOON)
    assert settlers == set()
    assert (world.held(), len(world.buffer)) == (0, 0)


def test_it_can_be_closed_before_anything_and_twice_and_used_again(world, queue, events):
    world.consumer.cancel("nothing")
    world.consumer.close()
    world.consumer.close()
    world.deliveries(queue, "a")
    world.consumer.close()
    world.handed.clear()
    (again,) = world.deliveries(queue)
    again.settle(RELEASE)
    events.wait(Released, 2)


def test_what_runs_for_almost_12_hours_is_warned_of_by_the_supervisors_checks(world, queue, events):
    (one,) = world.deliveries(queue, "a")
    one.start()
    world.clock.advance(VISIBILITY_HORIZON_SECONDS - NEAR_HORIZON_SECONDS)
    for supervised in world.consumer._supervised():
        supervised.replace_stuck(world.clock.monotonic())
    (near,) = events.of(HorizonNear)
    assert near.delivery.message_id == one.facts.message_id
    assert NEAR_HORIZON_SECONDS - 5 < near.seconds < NEAR_HORIZON_SECONDS


def test_each_queue_is_received_extended_and_hidden_by_its_own_options(make):
    world = make(queues={"slow": {"visibility_timeout": 600}, "s*": {"error_visibility_timeout": 7}})
    queues = {name: world.queue(name) for name in ("slow", "short", "q")}
    for queue in queues.values():
        world.buffered(queue, queue.name)
        world.hand_over()
    held = {payload["body"]: world.delivery(payload) for payload in world.handed}

    def left():
        return [round(held[name].deadline - world.clock.monotonic()) for name in queues]

    assert left() == [600, TIMEOUT, TIMEOUT]
    world.extend()
    assert left() == [600 - TIMEOUT * 2 / 3, TIMEOUT, TIMEOUT]
    assert [held[name].after_an_error() for name in queues] == [Lapse(), Hide(7), Lapse()]


@pytest.mark.parametrize("acknowledged", ["late", "early", "given back"])
def test_a_slot_is_taken_from_when_celery_gets_a_message_until_its_run_ends(make, acknowledged):
    queues = {"high": {}, "low": {}}
    turns = Turns("strict", Options.parse({"queues": queues}).for_queue)
    world = make(queues=queues, slots=lambda: Slots(1, 10), turns=turns)
    world.consume(world.queue("low"), "a")
    assert world.buffer.wait(SOON)
    assert world.hand_over() == 1
    world.consume(world.queue("high"), "b")
    wait_until(lambda: len(world.buffer), SOON, "a message of the queue that overtakes")
    assert world.hand_over() == 0
    delivery = world.delivery(world.handed[0])
    if acknowledged != "given back":
        delivery.acknowledged_early = acknowledged == "early"
        assert delivery.start()
    assert delivery.settle(RELEASE if acknowledged == "given back" else Delete())
    if acknowledged == "early":
        assert world.hand_over() == 0
        delivery.run_ended()
    assert world.hand_over() == 1
    assert world.bodies() == ["a", "b"]


def test_what_a_buffer_takes_in_part_lapses_and_is_not_run(world, queue, events):
    put = world.buffer.put

    def put_and_fail(arrived):
        put(arrived)
        raise MemoryError

    world.buffer.put = put_and_fail
    world.consume(queue, "a", "b")
    events.wait(Hidden, 2)
    assert world.hand_over() == world.held() == 0
    assert world.entries(factories.CHANGES) == []


def test_a_worker_whose_queue_nears_its_quota_in_flight_says_so_with_what_it_hides(make, caplog):
    world = make(sqs=CrowdedSQS(FakeClock()))
    queue = world.queue()
    failed, _ = world.deliveries(queue, "a", "b")
    failed.settle(Hide(3600))
    world.sqs.in_flight = 119_500
    wait_until(
        lambda: world.consumer.polling_facts(world.clock.monotonic())[0].hidden,
        SOON,
        "the message to be expected",
    )
    world.clock.advance(REDRIVE_SECONDS)
    before = len(requests(world.sqs, "GetQueueAttributes"))
    for _ in range(3):
        world.consumer._after_poll(queue, world.clock.monotonic())  # polls that bring nothing
    (line,) = [record.getMessage() for record in caplog.records if "in flight" in record.getMessage()]
    assert "queue 'q' has 119502 messages in flight: beyond about 120000 SQS hands out none" in line
    assert "This worker holds 1 of them, and has hidden 1 or more" in line
    assert len(requests(world.sqs, "GetQueueAttributes")) == before + 1


@pytest.mark.parametrize("ends", ["the worker", "the queue's consumer"])
def test_what_is_buffered_as_polling_ends_is_given_back_once_by_who_ends(world, queue, ends):
    world.buffered(queue, "a", "b")
    if ends == "the worker":
        world.consumer.stop_polling()
        assert len(world.buffer) == 2
        assert len(world.consumer.give_back_unstarted()) == 2
    else:
        world.consumer.cancel(queue.name)
        assert world.consumer.give_back_unstarted() == []
    assert len(world.buffer) == 0
    world.consumer.holder.settler.flush(SOON)
    assert sorted(world.visible(queue)) == ["a", "b"]

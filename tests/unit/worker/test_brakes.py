"""Messages whose brake is on wait: a few in the worker, to be tried, and the others as copies."""

import itertools
import math
from types import SimpleNamespace

import pytest
from celery.worker import state
from kombu.common import QoS
from support.clock import FakeClock
from support.factories import delivery, sqs_queue

from celery_sqs_visibility.core.delivery import State, Wait
from celery_sqs_visibility.core.settlements import Why
from celery_sqs_visibility.delivery.pump import Pump
from celery_sqs_visibility.delivery.receive.pauses import Pauses
from celery_sqs_visibility.events import BrakeChanged, Deleted, Received, emit, subscribe
from celery_sqs_visibility.policy.brake import AWAITED_SECONDS, LEAST_FAILURES, MIN_PAUSE_SECONDS, Stage
from celery_sqs_visibility.policy.eta import LEAD_SECONDS
from celery_sqs_visibility.policy.prefetch import Slots
from celery_sqs_visibility.worker.brakes import LOOK_SECONDS, MIN_HELD, POLL_SECONDS, REST_SECONDS, Brakes
from celery_sqs_visibility.worker.waiting_requests import WaitingRequests

IDS = map(str, itertools.count())


class Asked:
    """A request of a task with a brake, whose message is held."""

    brake_name, name = "bank", "pay"
    brake_start = None

    def __init__(self, world, retries=0, queue="q", *, may_copy=True, **attributes):
        self.id, self.may_copy = next(IDS), may_copy
        self.request_dict = {"retries": retries}
        vars(self).update(attributes)
        self.delivery = delivery(sqs_queue(queue), handle=self.id, message_id=self.id, task=self.name)
        self.delivery.consumer = world
        self.put_off_for = None
        state.reserved_requests.add(self)

    def begin(self, start):
        self.brake_start = start

    def put_off(self, seconds, why):
        assert why is Why.BRAKE
        if self.may_copy:
            self.put_off_for = seconds
            self.delivery.state = State.SETTLED
        return self.may_copy


SLOTS = 4


class World:
    """A worker's consumer with its timer, the consumer of its deliveries, and what it receives."""

    def __init__(self, slots):
        self.clock = FakeClock()
        self.timers, self.waits, self.resumed, self.applied, self.noticed = [], [], [], [], []
        self.qos = QoS(print, slots)
        consumer = SimpleNamespace(
            qos=self.qos,
            timer=SimpleNamespace(call_after=lambda *entry, **_: self.timers.append(entry)),
            apply_eta_task=self.apply,
        )
        self.receiving = SimpleNamespace(
            slots=lambda: Slots(slots, slots), pauses=Pauses(self.clock), notice_pause=self.noticed.append
        )
        context = SimpleNamespace(receiving=self.receiving, pump=Pump(self.clock))
        self.others_listen = Received.is_wanted()
        self.brakes = Brakes(WaitingRequests(consumer), context, None)

    def apply(self, request):
        """What Celery does: the pool asks again."""
        self.qos.decrement_eventually()
        self.applied.append(request)
        assert not self.brakes.wait(request)

    def resume(self, delivery):
        self.resumed.append(delivery)

    def rest(self, _delivery, wait):
        self.waits.append(wait)

    def look(self, seconds=LOOK_SECONDS):
        """Let the time pass, and the timer go off. Returns what was handed over."""
        self.clock.advance(seconds)
        timers, self.timers, self.applied = self.timers, [], []
        for _seconds, act, args in timers:
            act(*args)
        return self.applied

    def run(self, request, *, failed, error=""):
        self.brakes.end(request.brake_name, request.brake_start, failed, error)
        request.delivery.state = State.SETTLED

    def fail(self, **attributes):
        """Apply the brake."""
        for _ in range(LEAST_FAILURES):
            request = Asked(self, **attributes)
            assert not self.brakes.wait(request)
            self.run(request, failed=True, error="Down()")

    def waiting(self, count=1, **options):
        requests = [Asked(self, **options) for _ in range(count)]
        for each in requests:
            assert self.brakes.wait(each)
        return requests

    def listens(self):
        return Received.is_wanted() and not self.others_listen

    def receive(self, task, queue="q"):
        """As the decoder tells, if anybody wants to know."""
        assert Received.is_wanted()
        emit(Received(delivery(sqs_queue(queue), task=task).facts))

    def let_rest(self, queue="q"):
        """The queue brings more than is held, and nothing else. Returns the last request."""
        self.waiting(MIN_HELD + 1, queue=queue)
        self.clock.advance(POLL_SECONDS)
        (last,) = self.waiting(queue=queue)
        return last

    def rests(self, queue="q"):
        return self.receiving.pauses.polls_from(queue) - self.clock.monotonic()


@pytest.fixture
def make_world():
    """`make_world(slots)`: one whose brakes listen no more after the test."""
    made = []

    def make(slots=SLOTS):
        made.append(World(slots))
        return made[-1]

    yield make
    for each in made:
        each.brakes.close()


@pytest.fixture
def world(make_world):
    return make_world()


def test_while_it_is_off_all_run_and_nothing_is_kept(world):
    for _ in range(20):
        request = Asked(world)
        assert not world.brakes.wait(request)
        world.run(request, failed=False)
    assert not world.timers
    assert [each.stage for each in world.brakes.facts()] == ["off"]
    assert world.brakes.fleet is None
    assert not world.listens(), "events that nobody needs are not made"


def test_what_waits_is_held_without_a_slot_and_is_celerys_no_more(world):
    world.fail()
    (request,) = world.waiting()
    assert (world.waits, world.qos.value) == ([Wait.START], 5)
    assert request not in state.reserved_requests
    assert request.put_off_for is None
    assert [seconds for seconds, *_ in world.timers] == [LOOK_SECONDS]


def test_a_message_that_was_given_back_does_not_wait(world):
    world.fail()
    request = Asked(world)
    request.delivery.state = State.SETTLED
    assert not world.brakes.wait(request), "the pool refuses it"
    request.delivery = None
    assert not world.brakes.wait(request)


def test_the_one_with_the_fewest_attempts_is_tried_after_the_pause(world):
    world.fail()
    waiting = [Asked(world, retries) for retries in (1, None, 2)]
    for each in waiting:
        assert world.brakes.wait(each)
    assert world.look() == []
    assert world.look(MIN_PAUSE_SECONDS) == [waiting[1]]
    assert waiting[1].brake_start.forgiven
    assert world.look(MIN_PAUSE_SECONDS) == []
    assert len(world.timers) == 1


def test_what_arrives_when_a_try_is_due_goes_behind_those_that_wait(world):
    world.fail()
    (first,) = world.waiting()
    world.clock.advance(MIN_PAUSE_SECONDS)
    (second,) = world.waiting()
    assert world.look() == [first]
    world.run(first, failed=True)
    assert world.look(MIN_PAUSE_SECONDS) == [second]
    world.run(second, failed=True)
    world.clock.advance(60)
    third = Asked(world)
    assert not world.brakes.wait(third), "nothing waits"
    assert third.brake_start.forgiven


def test_what_was_chosen_but_has_not_begun_waits_again_if_the_stage_is_another_by_then(world):
    world.fail()
    first, second = world.waiting(2)
    world.brakes.connected()
    world.clock.advance(MIN_PAUSE_SECONDS)
    assert not world.brakes.wait(first)
    assert not world.brakes.wait(first), "as when it gets a slot later"
    world.run(first, failed=False)
    assert not world.brakes.wait(second)
    world.brakes.line("bank").brake.apply(world.clock.monotonic())
    assert world.brakes.wait(second)


def test_after_successes_more_and_more_go_on_and_the_order_is_kept(world):
    world.fail()
    waiting = world.waiting(12)
    gone = []
    handed = world.look(MIN_PAUSE_SECONDS)
    while handed:
        gone.append(len(handed))
        for each in handed:
            world.run(each, failed=False)
        handed = world.look()
    assert gone == [1, 2, 4, 5], "it is off then"
    assert not world.timers, "nothing waits"
    assert not any(each.delivery.held for each in waiting)


def test_a_message_that_is_settled_meanwhile_is_forgotten(world):
    world.fail()
    given_back, kept = world.waiting(2)
    given_back.delivery.state = State.SETTLED
    assert world.look(MIN_PAUSE_SECONDS) == [kept]
    assert world.resumed == [kept.delivery]
    assert world.qos.value == SLOTS, "as before they waited"


def test_as_many_as_the_pool_runs_twice_are_held_and_the_others_wait_as_copies(make_world):
    world = make_world(slots=15)
    world.fail()
    held = world.waiting(30, queue="mixed")
    assert {each.put_off_for for each in held} == {None}
    world.receive("other", "mixed")
    (copied,) = world.waiting(queue="mixed")
    assert copied.put_off_for == LEAD_SECONDS + MIN_PAUSE_SECONDS
    assert copied not in state.reserved_requests
    world.clock.advance(40)
    world.receive("other", "mixed")
    (later,) = world.waiting(queue="mixed")
    assert later.put_off_for == LEAD_SECONDS + 10, "the pause by then"


def test_what_cannot_be_a_copy_keeps_its_capacity(world):
    world.fail()
    world.waiting(MIN_HELD + 1, may_copy=False)
    assert world.waits == [Wait.START] * MIN_HELD + [Wait.FAR_START]


def test_a_queue_that_brings_nothing_else_rests(world):
    world.fail()
    world.waiting(MIN_HELD)
    world.clock.advance(POLL_SECONDS)
    (more,) = world.waiting()
    assert world.rests() <= 0, "it may bring others"
    assert more.put_off_for > LEAD_SECONDS
    world.clock.advance(POLL_SECONDS)
    (more,) = world.waiting()
    assert (world.rests(), world.noticed) == (REST_SECONDS, ["q"])
    assert more.put_off_for == 0, "it comes no sooner anyway"
    world.clock.advance(1)
    world.waiting()
    assert world.noticed == ["q"]
    world.clock.advance(REST_SECONDS)
    (more,) = world.waiting()
    assert world.rests() < 0, "it is polled for a while"
    assert more.put_off_for > LEAD_SECONDS
    world.clock.advance(POLL_SECONDS)
    world.waiting()
    assert world.rests() == REST_SECONDS


def test_what_came_before_anything_waits_says_nothing(world):
    end = subscribe(print, Received)  # as an event log does
    world.receive("pay")
    end()
    world.fail()
    world.let_rest()
    assert world.rests() == REST_SECONDS


def test_a_queue_with_other_tasks_is_polled_on(world):
    world.fail()
    world.waiting(1)
    world.receive("other")
    world.let_rest()
    assert world.rests() == -math.inf
    world.clock.advance(REST_SECONDS - POLL_SECONDS)
    world.waiting()
    assert "q" not in world.receiving.pauses.rests
    world.clock.advance(0.1)
    world.waiting()
    assert world.rests() <= 0
    world.clock.advance(POLL_SECONDS)
    world.waiting()
    assert world.rests() == REST_SECONDS, "it has brought none for as long as it rests"
    world.receive("pay")
    world.look()
    assert world.rests() > 0
    world.receive("other", "another-queue")
    emit(Deleted(delivery(sqs_queue("q"), task="other").facts))
    world.look()
    assert world.rests() > 0
    world.receive("other")
    world.look()
    assert world.rests() == -math.inf
    assert world.noticed == ["q", "q"]


def test_it_is_polled_again_as_soon_as_a_try_succeeds(world):
    world.fail()
    world.let_rest()
    (tried,) = world.look(MIN_PAUSE_SECONDS)
    assert world.rests() > 0
    world.run(tried, failed=False)
    world.look()
    assert world.rests() == -math.inf


def test_what_waited_for_a_lost_connection_is_forgotten(world):
    world.fail()
    world.let_rest()
    assert world.rests() > 0
    world.brakes.connected()
    assert world.rests() == -math.inf
    assert world.brakes.facts()[0].waiting == 0
    world.timers.clear()
    assert not world.brakes.wait(Asked(world)), "a try is due"
    world.waiting()
    assert len(world.timers) == 1


def test_tasks_share_a_brake_by_its_name_and_others_have_their_own(world):
    world.fail()
    world.waiting(name="refund")
    assert not world.brakes.wait(Asked(world, brake_name="another"))
    assert [each.brake for each in world.brakes.facts()] == ["bank", "another"]


def test_each_change_is_told(world, caplog):
    caplog.set_level("INFO")
    told = []
    end = subscribe(told.append, BrakeChanged)
    try:
        world.fail()
        world.waiting(12)
        while world.brakes.line("bank").brake.stage is not Stage.OFF:
            for each in world.look(MIN_PAUSE_SECONDS):
                world.run(each, failed=False)
    finally:
        end()
    assert [(each.brake, each.stage, each.seconds, each.tries) for each in told] == [
        ("bank", "on", 0, 0),
        ("bank", "easing", MIN_PAUSE_SECONDS, 1),
        ("bank", "off", 0, 1),
    ]
    assert f"brake 'bank' is easing, after {MIN_PAUSE_SECONDS} s; tries: 1" in caplog.text
    assert "brake 'bank' is released" in caplog.text
    assert told[0].error == "Down()"
    (warned,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert "brake 'bank' is applied" in warned.getMessage()
    assert "Down()" in warned.getMessage()


def test_facts(world):
    world.fail()
    world.waiting(3)
    world.clock.advance(5)
    (facts,) = world.brakes.facts()
    assert (facts.brake, facts.stage, facts.seconds, facts.waiting) == ("bank", "on", 5.0, 3)
    assert (facts.error, facts.tasks) == ("Down()", ("pay",))
    assert world.receiving.brakes == world.brakes.facts


def test_a_brake_that_eases_is_released_when_it_is_looked_at_after_a_quiet_minute(world, caplog):
    caplog.set_level("INFO")
    world.fail()
    world.waiting()
    (tried,) = world.look(MIN_PAUSE_SECONDS)
    world.run(tried, failed=False)
    world.clock.advance(AWAITED_SECONDS - 1)
    assert [each.stage for each in world.brakes.facts()] == ["easing"]
    world.clock.advance(1)
    assert [each.stage for each in world.brakes.facts()] == ["off"]
    assert caplog.text.count("brake 'bank' is released") == 1


class FakeFleet:
    def __init__(self):
        self.asked = []

    def ask(self, name, now, *, changed):
        self.asked.append((name, now, changed))

    def close(self):
        self.closed = True


def test_the_fleet_is_asked_after_failures_and_changes(world):
    world.brakes.fleet = fleet = FakeFleet()
    now = world.clock.monotonic()
    request = Asked(world)
    assert not world.brakes.wait(request)
    world.run(request, failed=False)
    assert fleet.asked == []
    world.fail()
    assert fleet.asked == [("bank", now, False)] * (LEAST_FAILURES - 1) + [("bank", now, True)]
    world.waiting()
    (tried,) = world.look(MIN_PAUSE_SECONDS)
    world.run(tried, failed=False)
    assert fleet.asked[-1] == ("bank", now + MIN_PAUSE_SECONDS, True)


def test_once_the_worker_ends_they_listen_no_more_and_leave_the_fleet(world):
    world.brakes.fleet = fleet = FakeFleet()
    world.fail()
    world.waiting()
    assert Received.is_wanted()
    world.brakes.close()
    assert not world.listens()
    assert fleet.closed


def test_while_it_eases_nothing_is_copied_and_what_is_held_beyond_takes_capacity(world):
    world.fail()
    world.waiting(MIN_HELD)
    (tried,) = world.look(MIN_PAUSE_SECONDS)
    world.run(tried, failed=False)
    requests = world.waiting(3)
    assert {each.put_off_for for each in requests} == {None}
    assert world.waits[MIN_HELD:] == [Wait.START, Wait.FAR_START, Wait.FAR_START]


def test_a_pool_whose_slots_are_not_known_is_a_small_one(world):
    world.receiving.slots = None
    world.fail()
    held = world.waiting(MIN_HELD)
    (copied,) = world.waiting()
    assert {each.put_off_for for each in held} == {None}
    assert copied.put_off_for is not None


def test_a_copy_is_held_no_more(world):
    world.fail()
    world.waiting(MIN_HELD + 1)
    assert len(world.waits) == world.brakes.facts()[0].waiting == MIN_HELD


def test_an_error_of_another_worker_is_told_as_such(world, caplog):
    brake = world.brakes.line("bank").brake
    brake.apply(world.clock.monotonic())
    world.clock.advance(2.26)
    world.brakes.tell("bank", Stage.OFF)
    assert "the latest with another worker's error" in caplog.text
    (facts,) = world.brakes.facts()
    assert (facts.seconds, facts.error) == (2.3, "")


def test_a_look_that_fails_is_followed_by_another(world):
    world.fail()
    first, second = world.waiting(2)
    first.begin = None
    with pytest.raises(TypeError):
        world.look(MIN_PAUSE_SECONDS)
    assert world.look(AWAITED_SECONDS) == [second]

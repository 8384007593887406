"""Workers that share a store brake together, one of them tries, and all go on when it succeeds."""

from collections import defaultdict

import pytest
from support.clock import FakeClock

from celery_sqs_visibility.delivery.inline import InlinePump
from celery_sqs_visibility.errors import StoreUnavailableError
from celery_sqs_visibility.policy.brake import MIN_PAUSE_SECONDS, Brake, Stage
from celery_sqs_visibility.stores.memory import MemoryStore
from celery_sqs_visibility.stores.port import Acquired
from celery_sqs_visibility.worker.brakes_of_fleet import ASK_SECONDS, LEASE_SECONDS, BrakesOfFleet


class Store(MemoryStore):
    """Counts requests, and answers none while the test says so."""

    silent = False

    def __init__(self, clock):
        super().__init__(clock)
        self.asked = 0

    def acquire(self, *args, **options):
        self.asked += 1
        if self.silent:
            raise StoreUnavailableError("it is down")
        return super().acquire(*args, **options)


class Worker:
    """Its brakes, and how it asks about them."""

    def __init__(self, store, clock):
        self.clock, self.told = clock, []
        self.brakes = defaultdict(Brake)
        self.pump = InlinePump(clock)
        self.fleet = BrakesOfFleet(store, self.pump, self.brakes.__getitem__, self.tell, clock)

    def tell(self, name, before):
        self.told.append((name, before))

    @property
    def brake(self):
        return self.brakes["bank"]

    def end(self, failed, name="bank"):
        """A run ends, if one may begin, and the worker asks. Returns whether one might."""
        brake, now = self.brakes[name], self.clock.monotonic()
        before, start = brake.stage, brake.start(now)
        if start is None:
            return False
        brake.end(start, failed, now)
        with self.fleet.lane.lock:
            if failed or brake.stage is not before:
                self.fleet.ask(name, now, changed=brake.stage is not before)
        self.ask()
        return True

    def ask(self):
        self.pump.work_off()

    def fail(self, name="bank"):
        while self.brakes[name].stage is Stage.OFF:
            self.end(failed=True, name=name)


class World:
    def __init__(self):
        self.clock = FakeClock()
        self.store = Store(self.clock)
        self.one, self.two, self.three = (Worker(self.store, self.clock) for _ in range(3))

    def wait(self, seconds=ASK_SECONDS):
        self.clock.advance(seconds)
        for each in (self.one, self.two, self.three):
            each.ask()

    @property
    def stages(self):
        return [each.brake.stage for each in (self.one, self.two, self.three)]


@pytest.fixture
def world():
    return World()


def test_while_nothing_fails_nobody_asks(world):
    for _ in range(100):
        world.one.end(failed=False)
    world.wait(3600)
    assert world.store.asked == 0


def test_the_first_failure_finds_that_another_worker_brakes(world):
    world.one.fail()
    assert world.one.brake.may_try
    world.two.end(failed=True)
    assert (world.stages[1], world.two.brake.may_try) == (Stage.ON, False)
    assert world.two.told == [("bank", Stage.OFF)]
    world.wait(60)
    assert world.one.end(failed=True)
    assert not world.two.end(failed=True)


def test_a_failure_alone_keeps_no_key_and_another_is_asked_about_two_seconds_later(world):
    world.one.end(failed=True)
    world.one.end(failed=True)
    assert world.store.asked == 1
    world.two.end(failed=True)
    assert world.stages == [Stage.OFF] * 3
    world.wait()
    assert world.store.asked == 3


def test_all_go_on_when_a_try_succeeds(world, caplog):
    world.one.fail()
    world.two.end(failed=True)
    world.three.end(failed=True)
    world.wait()
    assert world.one.end(failed=False)
    world.wait()
    assert world.stages == [Stage.EASING] * 3
    assert world.two.brake.began == world.clock.monotonic()
    assert world.two.brake.tries == world.three.brake.tries == 0
    assert not caplog.records, "nothing is unexpected"
    asked = world.store.asked
    world.wait(60)
    assert world.store.asked == asked


def test_what_was_eased_before_does_not_ease_a_later_brake(world):
    world.one.fail()
    world.wait()
    world.one.end(failed=False)
    world.wait()
    world.two.fail()
    world.wait()
    assert (world.stages[1], world.two.brake.may_try) == (Stage.ON, True)
    while world.one.brake.stage is Stage.EASING:
        world.one.end(failed=True)
        world.wait()
    assert not world.one.brake.may_try
    world.wait(120)
    assert world.stages[:2] == [Stage.ON] * 2


def test_one_that_applies_it_again_tries_again(world):
    world.one.fail()
    world.two.end(failed=True)
    world.wait()
    world.one.end(failed=False)
    world.clock.advance(0.5)
    while world.one.brake.stage is Stage.EASING:
        world.one.end(failed=True)
    world.wait()
    assert world.one.brake.may_try
    assert world.stages[0] is Stage.ON


def test_if_the_worker_that_tries_is_gone_another_one_tries(world):
    world.one.fail()
    world.two.end(failed=True)
    world.clock.advance(LEASE_SECONDS - 1)
    world.two.ask()
    assert not world.two.brake.may_try
    world.clock.advance(ASK_SECONDS)
    world.two.ask()
    assert world.two.brake.may_try
    world.three.end(failed=True)
    assert not world.three.brake.may_try


def test_a_worker_that_ends_leaves_the_try_to_another_one_at_once(world):
    world.one.fail()
    world.two.end(failed=True)
    world.one.fleet.close()
    assert world.one.fleet.lane.stopping
    world.one.ask()
    assert isinstance(world.store.acquire("brake:bank", "test", 0.1), Acquired)
    world.wait()
    assert (world.two.brake.may_try, world.stages[1]) == (True, Stage.ON)
    asked = world.store.asked
    world.clock.advance(LEASE_SECONDS)
    world.one.ask()
    assert world.store.asked == asked, "it asks no more"


def test_a_try_that_succeeds_while_its_worker_ends_eases_the_others(world):
    world.one.fail()
    world.two.end(failed=True)
    world.clock.advance(MIN_PAUSE_SECONDS)
    start = world.one.brake.start(world.clock.monotonic())
    world.one.fleet.close()
    world.one.ask()
    world.one.brake.end(start, False, world.clock.monotonic())
    with world.one.fleet.lane.lock:
        world.one.fleet.ask("bank", world.clock.monotonic(), changed=True)
    world.one.ask()
    world.wait()
    assert world.stages[:2] == [Stage.EASING] * 2


def test_a_worker_that_ends_has_nothing_to_release_if_it_has_not_asked(world):
    world.one.fleet.close()
    world.one.ask()
    assert world.store.asked == 0


def test_while_the_store_is_silent_each_brakes_alone(world):
    world.one.fail()
    world.two.end(failed=True)
    world.store.silent = True
    world.wait()
    assert world.two.brake.may_try
    assert world.stages[:2] == [Stage.ON] * 2
    world.three.fail()
    assert (world.stages[2], world.three.brake.may_try) == (Stage.ON, True)
    world.wait(60)
    assert world.one.end(failed=False)
    world.store.silent = False
    world.wait()
    assert not (world.two.brake.may_try and world.three.brake.may_try)


def test_each_brake_has_a_key_of_its_own(world):
    world.one.fail("mail")
    world.two.end(failed=True)
    assert [world.two.brakes[name].stage for name in ("bank", "mail")] == [Stage.OFF, Stage.OFF]
    world.two.end(failed=True, name="mail")
    assert [world.two.brakes[name].stage for name in ("bank", "mail")] == [Stage.OFF, Stage.ON]
    assert isinstance(world.store.acquire("brake:bank", "test", 1), Acquired)
    assert not isinstance(world.store.acquire("brake:mail", "test", 1), Acquired)


def test_it_says_when_it_asks_next(world):
    now, fleet = world.clock.monotonic(), world.one.fleet
    assert fleet.due(now) is None
    world.one.fail()
    assert fleet.due(now) == now + ASK_SECONDS
    world.wait()
    assert fleet.due(now) == now + 2 * ASK_SECONDS
    world.one.end(failed=False)
    world.wait()
    assert fleet.due(now) is None


def test_a_failure_delays_no_question_that_is_due(world):
    world.one.fail()
    fleet, now = world.one.fleet, world.clock.monotonic()
    with fleet.lane.lock:
        fleet.ask("bank", now, changed=True)
        fleet.ask("bank", now)
    assert fleet.due(now) == now


def test_a_failure_while_it_eases_is_asked_about_and_eases_nobody_anew(world):
    world.one.fail()
    world.wait()
    world.one.end(failed=False)
    world.clock.advance(1)
    world.two.fail()
    world.clock.advance(ASK_SECONDS)
    world.one.end(failed=True)
    assert world.stages[:2] == [Stage.ON] * 2
    world.wait()
    assert world.stages[:2] == [Stage.ON] * 2
    assert (world.one.brake.may_try, world.two.brake.may_try) == (False, True)

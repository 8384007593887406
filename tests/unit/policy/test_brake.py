"""A brake is applied by failures, tries one run after each pause, and goes on when tries succeed."""

import heapq
import random

import pytest

from celery_sqs_visibility.policy import brake as policy
from celery_sqs_visibility.policy.brake import (
    AWAITED_SECONDS,
    FIRST_TOGETHER,
    FORGIVEN_SECONDS,
    LEAST_FAILURES,
    MAX_PAUSE_SECONDS,
    MIN_PAUSE_SECONDS,
    RECENT_ENDS,
    Brake,
    Stage,
)


def run(brake, now, *, failed):
    start = brake.start(now)
    assert start is not None
    brake.end(start, failed, now)


def applied(now=0.0):
    brake = Brake()
    for _ in range(LEAST_FAILURES):
        run(brake, now, failed=True)
    assert brake.stage is Stage.ON
    return brake


def eased(now=0.0):
    brake = applied(now)
    run(brake, now + MIN_PAUSE_SECONDS, failed=False)
    assert brake.stage is Stage.EASING
    return brake


def test_it_takes_some_failures():
    brake = Brake()
    for _ in range(LEAST_FAILURES - 1):
        run(brake, 0.0, failed=True)
    assert (brake.stage, brake.since, brake.pause(0.0)) == (Stage.OFF, None, MIN_PAUSE_SECONDS)
    run(brake, 3.0, failed=True)
    assert (brake.stage, brake.began, brake.since, brake.tries) == (Stage.ON, 3.0, 3.0, 0)


def test_as_long_as_a_third_of_the_runs_succeed_all_start():
    brake = Brake()
    for number in range(100):
        run(brake, 0.0, failed=number % 3 != 0)
    assert brake.stage is Stage.OFF


def test_only_the_last_ends_count():
    brake = Brake()
    for failed in [False] * 50 + [True] * (RECENT_ENDS - 2):
        run(brake, 0.0, failed=failed)
    assert brake.stage is Stage.ON


def test_ends_that_say_nothing_do_not_count():
    brake = Brake()
    for _ in range(50):
        run(brake, 0.0, failed=None)
    for _ in range(LEAST_FAILURES):
        run(brake, 0.0, failed=True)
    assert brake.stage is Stage.ON


def test_after_each_pause_one_run_is_tried():
    brake = applied()
    assert brake.start(MIN_PAUSE_SECONDS - 0.01) is None
    start = brake.start(MIN_PAUSE_SECONDS)
    assert start is not None
    assert brake.is_current(start)
    assert brake.start(MIN_PAUSE_SECONDS) is None
    brake.end(start, failed=True, now=2.0)
    assert brake.start(2.9) is None
    assert brake.start(3.0) is not None
    assert brake.tries == 2


def test_pauses_grow_with_the_time_since_it_was_applied():
    brake, now, tries = applied(), 0.0, []
    while now < 20:
        now += 0.01
        if (start := brake.start(now)) is not None:
            tries.append(now)
            brake.end(start, failed=True, now=now)
    assert len(tries) == 11
    assert brake.pause(now) == pytest.approx(5, abs=0.01)
    assert brake.pause(3600.0) == MAX_PAUSE_SECONDS


def test_a_try_that_does_not_end_is_followed_by_another():
    brake = applied()
    first = brake.start(MIN_PAUSE_SECONDS)
    assert brake.start(MIN_PAUSE_SECONDS + AWAITED_SECONDS - 0.1) is None
    second = brake.start(MIN_PAUSE_SECONDS + AWAITED_SECONDS)
    assert first is not None
    assert second is not None
    brake.end(first, failed=False, now=100.0)
    assert brake.stage is Stage.EASING


def test_a_try_that_says_nothing_is_followed_by_another_at_once():
    brake = applied()
    run(brake, 1.0, failed=None)
    assert brake.start(1.0) is not None


def test_ends_of_runs_from_before_say_nothing():
    brake = Brake()
    starts = [brake.start(0.0) for _ in range(LEAST_FAILURES + 5)]
    for start in starts[:LEAST_FAILURES]:
        brake.end(start, failed=True, now=0.0)
    for start in starts[LEAST_FAILURES:]:
        assert not brake.is_current(start)
        brake.end(start, failed=False, now=0.5)
    assert brake.stage is Stage.ON


def test_a_worker_that_is_not_to_try_starts_none():
    brake = applied()
    brake.may_try = False
    assert brake.start(1000.0) is None
    brake.ease(1000.0)
    assert brake.start(1000.0) is not None
    assert brake.may_try


def test_with_each_success_more_run_together():
    brake = eased()
    together = [brake.start(2.0) for _ in range(FIRST_TOGETHER)]
    assert None not in together
    assert brake.start(2.0) is None
    brake.end(together[0], failed=False, now=2.0)
    assert [brake.start(2.0) is not None for _ in range(3)] == [True, True, False]


def test_a_failure_halves_them():
    brake = eased()
    starts = [brake.start(2.0), brake.start(2.0)]
    for _ in range(2):
        brake.end(starts.pop(), failed=False, now=2.0)
        starts += [brake.start(2.0), brake.start(2.0)]
    brake.end(starts.pop(), failed=True, now=2.0)  # four were allowed, and two are now; three go on
    assert brake.stage is Stage.EASING
    assert brake.start(2.0) is None
    brake.end(starts.pop(), failed=None, now=2.0)
    brake.end(starts.pop(), failed=None, now=2.0)
    assert [brake.start(2.0) is not None for _ in range(2)] == [True, False]


def test_runs_whose_ends_are_never_told_hold_the_others_up_for_a_minute():
    brake = eased()
    assert [brake.start(2.0) is not None for _ in range(3)] == [True, True, False]
    assert [brake.start(2.0 + AWAITED_SECONDS) is not None for _ in range(2)] == [True, False]


def test_it_is_off_once_enough_runs_have_succeeded():
    brake = eased()
    for _ in range(RECENT_ENDS - 2):
        run(brake, 2.0, failed=False)
    assert brake.stage is Stage.EASING
    run(brake, 2.0, failed=False)
    assert (brake.stage, brake.since) == (Stage.OFF, None)
    run(brake, 2.0, failed=True)
    assert brake.stage is Stage.OFF


def test_it_is_off_once_nothing_has_run_for_a_minute():
    """A task that rarely runs would take days for ten ends."""
    brake = eased()
    brake.release_if_quiet(MIN_PAUSE_SECONDS + AWAITED_SECONDS - 0.1)
    assert brake.stage is Stage.EASING
    runs = brake.start(30.0)
    brake.release_if_quiet(30.0 + AWAITED_SECONDS)
    assert brake.stage is Stage.EASING, "a run goes on"
    brake.end(runs, failed=True, now=31.0)
    brake.release_if_quiet(30.0 + AWAITED_SECONDS)
    assert (brake.stage, brake.since) == (Stage.OFF, None)


def test_if_most_fail_again_the_pauses_go_on_growing():
    brake = eased()
    for _ in range(4):
        assert brake.stage is Stage.EASING
        run(brake, 40.0, failed=True)
    assert (brake.stage, brake.since, brake.began, brake.tries) == (Stage.ON, 0.0, 40.0, 1)
    assert brake.start(49.9) is None
    assert brake.start(50.0) is not None
    assert brake.tries == 2


def test_a_new_outage_begins_anew():
    brake = eased()
    for _ in range(RECENT_ENDS):
        run(brake, 2.0, failed=False)
    for _ in range(LEAST_FAILURES + 5):
        if brake.stage is Stage.OFF:
            run(brake, 100.0, failed=True)
    assert (brake.since, brake.tries) == (100.0, 0)


def test_tries_are_forgiven_for_a_day():
    brake = Brake()
    assert not brake.start(0.0).forgiven
    brake = applied(10.0)
    assert brake.start(10.0 + MIN_PAUSE_SECONDS).forgiven
    assert not brake.start(10.0 + FORGIVEN_SECONDS).forgiven
    brake.ease(11.0)
    assert not brake.start(11.0).forgiven


class World:
    """A worker with eight slots, tasks of a moment's length, and a dependency that fails as a world says."""

    def __init__(self, seed, share_down):
        self.chance = random.Random(seed)
        self.brake, self.now = Brake(), 0.0
        self.share_down = share_down
        self.running, self.calls, self.started = [], [], 0

    def step(self, seconds):
        until = self.now + seconds
        while self.now < until:
            while len(self.running) < 8 and (start := self.brake.start(self.now)) is not None:
                self.started += 1
                heapq.heappush(
                    self.running, (self.now + self.chance.uniform(0.001, 0.3), self.started, start)
                )
            if self.running and self.chance.random() < 0.001:
                self.running.pop()  # its end is never told
            self.now += 0.05
            while self.running and self.running[0][0] <= self.now:
                _, _, start = heapq.heappop(self.running)
                failed = self.chance.random() < self.share_down
                self.calls.append((self.now, failed))
                self.brake.end(start, failed, self.now)


@pytest.mark.parametrize("seed", range(30))
def test_in_worlds_of_chance_an_outage_costs_few_calls_and_ends_soon_after_its_cause(seed):
    world = World(seed, 0.0)
    for _ in range(5):
        world.share_down = world.chance.choice([0.0, 0.05, 0.2])
        world.step(world.chance.uniform(5, 60))
        if world.brake.stage is not Stage.OFF:  # of the outage before, most runs of which failed by chance
            world.share_down = 0.0
            world.step(2 * MAX_PAUSE_SECONDS)
        assert world.brake.stage is Stage.OFF
        world.share_down, before = 1.0, len(world.calls)
        lasts = world.chance.uniform(20, 600)
        began = world.now
        world.step(lasts)
        assert world.brake.stage is Stage.ON
        assert len(world.calls) - before <= LEAST_FAILURES + RECENT_ENDS + 8 + 12 + lasts / 20
        pause = world.brake.pause(world.now)
        world.share_down = 0.0
        world.step(max(pause, policy.AWAITED_SECONDS if world.running else 0) + 10)
        assert world.brake.stage is Stage.OFF, (began, lasts)


def test_of_a_dependency_that_answers_one_call_of_twenty_little_more_is_asked():
    calls = []
    for seed in range(20):
        world = World(seed, 0.95)
        world.step(600)
        calls.append(len(world.calls))
    assert sum(calls) / len(calls) < 60


def test_of_a_dependency_that_answers_most_calls_nearly_all_that_is_possible_is_asked():
    free, braked = World(1, 0.0), World(1, 0.3)
    free.step(300)
    braked.step(300)
    assert len(braked.calls) > len(free.calls) / 2

"""The model of a whole worker, by hypothesis, in worlds of chance, and in some that are told what happens.

`make model` tries many more.
"""

from contextlib import contextmanager

import pytest
from hypothesis import settings
from support.factories import TIMEOUT
from support.models.steps import live_through
from support.models.whole import QUEUES, Whole

TestWhole = Whole.TestCase
TestWhole.settings = settings(max_examples=15, stateful_step_count=30)

SEEDS = pytest.mark.parametrize("seed", range(4))


@contextmanager
def world_of(seed):
    world = Whole(seed)
    try:
        yield world
        world.all_is_well()
        world.end_everything()
    finally:
        world.close()


@pytest.mark.parametrize("seed", range(6))
def test_in_a_world_of_chance(seed):
    live_through(Whole(seed), seed, steps=60)


@pytest.mark.slow("thirty worlds take half a minute")
@pytest.mark.parametrize("first", range(6, 36, 5))
def test_in_worlds_of_chance(first):
    for seed in range(first, first + 5):
        live_through(Whole(seed), seed, steps=100)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(851590120, id="a copy fails while the machine sleeps, and was sent again"),
        pytest.param(431750123, id="a second poll brings something while the first thread sleeps"),
    ],
)
def test_in_worlds_that_have_found_a_defect(seed):
    live_through(Whole(seed), seed, steps=100)


@SEEDS
def test_a_retry_after_the_deadline_sends_no_copy(seed):
    with world_of(seed) as world:
        world.publish("second", count=4)
        world.wait(10)
        world.sleep(TIMEOUT, "retry")
        world.wait(10)


@SEEDS
def test_what_was_copied_is_not_copied_again_though_it_could_not_be_deleted(seed):
    with world_of(seed) as world:
        world.fail("DeleteMessageBatch", "lost", 200)
        world.publish("second", "records", count=2)
        for _ in range(5):
            world.wait(40)
            world.end_all()


@SEEDS
def test_a_run_keeps_its_message_that_comes_back_twice(seed):
    with world_of(seed) as world:
        world.publish("second", count=2)
        for _ in range(2):
            world.wait(10)
            world.sleep(TIMEOUT + 1)
        world.wait(10)
        world.end_all()


@SEEDS
def test_capacity_is_free_again_of_a_message_that_a_poll_listed_twice(seed):
    with world_of(seed) as world:
        world.fail("ReceiveMessage", "twice", 20)
        world.publish("second", count=4)
        world.wait(10)


@SEEDS
@pytest.mark.parametrize("grace", [0, 1])
def test_a_drain_settles_what_still_runs_when_its_time_is_up(seed, grace):
    with world_of(seed) as world:
        world.wait(40)
        world.publish("second", count=12)
        world.wait(3)
        world.shut_down(grace)
        world.wait(10)


@SEEDS
def test_a_message_that_waited_for_an_extension_in_flight_is_settled_by_a_drain(seed):
    with world_of(seed) as world:
        world.publish("second", count=4)
        world.slow_down(1.0)
        world.wait(79.9)
        world.shut_down(1)
        world.wait(10)


@SEEDS
def test_dead_letters_of_a_fifo_queue_go_one_by_one(seed):
    with world_of(seed) as world:
        world.publish("third.fifo", "unreadable", count=4)
        world.wait(10)


@SEEDS
def test_runs_that_were_acknowledged_early_leave_their_slots(seed):
    with world_of(seed) as world:
        world.pool.early = 1.0
        world.publish("third.fifo", count=12)
        for _ in range(6):
            world.wait(3)
            world.end_all()


@SEEDS
def test_a_drain_goes_on_when_the_last_run_has_ended(seed):
    with world_of(seed) as world:
        world.publish("second", count=4)
        world.wait(3)
        world.shut_down(25)
        world.wait(10)
        world.end_all()
        world.wait(1)


@SEEDS
def test_a_queue_that_is_resumed_and_a_larger_prefetch_are_noticed_at_once(seed):
    with world_of(seed) as world:
        world.wait(3)
        world.pause("second", 100)
        world.set_prefetch(1)
        for queue in QUEUES:
            world.publish(queue, count=12)
        world.wait(3)
        world.resume("second")
        world.wait(1)
        world.set_prefetch(10)
        for _ in range(3):
            world.wait(1)
            world.end_all()

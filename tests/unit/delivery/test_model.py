"""The model of what holds messages, tried by hypothesis, and in many worlds of chance."""

import pytest
from hypothesis import settings
from support.models.held_requests import CONCLUDED
from support.models.holding import Holding
from support.models.steps import live_through

from celery_sqs_visibility.events import Hidden

TestHolding = Holding.TestCase
TestHolding.settings = settings(max_examples=50, stateful_step_count=50)


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_in_worlds_of_chance(first):
    """Many: hypothesis tries few, and makes what it finds shorter."""
    for seed in range(first, first + 20):
        live_through(Holding(), seed, steps=200)


@pytest.mark.parametrize(
    ("how", "fault"),
    [("failure", "none"), ("given up", "one is refused")],
    ids=["after a failure", "in place of a dead letter that is refused"],
)
def test_a_hide_waits_for_an_extension_that_sqs_has_not_got_yet(how, fault):
    """An example that was found."""
    world = Holding()
    world.send(begun=1)
    world.wait_for_the_next_beat(steps=1)
    (extension,) = world.flights
    world.end_run(how=how, steps=CONCLUDED, fault=fault)
    world.settle(CONCLUDED)
    assert not any(isinstance(event, Hidden) for event in world.events)
    world.send_through(extension, "none", 0)
    world.end_request(extension)
    world.settle(CONCLUDED)
    assert sum(isinstance(event, Hidden) for event in world.events) == 1
    world.all_is_well()
    world.teardown()

"""A function holds a message for its ETA for a moment; it waits longer in SQS, which costs no attempt."""

from __future__ import annotations

import pytest
from support import factories

LONG = 3600.5


def test_the_rest_of_a_rounded_delay_is_waited_for(world):
    world.send_with_eta("a", 1.4)
    due = world.clock.wall() + 1.4
    assert world.invoke() == []
    assert world.clock.wall() == pytest.approx(due)
    assert world.changes() == []


def test_what_is_due_does_not_wait_for_what_is_not(world):
    world.send_with_eta("later", 1.5)
    world.send("now")
    world.invoke()
    assert [key for key, *_ in world.ran] == ["now", "later"]


@pytest.mark.parametrize("name", ["q", "q.fifo"])
@pytest.mark.parametrize("seconds", [2.5, 20.5, LONG])
def test_a_wait_is_no_attempt(make, name, seconds):
    world = make(name)
    handler, due = world.handler(), world.clock.wall() + seconds
    world.send_with_eta("bad", seconds, group="g" if name.endswith(".fifo") else None)
    assert world.invoke(handler) == ["bad"]
    assert (world.changes(), world.ran) == ([int(seconds)], [])
    world.clock.advance(int(seconds))
    for attempt in (0, 1):
        world.invoke(handler)
        assert [retries for _, retries, *_ in world.ran] == [*range(attempt + 1)]
        assert world.clock.wall() >= due - 0.001
        world.clock.advance(10)
    assert world.letters() == ["failed at its last attempt"]


def test_where_the_queue_allows_one_receive_a_copy_waits(make):
    world = make(most=1)
    handler = world.handler()
    world.send_with_eta("a", 20.5)
    assert world.invoke(handler) == []
    assert (world.changes(), world.ran, factories.counts(world.queue)) == ([], [], (0, 0))
    world.clock.advance(20)
    world.invoke(handler)
    assert [(key, retries) for key, retries, *_ in world.ran] == [("a", 0)]


def test_what_does_not_fit_into_the_invocation_is_hidden_until_its_eta(world):
    world.send_with_eta("a", 1.5)
    assert world.invoke(seconds=2) == ["a"]
    assert (world.changes(), world.ran) == ([2], [])

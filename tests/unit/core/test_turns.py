"""Turns of a worker's queues: which messages Celery has, which of them take a slot, and what may start."""

import pytest
from support import factories

from celery_sqs_visibility.core.turns import Turns
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.prefetch import Slots

HIGH, LOW = (factories.sqs_queue(name) for name in ("high", "low"))


def new_turns(slots=None, **low):
    turns = Turns("strict", Options.parse({"queues": {"high": {}, "low": low}}).for_queue)
    turns.add_queue("high")
    turns.add_queue("low")
    if slots is not None:
        turns.slots = lambda: Slots(slots, slots)
    return turns


def message(queue, name):
    return factories.delivery(queue, handle=name, message_id=name)


def test_without_slots_none_overtakes_another_and_each_may_start():
    turns = new_turns()
    assert turns.overtakers("low") == frozenset()
    assert not turns.overtakes("high")
    assert turns.may_start(["low"])
    turns.slots = lambda: Slots(1, 1)
    assert turns.overtakers("low") == {"high"}
    assert turns.overtakes("high")


def test_one_that_rested_and_ended_gives_no_other_a_slot_twice():
    turns = new_turns(slots=1)
    resting, running = message(LOW, "a"), message(LOW, "b")
    turns.begin(resting)
    turns.rest(resting)
    turns.begin(running)
    turns.end(resting)
    assert not turns.may_start(["high"])
    turns.end(running)
    assert turns.may_start(["high"])


def test_one_that_neither_began_nor_rested_may_end_and_resume():
    turns = Turns("strict", Options.parse({}).for_queue)
    of_unknown_queue = message(LOW, "a")
    turns.end(of_unknown_queue)
    turns.resume(of_unknown_queue)
    assert turns.begun("low") == 0


def test_a_message_may_begin_though_its_queue_is_not_consumed_any_more():
    turns = Turns("strict", Options.parse({}).for_queue)
    begun = message(LOW, "a")
    turns.begin(begun)
    assert turns.begun("low") == 1
    turns.end(begun)
    assert turns.begun("low") == 0


def test_runs_whose_messages_are_settled_are_held_until_they_end():
    turns = new_turns()
    run = message(LOW, "a")
    turns.hold("low", 1)
    turns.start_run(run)
    assert turns.held("low") == 2
    turns.end_run(run)
    assert turns.held("low") == 1


@pytest.mark.parametrize(("most", "full"), [(1, [False, True]), (2, [False, False]), (None, [False, False])])
def test_a_queue_is_full_once_so_many_are_held_as_may_run(most, full):
    turns = new_turns(**({} if most is None else {"max_running": most}))
    assert [turns.is_full("low"), turns.hold("low", 1), turns.is_full("low")] == [full[0], None, full[1]]

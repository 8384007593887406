"""Turns of queues: strict is strict, weights are shares, and none that waits is passed over for long."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.queue_order import QueueOrder

NAMES = "abcde"
SOME = st.sets(st.sampled_from(NAMES))


def order(kind, **weights):
    queues = {name: {"weight": weight} for name, weight in weights.items()}
    options = Options.parse({"queues": queues or {"a": {}}, "queue_order": kind})
    return QueueOrder(kind, options.for_queue)


def turns(of, waiting, count):
    return "".join(of.next(waiting) for _ in range(count))


def test_weights_are_exact_shares_and_spread_evenly():
    weighted = order("weighted", a=8, b=1)
    assert Counter(turns(weighted, "ab", 900)) == {"a": 800, "b": 100}
    assert turns(order("weighted", a=5, b=1, c=1), "abc", 7) == "aabacaa"


def test_strict_is_the_order_of_the_option_and_equals_take_turns():
    options = Options.parse({"queues": {"high": {}, "mid*": {}}, "queue_order": "strict"})
    strict = QueueOrder("strict", options.for_queue)
    assert [strict.next(["low", "mid1", "high"]) for _ in range(3)] == ["high"] * 3
    assert [strict.next(["low", "mid1", "mid2"]) for _ in range(4)] == ["mid1", "mid2"] * 2
    assert [strict.next(["else", "low"]) for _ in range(2)] == ["else", "low"]


@given(st.lists(SOME.filter(len), min_size=1), st.permutations(NAMES))
def test_strict_never_passes_over_a_queue_that_is_listed_before(rounds, listed):
    options = Options.parse({"queues": {name: {} for name in listed}, "queue_order": "strict"})
    strict = QueueOrder("strict", options.for_queue)
    for waiting in rounds:
        assert strict.next(sorted(waiting)) == min(waiting, key=listed.index)


@given(
    st.fixed_dictionaries({name: st.integers(1, 100) for name in NAMES}),
    st.sampled_from(NAMES),
    st.lists(SOME, max_size=400),
)
def test_a_queue_that_waits_has_its_turn_whatever_others_do(weights, queue, rounds):
    weighted = order("weighted", **weights)
    most = math.ceil(sum(weights.values()) / weights[queue]) + len(NAMES)
    passed = 0
    for others in rounds:
        passed = 0 if weighted.next(sorted(others | {queue})) == queue else passed + 1
        assert passed <= most


@given(st.lists(st.integers(1, 50), min_size=2, max_size=5), st.integers(1, 300))
def test_shares_are_within_one_turn_of_the_weights(weights, count):
    names = NAMES[: len(weights)]
    given = dict(zip(names, weights, strict=True))
    had = Counter(turns(order("weighted", **given), names, count))
    for name, weight in given.items():
        assert abs(had[name] - count * weight / sum(weights)) < len(names)


@pytest.mark.parametrize(
    ("kind", "queue", "consumed", "overtakes"),
    [
        ("fair", "a", "ab", False),
        ("weighted", "a", "ab", True),
        ("weighted", "a", "a", False),
        ("strict", "a", "ab", True),
        ("strict", "b", "ab", False),
        ("strict", "c", "cd", False),
    ],
)
def test_who_may_overtake(kind, queue, consumed, overtakes):
    queues = order(kind, a=1, b=1)
    for name in consumed:
        queues.add(name)
    assert queues.overtakes(queue) is overtakes

"""Costs grow no faster than `benchmarks/growth.py` allows: counted at one size, and at ten times that."""

import sys

import pytest

#: Ten times the work, or the same again: a fifth more is allowed, for batches that are not full.
PART = 1.2

#: Small enough for a second or two; the others are `make growth`'s.
SIZES = {
    "held": 100,
    "unextended": 100,
    "more time": 100,
    "given back": 100,
    "retries": 100,
    "removals": 100,
    "published": 100,
    "keys": 100,
    "keys renewed": 100,
    "monitors": 1,
    "command to one": 100,
    "command to the gone": 100,
    "sweep": 100,
}


@pytest.mark.slow("it counts thousands of messages")
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="costs are counted on Python 3.11")
@pytest.mark.parametrize("name", SIZES)
def test_ten_times_the_size_costs_ten_times_as_much_at_the_most(benchmark_module, name):
    growth = benchmark_module("growth")
    few, many = (growth.measured(name, size, "count") for size in (SIZES[name], 10 * SIZES[name]))
    most = PART * 10 ** growth.SUBJECTS[name].grows
    assert all(many[figure] <= most * few[figure] for figure in few), f"{few} at first, then {many}"

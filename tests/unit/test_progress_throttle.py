"""When progress is worth storing."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.progress import ProgressThrottle

NOW = 1000.0
STEPS = st.lists(st.floats(0, 5), max_size=300)


@given(STEPS, st.none() | st.integers(0, 1000))
def test_it_is_stored_at_once_then_at_most_once_a_second_and_once_a_percent(steps, total):
    throttle, now, stored = ProgressThrottle(total), NOW, []
    for current, step in enumerate(steps):
        if throttle.is_due(current, now):
            stored.append((now, current))
        now += step
    assert [at for at, _ in stored[:1]] == ([NOW] if steps else [])
    assert all(after - before >= 1 for (before, _), (after, _) in itertools.pairwise(stored))
    if total:
        percents = [100 * current // total for _, current in stored]
        assert len(set(percents)) == len(percents)


@pytest.mark.parametrize(("total", "stored"), [(None, 11), (1000, 2)])
def test_an_unknown_total_has_no_percents(total, stored):
    throttle = ProgressThrottle(total)
    assert sum(throttle.is_due(current, NOW + current) for current in range(11)) == stored

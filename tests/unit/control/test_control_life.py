"""Only a queue whose tags are all ours, and old, is stale."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.control.queues import (
    ALIVE_TAG,
    EXCHANGE_TAG,
    NODE_TAG,
    SIGN_OF_LIFE_SECONDS,
    STALE_SECONDS,
    is_stale,
    tags_of,
)

NOW = 1_700_000_000.0


@given(st.floats(0, NOW), st.text(), st.text())
def test_a_queue_is_stale_when_its_signs_of_life_have_ended(age, exchange, node):
    tags = tags_of(exchange, node, NOW - age)
    assert is_stale(tags, exchange, NOW) == (NOW - int(NOW - age) > STALE_SECONDS)
    assert all(len(value) <= 256 for value in tags.values())


def test_several_signs_of_life_may_be_missed_and_clocks_differ():
    assert STALE_SECONDS >= 2 * SIGN_OF_LIFE_SECONDS + 2 * 300


@pytest.mark.parametrize(
    "change",
    [
        {EXCHANGE_TAG: "other.pidbox"},
        {NODE_TAG: None},
        {ALIVE_TAG: None},
        {ALIVE_TAG: "-1"},
        {ALIVE_TAG: "²"},
    ],
)
def test_a_queue_without_our_tags_is_never_stale(change):
    tags = {**tags_of("celery.pidbox", "a@host", 0.0), **change}
    assert not is_stale({k: v for k, v in tags.items() if v is not None}, "celery.pidbox", NOW)

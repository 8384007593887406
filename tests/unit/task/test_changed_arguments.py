"""The arguments of a continuation are those of the run, but for what it changes."""

from __future__ import annotations

from inspect import signature

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.task.successors import changed_arguments

NAMES = ("bucket", "start", "size")
VALUES = st.integers()


def import_objects(bucket, start=0, *, size=1):
    return {"bucket": bucket, "start": start, "size": size}


@given(st.tuples(VALUES, VALUES, VALUES), st.integers(0, 2), st.dictionaries(st.sampled_from(NAMES), VALUES))
def test_what_is_changed_is_changed_whether_it_was_positional_or_not(values, positional, changes):
    args, kwargs = values[:positional], dict(zip(NAMES[positional:], values[positional:], strict=True))
    changed_args, changed = changed_arguments(signature(import_objects), args, kwargs, changes)
    assert import_objects(*changed_args, **changed) == dict(zip(NAMES, values, strict=True)) | changes
    assert len(changed_args) == positional


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda *items, **more: (items, more), ((1, 2), {"items": 3})),
        (lambda items, /, *rest, **more: (items, rest, more), (1, (2,), {"items": 3})),
    ],
    ids=["a variable number", "positional only"],
)
def test_what_cannot_be_meant_by_a_name_stays(function, expected):
    args, kwargs = changed_arguments(signature(function), (1, 2), {}, {"items": 3})
    assert function(*args, **kwargs) == expected

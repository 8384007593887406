"""Lists and objects of JSON are counted, and their levels, before they are made."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.errors import TooLargeError
from celery_sqs_visibility.policy.message_limits import check_json

# Quotes, backslashes and brackets in texts are what a count could stumble over.
TEXTS = st.text() | st.text('"\\[]{}a', max_size=8)
VALUES = st.recursive(
    st.none() | TEXTS | st.integers(),
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=30,
)
MANY = 10**9


def inner(value):
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []


def containers(value):
    return isinstance(value, (dict, list)) + sum(map(containers, inner(value)))


def depth(value):
    return isinstance(value, (dict, list)) + max(map(depth, inner(value)), default=0)


@given(VALUES, st.booleans(), st.booleans())
def test_what_is_counted_is_what_json_makes(value, ensure_ascii, as_text):
    written = json.dumps(value, ensure_ascii=ensure_ascii)
    content = written if as_text else written.encode("utf-8", "surrogatepass")
    there, levels = containers(value), depth(value)
    check_json(content, there, levels)
    if there:
        with pytest.raises(TooLargeError, match=f"it holds {there:,} lists and objects"):
            check_json(content, there - 1, 0)
        with pytest.raises(TooLargeError, match=f"nested more than {levels - 1} levels deep"):
            check_json(content, there, levels - 1)


@pytest.mark.parametrize("content", [b"[" * 1001, b"[" * 1001 + b"]" * 1001, '{"a":' * 1001])
def test_levels_are_counted_of_what_is_no_json_too(content):
    with pytest.raises(TooLargeError, match="nested more than 1,000 levels deep"):
        check_json(content, max_nesting=1000)


@pytest.mark.timeout(20)  # not for hours
def test_texts_without_an_end_take_no_longer_than_others():
    for content in (b'"' + b'\\"[' * 700_000, b"[" * 1001 + b'"\\' * 1_000_000):
        with suppress(TooLargeError):
            check_json(content, 1000, 1000)


def test_fewer_lists_may_be_there_than_levels():
    with pytest.raises(TooLargeError, match="it holds 3 lists and objects, and 2 are read"):
        check_json("[{}, {}]", max_containers=2, max_nesting=MANY)

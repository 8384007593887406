"""JSON is read as `json.loads` reads it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.transport.codec import read_json

space = st.text(" \t\r\n", max_size=2)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(space, values, space)
def test_a_value_is_read_with_and_without_white_space_around_it(before, value, after):
    assert read_json(before + json.dumps(value) + after) == value


@pytest.mark.parametrize("text", ["", " ", "{", "nothing", "{} {}", "[1]]", "\ufeff{}"])
def test_what_is_no_value_is_refused_as_by_json(text):
    with pytest.raises(json.JSONDecodeError) as expected:
        json.loads(text)
    with pytest.raises(json.JSONDecodeError) as refused:
        read_json(text)
    assert str(refused.value) == str(expected.value)

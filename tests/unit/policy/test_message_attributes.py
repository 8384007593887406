"""Texts as message attributes: as SQS takes them, and their bytes."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.policy.message_limits import (
    beginning,
    is_selected,
    last_lines,
    legal,
    message_bytes,
    too_large,
)

# As API_SendMessage lists them.
ALLOWED = re.compile("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*")
ANYTHING = st.text(st.characters(codec=None, exclude_categories=()))


@given(ANYTHING)
def test_whatever_a_text_has_it_becomes_one_that_sqs_takes(text):
    assert ALLOWED.fullmatch(legal(text))
    legal(text).encode()


def test_what_sqs_refuses_is_written_out_and_the_rest_is_left():
    assert legal("tab\t line\r\n é 🙂 \x00\x1b\ud800\uffff") == "tab\t line\r\n é 🙂 \\x00\\x1b\\ud800\\uffff"


@given(ANYTHING, st.integers(1, 50))
def test_a_beginning_is_no_longer_than_asked_for(text, most):
    cut = beginning(text, most)
    assert len(cut) <= most
    assert cut == text or text.startswith(cut.removesuffix("…"))


def test_of_a_traceback_the_last_whole_lines_are_kept_and_none_pushes_out_the_others():
    text = "\n".join(f"line {number}" for number in range(100))
    assert last_lines(text, 24, 80) == "line 97\nline 98\nline 99"
    assert last_lines("a short one\n", 100, 80) == "a short one"
    assert last_lines("frame\n" + "x" * 1000, 100, 20) == "frame\n" + "x" * 19 + "…"


@given(st.text(max_size=300), st.integers(0, 100), st.integers(1, 50))
def test_the_last_lines_are_no_longer_than_asked_for(text, most, line_length):
    assert len(last_lines(text, most, line_length)) <= most


@pytest.mark.parametrize(
    ("patterns", "names"),
    [((), []), (("All",), ["a", "b.c"]), ((".*",), ["a", "b.c"]), (("b.*",), ["b.c"]), (("a", "c"), ["a"])],
)
def test_attributes_are_asked_for_as_in_message_attribute_names(patterns, names):
    assert [name for name in ("a", "b.c") if is_selected(name, patterns)] == names


@given(ANYTHING.filter(lambda text: text.isprintable()))
def test_a_message_is_as_large_as_its_bytes_and_those_of_its_attributes(text):
    attributes = {
        "näme": {"DataType": "String.custom", "StringValue": text},
        "blob": {"DataType": "Binary", "BinaryValue": b"12345"},
    }
    parts = ("näme", "String.custom", text, "blob", "Binary")
    assert message_bytes(text, attributes) == len(text.encode()) + sum(len(p.encode()) for p in parts) + 5
    assert message_bytes(text, {}) == len(text.encode())


def test_a_message_that_sqs_counts_as_larger_is_not_said_to_exceed_a_limit_that_it_does_not():
    told = str(too_large("q", 1_048_422))
    assert "has 1,048,422 bytes with its attributes, and SQS counts more, and takes 1,048,576" in told
    assert "counts more" not in str(too_large("q", 1_048_577))

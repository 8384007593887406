"""Characters, sizes, ids and JSON of a message."""

import hashlib
import json
import re
import string
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.errors import (
    InvalidIdError,
    MessageTooLargeError,
    RequestRefusedError,
    TooLargeError,
    UnavailableError,
)
from celery_sqs_visibility.policy.message_limits import (
    check_json,
    check_names,
    checked_id,
    escape_illegal,
    is_selected,
    last_lines,
    limit_in,
    message_bytes,
    payload_too_large,
    too_large,
    truncated,
)

# As API_SendMessage lists them.
ALLOWED = re.compile("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*")
ANYTHING = st.text(st.characters(codec=None, exclude_categories=()))


@given(ANYTHING)
def test_whatever_a_text_has_it_becomes_one_that_sqs_takes(text):
    assert ALLOWED.fullmatch(escape_illegal(text))
    escape_illegal(text).encode()


def test_what_sqs_refuses_is_written_out_and_the_rest_is_left():
    assert (
        escape_illegal("tab\t line\r\n é 🙂 \x00\x1b\ud800\uffff")
        == "tab\t line\r\n é 🙂 \\x00\\x1b\\ud800\\uffff"
    )


@given(ANYTHING, st.integers(1, 50))
def test_a_beginning_is_no_longer_than_asked_for(text, most):
    cut = truncated(text, most)
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


SENTENCE = "One or more parameters are invalid. Reason: Message must be shorter than 262144 bytes."


@pytest.mark.parametrize(
    ("error", "limit"),
    [
        (RequestRefusedError(SENTENCE), 262_144),
        (RequestRefusedError("One or more parameters are invalid."), None),
        (UnavailableError(SENTENCE), None),
        (too_large("q", 5), None),
    ],
)
def test_the_limit_of_a_queue_is_what_sqs_said_when_it_refused(error, limit):
    assert limit_in(error) == limit


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (too_large("q", 300_000, 262_144), ["'q'", "300,000", "262,144", "payload_store"]),
        (too_large("q", 2_000_000), ["2,000,000", "1,048,576", "send its key"]),
        (too_large("q", 300_000, 262_144, pointer=True), ["300,000", "262,144", "attributes are too large"]),
        (payload_too_large("q", 70_000_000), ["'q'", "70,000,000", "67,108,864", "send its key"]),
    ],
)
def test_the_error_says_the_size_the_limit_and_what_to_do(error, words):
    assert isinstance(error, MessageTooLargeError)
    assert error.code == "MessageTooLong"
    assert [word for word in words if word not in str(error)] == []


@pytest.mark.parametrize(
    "value", ["a", "x" * 128, string.ascii_letters, string.digits + string.punctuation, 7]
)
def test_what_sqs_takes_is_taken(value):
    assert checked_id("MessageGroupId", value, "orders") == str(value)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("Acme Corp", "with ' ' at 4"),
        ("", "with a length of 0"),
        ("x" * 129, "with a length of 129"),
        ("käse", "with 'ä' at 1"),
        ("a\n", "with '\\n' at 1"),
        ("\ud800", "with '\\ud800' at 0"),
    ],
)
def test_what_sqs_refuses_is_refused_with_its_hash(value, why):
    with pytest.raises(InvalidIdError) as refused:
        checked_id("MessageGroupId", value, "orders")
    hashed = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()
    assert why in str(refused.value)
    assert "MessageGroupId of a message for queue 'orders'" in str(refused.value)
    assert hashed in str(refused.value)
    assert checked_id("MessageGroupId", hashed, "orders") == hashed


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        (
            {"id": "order\n5"},
            r"the id of task 't' to have no control characters, got 'order\n5', with '\n' at 5",
        ),
        ({"id": "a\tb"}, r"with '\t' at 1"),
        ({"id": 7}, "the id of task 't' to be text, got 7 of type int: give '7'"),
        ({"id": "1", "shadow": "a\x1b[2J"}, "the shadow of task 't'"),
    ],
)
def test_names_that_no_worker_takes_are_refused_by_the_character(headers, why):
    with pytest.raises(InvalidIdError) as refused:
        check_names({"task": "t", **headers})
    assert why in str(refused.value)


def test_other_names_are_anybodys():
    check_names(
        {"task": "t", "id": "bestellung 5 \N{LATIN SMALL LETTER A WITH DIAERESIS}\u200b", "shadow": None}
    )


# Quotes, backslashes and brackets in texts are what a count could stumble over.
TEXTS = st.text() | st.text('"\\[]{}a', max_size=8)
VALUES = st.recursive(
    st.none() | TEXTS | st.integers(),
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=30,
)


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

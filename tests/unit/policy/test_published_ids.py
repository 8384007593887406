"""What SQS or workers would refuse is refused where it is published, with what to use instead."""

from __future__ import annotations

import hashlib
import string

import pytest

from celery_sqs_visibility.errors import InvalidIdError
from celery_sqs_visibility.policy.message_limits import check_names, checked_id


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

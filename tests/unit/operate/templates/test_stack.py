from __future__ import annotations

import pytest

from celery_sqs_visibility.operate.templates.stack import distinct, referring, typed


def test_strings_of_a_document_are_replaced_wherever_they_are():
    document = {"a": ["x", {"b": "x", "x": 1}], "c": "xx"}
    assert referring(document, {"x": {"Ref": "X"}}) == {
        "a": [{"Ref": "X"}, {"b": {"Ref": "X"}, "x": 1}],
        "c": "xx",
    }


def test_repeated_names_have_numbers():
    assert distinct(["a", "b", "a", "a"]) == ["a", "b", "a2", "a3"]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("DelaySeconds", "5", 5),
        ("FifoQueue", "True", True),
        ("KmsMasterKeyId", "1234", "1234"),
        ("Policy", '{"a": 1}', {"a": 1}),
        ("DeduplicationScope", "queue", "queue"),
    ],
)
def test_values_have_types(name, value, expected):
    assert typed(name, value) == expected

"""Memory has bounds."""

from __future__ import annotations

from celery_sqs_visibility.delivery.memory import Remembered


def test_what_was_added_is_remembered_and_told_to_be_new_once():
    remembered = Remembered(2)
    assert remembered.add("a")
    assert not remembered.add("a")
    assert "a" in remembered


def test_the_oldest_is_forgotten():
    remembered = Remembered(2)
    for key in "aba":
        remembered.add(key)
    remembered.add("c")
    assert "b" not in remembered
    assert "a" in remembered

"""A worker remembers the last events of the tasks that did not simply succeed."""

import json

import pytest
from support.clock import FakeClock

from celery_sqs_visibility import events
from celery_sqs_visibility.delivery.event_log import MESSAGES
from celery_sqs_visibility.events import DeliveryFacts, emit
from celery_sqs_visibility.worker import trail as module
from celery_sqs_visibility.worker.trail import KINDS, Trail

FACTS = DeliveryFacts("q", "m1", 2, 900.0, "tasks.add", "id", attempt=2)


@pytest.fixture
def trail():
    clock = FakeClock()
    made = Trail(clock)
    made.clock = clock
    return made


def test_what_happened_is_told_in_order_as_a_json_log_would(trail):
    trail.note(events.Failed(FACTS, attempt=2, error="Oops()", delay=10.0, last=False))
    trail.clock.advance(1)
    trail.note(events.Hidden(FACTS, 10))
    trail.note(events.Hidden(DeliveryFacts("q", "m2", 1, 0.0, "tasks.add", "another"), 10))
    failed, hidden = trail.of("id")
    assert failed["message"] == "task failed"
    assert (failed["error"], failed["attempt"], failed["message_id"]) == ("Oops()", 2, "m1")
    assert (hidden["message"], hidden["seconds"]) == ("message hidden", 10)
    assert hidden["at"] == failed["at"] + 1
    assert "group" not in hidden  # what is unknown is left out
    assert json.dumps([failed, hidden])
    assert {failed["message"], hidden["message"]} <= MESSAGES


def test_a_long_error_is_cut(trail):
    trail.note(events.Failed(FACTS, attempt=2, error="x" * 10_000, delay=None, last=True))
    assert len(trail.of("id")[0]["error"]) == module.MAX_TEXT


def test_the_oldest_are_forgotten(monkeypatch):
    monkeypatch.setattr(module, "MAX_EVENTS", 2)
    trail = Trail(FakeClock())
    for seconds in (1, 2, 3):
        trail.note(events.Hidden(FACTS, seconds))
    assert [each["seconds"] for each in trail.of("id")] == [2, 3]


def test_it_listens_once_and_a_success_makes_no_event(trail, monkeypatch):
    monkeypatch.setattr(events, "_subscriptions", ())
    for kind in vars(events).values():
        if isinstance(kind, type) and issubclass(kind, events.Event):
            monkeypatch.setattr(kind, "listeners", ())
            monkeypatch.setattr(kind, "is_wanted", events.NEVER)
    trail.listen()
    trail.listen()
    emit(events.Released(FACTS))
    assert [each["message"] for each in trail.of("id")] == ["message released"]
    success = (events.Received, events.Started, events.Extended, events.Finished, events.Deleted)
    assert not any(kind.is_wanted() for kind in success)
    assert all(kind.is_wanted() for kind in KINDS)

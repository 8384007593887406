"""The log tells of every delivery's event: a constant sentence, and the facts as fields."""

import logging
from dataclasses import fields

import pytest

from celery_sqs_visibility import events
from celery_sqs_visibility.delivery.event_log import fields_of, log_event
from celery_sqs_visibility.events import (
    DeliveryEvent,
    DeliveryFacts,
    Extended,
    Hidden,
    Lost,
    Parked,
    Unreadable,
)

FACTS = DeliveryFacts("q", "message-1", 2, 1_700_000_000.0, "tasks.add", "task-1", received=1_700_000_060.5)
KINDS = [
    kind
    for kind in vars(events).values()
    if isinstance(kind, type) and issubclass(kind, DeliveryEvent) and kind is not DeliveryEvent
]
SAMPLES = {
    "kept": True,
    "cause": "eta",
    "seconds": 5,
    "reason": "because",
    "follows": "it comes back",
    "attempt": 1,
    "error": "Oops()",
    "delay": 10.0,
    "last": False,
}
LEVELS = {
    logging.DEBUG: {
        *("Received", "Started", "Extended", "Finished", "Deleted"),
        *("Failed", "Hidden", "Released", "Skipped"),  # people have read another line of it
    },
    logging.INFO: {"Parked", "Renewed"},
    logging.WARNING: {"Lost", "Superseded", "FinishedBefore", "DeadLettered", "HorizonNear"},
    logging.ERROR: {"Unreadable"},
}


@pytest.fixture(autouse=True)
def everything(caplog):
    caplog.set_level(logging.DEBUG, logger="celery_sqs_visibility")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_frequent_ones_are_quiet_and_the_bad_ones_loud(kind, caplog):
    facts = DeliveryFacts("q", f"message-{kind.__name__}", 1, 0.0)
    log_event(kind(facts, **{f.name: SAMPLES[f.name] for f in fields(kind) if f.name != "delivery"}))
    (record,) = caplog.records
    assert record.name == "celery_sqs_visibility"
    assert f"message_id={facts.message_id}" in record.getMessage()
    assert kind.__name__ in LEVELS[record.levelno]


def test_the_sentence_is_constant_and_the_facts_are_fields(caplog):
    log_event(Extended(FACTS, 60))
    (record,) = caplog.records
    assert record.msg == "message extended (%s)"
    assert record.getMessage() == (
        "message extended (queue=q message_id=message-1 receive_count=2 first_received="
        "2023-11-14T22:13:20Z task=tasks.add task_id=task-1 seconds=60)"
    ), "the group, which there is none of, is left out, and the time of its receive"
    assert list(record.sqs) == [*(f.name for f in fields(DeliveryFacts)), "seconds"]
    assert record.sqs["seconds"] == 60


@pytest.mark.parametrize(
    ("seconds", "text"), [(4.0, "4"), (12.3456789, "12.3"), (2_592_000.04, "2592000"), (0, "0")]
)
def test_durations_are_rounded_for_people_and_exact_in_the_fields(caplog, seconds, text):
    log_event(Parked(DeliveryFacts("q", "m", 1, 0.0), seconds))
    (record,) = caplog.records
    assert record.getMessage().endswith(f"(queue=q message_id=m receive_count=1 seconds={text} cause=eta)")
    assert record.sqs["seconds"] == seconds


def test_a_message_that_stays_unreadable_is_loud_once(caplog):
    facts = DeliveryFacts("q", "unreadable", 1, 0.0)
    log_event(Unreadable(facts, "because"))
    log_event(Hidden(facts, 60))
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.DEBUG]


def test_a_receipt_handle_is_nowhere_in_the_facts():
    assert not any("handle" in f.name for kind in [DeliveryFacts, *KINDS] for f in fields(kind))


def test_a_quiet_logger_costs_nothing(caplog):
    caplog.set_level(logging.WARNING, logger="celery_sqs_visibility")
    log_event(Extended(FACTS, 60))
    log_event(Lost(FACTS, "gone"))
    assert len(caplog.records) == 1


def test_a_line_about_a_delivery_has_its_facts_and_what_else_there_is():
    fields = fields_of(FACTS, seconds=5)
    assert fields["message_id"] == "message-1"
    assert str(fields).startswith("queue=q message_id=message-1 ")
    assert str(fields).endswith(" seconds=5")

"""The log tells of every event: a constant sentence, the facts beside it, the frequent ones quietly."""

from __future__ import annotations

import logging
from dataclasses import fields

import pytest

from celery_sqs_visibility import events
from celery_sqs_visibility.delivery.event_log import fields_of, log_event
from celery_sqs_visibility.events import (
    DeadLettered,
    Deleted,
    DeliveryEvent,
    Extended,
    Facts,
    Failed,
    Finished,
    Lost,
    Received,
    Released,
    Started,
    Unreadable,
)

FACTS = Facts("q", "message-1", 2, 1_700_000_000.0, "tasks.add", "task-1", received=1_700_000_060.5)
KINDS = [kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, DeliveryEvent)]
KINDS.remove(DeliveryEvent)
SAMPLES = {
    "seconds": 5,
    "reason": "because",
    "attempt": 1,
    "error": "ValueError()",
    "delay": 10.0,
    "last": False,
}


def sample(kind):
    return kind(FACTS, **{f.name: SAMPLES[f.name] for f in fields(kind) if f.name != "delivery"})


@pytest.fixture(autouse=True)
def everything(caplog):
    caplog.set_level(logging.DEBUG, logger="celery_sqs_visibility")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_of_event_has_a_sentence(kind, caplog):
    log_event(sample(kind))
    (record,) = caplog.records
    assert record.name == "celery_sqs_visibility"
    assert "message_id=message-1" in record.getMessage()


@pytest.mark.parametrize(
    ("kind", "level"),
    [
        (Received, logging.DEBUG),
        (Started, logging.DEBUG),
        (Extended, logging.DEBUG),
        (Finished, logging.DEBUG),
        (Deleted, logging.DEBUG),
        (Failed, logging.INFO),
        (Released, logging.INFO),
        (Lost, logging.WARNING),
        (DeadLettered, logging.ERROR),
        (Unreadable, logging.ERROR),
    ],
)
def test_the_frequent_ones_are_quiet_and_the_bad_ones_loud(kind, level, caplog):
    log_event(sample(kind))
    assert caplog.records[0].levelno == level


def test_the_sentence_is_constant_and_the_facts_are_beside_it(caplog):
    log_event(Extended(FACTS, 60))
    (record,) = caplog.records
    assert record.msg == "message extended (%s)"
    assert record.sqs["seconds"] == 60
    assert record.sqs["message_id"] == "message-1"


def test_a_plain_log_shows_the_facts_as_key_and_value(caplog):
    log_event(Extended(FACTS, 60))
    assert caplog.records[0].getMessage() == (
        "message extended (queue=q message_id=message-1 receive_count=2 first_received=1700000000.0 "
        "task=tasks.add task_id=task-1 received=1700000060.5 seconds=60)"
    )


def test_what_is_not_known_is_left_out(caplog):
    log_event(Deleted(Facts("q", "m", 1, 0.0)))
    assert "task" not in caplog.records[0].getMessage()


def test_the_facts_of_the_delivery_come_first():
    assert list(fields_of(Lost(FACTS, "gone"))) == [*(f.name for f in fields(Facts)), "reason"]


def test_a_receipt_handle_is_nowhere_in_the_facts():
    assert not any("handle" in f.name for kind in [Facts, *KINDS] for f in fields(kind))


def test_a_quiet_logger_costs_nothing(caplog):
    caplog.set_level(logging.WARNING, logger="celery_sqs_visibility")
    log_event(Extended(FACTS, 60))
    assert caplog.records == []

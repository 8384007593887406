"""Messages that this worker makes no task of are refused, with what Celery's signals tell of them."""

from __future__ import annotations

from typing import ClassVar

import pytest
from celery import signals
from kombu.exceptions import ContentDisallowed, SerializerNotInstalled

from celery_sqs_visibility.errors import TooLargeError
from celery_sqs_visibility.worker import validation as module
from celery_sqs_visibility.worker.validation import NOT_REGISTERED, BadMessages


class StubMessage:
    """Notes what becomes of it."""

    def __init__(self, *, payload=None, **headers):
        self.headers, self.payload = headers, payload
        self.fate = []

    def refuse(self, reason, *, others_may=False):
        self.fate.append((reason, others_may))

    def come_back(self, error):
        self.fate.append(error)


class StubConsumer:
    """A sender of signals, which are told to whoever is hashable."""

    strategies: ClassVar = {"task": "strategy"}

    def create_task_handler(self):
        """Celery's own."""


@pytest.fixture
def consumer():
    return StubConsumer()


@pytest.fixture
def bad(consumer):
    return BadMessages(consumer)


@pytest.fixture
def heard():
    """What listeners of Celery's signals hear."""
    heard = []

    def note(signal, sender, **facts):
        heard.append(
            (
                signal.name,
                sender,
                {name: facts[name] for name in ("message", "exc", "name", "id") if name in facts},
            )
        )

    for each in (signals.task_rejected, signals.task_unknown):
        each.connect(note)
    yield heard
    for each in (signals.task_rejected, signals.task_unknown):
        each.disconnect(note)


def test_a_message_that_names_no_task_is_refused_everywhere(bad, consumer, heard):
    message = StubMessage()
    bad.on_unknown_message(None, message)
    assert message.fate == [("its headers name no task", False)]
    assert heard == [("task_rejected", consumer, {"message": message, "exc": None})]


@pytest.mark.parametrize(
    "message",
    [
        StubMessage(task="new", id="id"),
        StubMessage(payload={"task": "new", "id": "id"}),
        StubMessage(task="new", id="id", payload={"task": "other", "id": "other"}),
    ],
    ids=["protocol 2", "protocol 1", "both"],
)
def test_a_task_that_is_not_registered_here_may_be_another_workers(bad, consumer, heard, message):
    message.fate.clear()
    error = KeyError("new")
    bad.on_unknown_task(None, message, error)
    assert message.fate == [(f"task 'new' {NOT_REGISTERED}", True)]
    assert heard == [
        ("task_unknown", consumer, {"message": message, "exc": error, "name": "new", "id": "id"})
    ]


def test_a_message_whose_payload_is_no_object_has_no_name(bad):
    message = StubMessage(payload=["task"])
    bad.on_unknown_task(None, message, KeyError())
    assert message.fate == [(f"task None {NOT_REGISTERED}", True)]


def test_an_invalid_task_is_refused_everywhere(bad, consumer, heard):
    message, error = StubMessage(task="task"), ContentDisallowed("pickle")
    bad.on_invalid_task(None, message, error)
    assert message.fate == [("its task is invalid: pickle", False)]
    assert heard == [("task_rejected", consumer, {"message": message, "exc": error})]


@pytest.mark.parametrize(
    ("error", "compression", "fate"),
    [
        (ValueError("no"), None, ("its content cannot be decoded: ValueError('no')", False)),
        (ValueError("no"), "application/x-other", ("its content cannot be decoded: ValueError('no')", True)),
        (
            SerializerNotInstalled("yaml"),
            None,
            ("its content cannot be decoded: SerializerNotInstalled('yaml')", True),
        ),
        (TooLargeError("it is too large"), None, ("it is too large", False)),
    ],
)
def test_a_body_that_cannot_be_decoded_may_be_another_workers_if_that_has_the_codec(
    bad, error, compression, fate
):
    message = StubMessage(compression=compression)
    bad.on_decode_error(message, error)
    assert message.fate == [fate]


def test_a_lack_of_memory_while_decoding_has_the_message_come_back(bad):
    message, error = StubMessage(), MemoryError()
    bad.on_decode_error(message, error)
    assert message.fate == [error]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ContentDisallowed("pickle"), "its task is invalid: pickle"),
        (ValueError("no"), "its content cannot be decoded: ValueError('no')"),
        (None, None),
    ],
)
def test_celery_gets_valid_messages_only(bad, consumer, monkeypatch, error, reason):
    asked, handled = [], []

    def validate(message, tasks):
        asked.append((message, tasks))
        if error is not None:
            raise error

    monkeypatch.setattr(module, "validate", validate)
    message = StubMessage(task="task")
    bad.validating(handled.append)(message)
    assert asked == [(message, consumer.strategies)]
    assert [each[0] for each in message.fate] == ([] if reason is None else [reason])
    assert handled == ([message] if reason is None else [])


def test_a_task_with_named_arguments_is_valid():
    message = StubMessage(payload=[[], {"page": 1}, module.NOTHING_EMBEDDED], task="task", id="id")
    message.properties = {}
    module.validate(message, {"task": "strategy"})

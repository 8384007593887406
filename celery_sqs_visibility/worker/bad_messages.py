"""Messages that Celery cannot make a task of are kept: Celery deletes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from celery import signals
from celery.exceptions import InvalidTaskError
from kombu.exceptions import ContentDisallowed, SerializerNotInstalled

from celery_sqs_visibility.errors import TooLargeError
from celery_sqs_visibility.policy.passing_errors import passes
from celery_sqs_visibility.transport.decompression import knows
from celery_sqs_visibility.transport.message import Message
from celery_sqs_visibility.worker.validation import validate


class BadMessages:
    """Refuses bad messages in place of Celery's consumer. Main thread.

    It replaces the consumer's `on_unknown_message`, `on_unknown_task`, `on_invalid_task` and
    `on_decode_error` (celery/worker/consumer/consumer.py), and has messages validated before
    `create_task_handler`'s handler gets them.

    Args:
        consumer: the worker's `celery.worker.consumer.Consumer`.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        consumer.on_unknown_message = self.on_unknown_message
        consumer.on_unknown_task = self.on_unknown_task
        consumer.on_invalid_task = self.on_invalid_task
        consumer.on_decode_error = self.on_decode_error
        consumer.create_task_handler = self._validating(consumer.create_task_handler)

    def on_unknown_message(self, body: Any, message: Message) -> None:  # noqa: ARG002 - Celery's signature
        """It names no task."""
        message.refuse("its headers name no task")
        signals.task_rejected.send(sender=self._consumer, message=message, exc=None)

    def on_unknown_task(self, body: Any, message: Message, exc: Exception) -> None:  # noqa: ARG002
        """Its task is not registered here. No FAILURE is stored: in a rolling deploy others may know it."""
        headers = message.headers
        if "task" not in headers and isinstance(message.payload, dict):
            headers = message.payload  # protocol 1
        name = headers.get("task")
        message.refuse(f"task {name!r} is not registered", others_may=True)
        signals.task_unknown.send(
            sender=self._consumer, message=message, exc=exc, name=name, id=headers.get("id")
        )

    def on_invalid_task(self, body: Any, message: Message, exc: Exception) -> None:  # noqa: ARG002
        """A part of it is not as Celery or its pools need it."""
        message.refuse(f"its task is invalid: {exc}")
        signals.task_rejected.send(sender=self._consumer, message=message, exc=exc)

    def on_decode_error(self, message: Message, exc: Exception) -> None:
        """Its body cannot be decoded, or not here: another worker may have the codec."""
        if passes(exc):
            message.come_back(exc)
            return
        missing = isinstance(exc, SerializerNotInstalled) or not knows(message.headers.get("compression"))
        said = str(exc) if isinstance(exc, TooLargeError) else f"its content cannot be decoded: {exc!r}"
        message.refuse(said, others_may=missing)

    def _validating(self, create_task_handler: Callable[..., Any]) -> Callable[..., Any]:
        consumer = self._consumer

        @wraps(create_task_handler)
        def create_validating(*args: Any, **kwargs: Any) -> Callable[[Message], object]:
            handle = create_task_handler(*args, **kwargs)

            def handle_if_valid(message: Message) -> None:
                try:
                    validate(message, consumer.strategies)
                except (InvalidTaskError, ContentDisallowed) as exc:
                    self.on_invalid_task(None, message, exc)
                except Exception as exc:  # noqa: BLE001 - decoders may raise anything
                    self.on_decode_error(message, exc)
                else:
                    handle(message)

            return handle_if_valid

        return create_validating

"""Celery's own exchanges on one channel: commands, replies and events, which `control/` carries.

kombu declares a queue's exchange right before the queue, and binds the queue after it (kombu/entity.py:
`Queue.declare`). So the exchange that was declared last tells whether a new queue is one of Celery's own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from celery import current_task

from celery_sqs_visibility.command_line import shown_in_one_line
from celery_sqs_visibility.delivery.publish.retries import RETRIED_ERRORS
from celery_sqs_visibility.errors import AccessDeniedError, CommandNotSentError, RemoteControlError, SQSError
from celery_sqs_visibility.policy.control_names import Use, use_of
from celery_sqs_visibility.transport.routing import use_here

if TYPE_CHECKING:
    from celery_sqs_visibility.control.inbox import IsInTime
    from celery_sqs_visibility.control.remote import RemoteControl
    from celery_sqs_visibility.delivery.receive.buffer import Buffer
    from celery_sqs_visibility.transport.broker_context import BrokerContext

logger = logging.getLogger(__name__)

#: Passes a message to its consumer.
Deliver = Callable[[dict[str, Any]], object]

REMEDY: Final = (
    "set broker_transport_options = {'remote_control': True} for the workers and for whoever asks them; each "
    "worker then has a queue of its own, which costs about USD 0.05 a month"
)

#: How many commands or batches of events wait in a process; further ones stay in SQS.
MAX_CALLBACKS: Final = 100

#: Exit statuses of commands, from sysexits.h: nobody answers, and a permission is missing.
EX_UNAVAILABLE: Final = 69
EX_NOPERM: Final = 77


class ControlExchanges:
    """Celery's own exchanges on a channel; no control queues without the option. The channel's thread.

    Attributes:
        declared: the exchange that was declared last, until the next queue is declared.
    """

    _has_warned = False  # of the class: once in a process

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._consumed: dict[str, tuple[str, Deliver]] = {}  # by queue: its exchange, and its latest consumer
        self.declared: str | None = None

    def exchange_of(self, queue: str, declared: str | None = None) -> str | None:
        """The exchange of Celery's own that the queue is bound to, if any. The queue's name proves nothing.

        A task queue's exchange has the name of the queue. `declared` is the exchange of a queue not yet
        bound.
        """
        bindings = self._transport.state.queue_bindings(queue)
        bound = [declared] if declared else [each.exchange for each in bindings]
        return next((each for each in bound if each != queue and use_here(each)), None)

    def declare(self, queue: str) -> bool:
        """Returns whether the queue is one of Celery's own.

        It is created later, when it is consumed or replies are expected.

        A task that asks workers without remote control gets no replies, as in kombu's transport: an error
        would use up its attempts.

        Raises:
            RemoteControlError: it is one, remote control is off, and no task runs here.
        """
        exchange = self.exchange_of(queue, self.declared)
        if exchange is None:
            return False
        is_of_replies = use_of(exchange) is Use.REPLIES
        if not self._is_on and not (is_of_replies and current_task):
            error = RemoteControlError(f"remote control is off here: {REMEDY}")
            raise shown_in_one_line(error, EX_UNAVAILABLE)
        if self._is_on and is_of_replies:
            self._control.expect_replies(exchange)
        return True

    def publish(self, message: dict[str, Any], exchange: str, routing_key: str) -> bool:
        """Publish to an exchange of Celery's own. Returns whether it is one. The publishing thread.

        A command is sent at once, even within `publish_batch`, a reply by another thread, and an event to the
        monitors that listen. Without remote control kombu's virtual exchange drops events.
        """
        use = use_here(exchange) if self._is_on else use_of(exchange)
        if use is None or (use is Use.EVENTS and not self._is_on):
            return False
        if not self._is_on:
            self._warn()
        elif use is Use.EVENTS:
            self._control.events.publish(exchange, message)
        elif use is Use.REPLIES:
            self._control.reply(exchange, routing_key, message)
        else:
            self._broadcast(exchange, message)
        return True

    def consume(self, queue: str, deliver: Deliver) -> bool:
        """Consume a queue of Celery's own. Returns whether it is one."""
        if (exchange := self.exchange_of(queue)) is None:
            return False
        self._consumed[queue] = exchange, deliver
        if not self._is_on:
            return True  # nothing arrives
        handle = self._handle_command if use_of(exchange) is Use.COMMANDS else self._handle

        buffer: Buffer = self._transport.buffer

        def put(payload: dict[str, Any], is_in_time: IsInTime) -> None:
            buffer.put_callback(partial(handle, queue, deliver, payload, is_in_time))

        self._control.consume(queue, exchange, put, lambda: buffer.callbacks >= MAX_CALLBACKS)
        return True

    def cancel(self, queue: str) -> bool:
        """Stop consuming a queue without consumers. Returns whether it is one of Celery's own."""
        exchange, _ = self._consumed.pop(queue, (None, None))
        if exchange is not None and self._is_on:
            self._control.cancel(queue, exchange)
        return exchange is not None

    @property
    def _context(self) -> BrokerContext:
        context: BrokerContext = self._transport.context
        return context

    @property
    def _is_on(self) -> bool:
        return self._context.options.remote_control

    @property
    def _control(self) -> RemoteControl:
        return self._context.control

    def _broadcast(self, exchange: str, message: dict[str, Any]) -> None:
        """Send a command. kombu would repeat it without end or pause after a transient error.

        kombu publishes commands with `retry`, but without a policy (kombu/pidbox.py: `Mailbox._publish`). A
        task that asks workers gets no replies if a permission is missing, as without remote control.
        """
        try:
            self._control.broadcast(exchange, message)
        except AccessDeniedError as error:
            if current_task and _wants_replies(message):
                logger.warning(
                    "a task asked the workers, and gets no replies, since a permission is missing: %s", error
                )
                return
            raise shown_in_one_line(error, EX_NOPERM) from error
        except RETRIED_ERRORS as error:
            not_sent = CommandNotSentError(f"the command to the workers was not sent: {error}")
            raise shown_in_one_line(not_sent, EX_UNAVAILABLE) from error
        except SQSError as error:
            raise shown_in_one_line(error, EX_UNAVAILABLE) from error

    def _handle(self, queue: str, deliver: Deliver, payload: dict[str, Any], is_in_time: IsInTime) -> bool:
        """Deliver to the consumer that the message came for, if it still exists. Returns whether it did.

        The thread that drains.
        """
        _, latest = self._consumed.get(queue, (None, None))
        if latest is not deliver:
            self._control.requeue(queue, payload, is_in_time)
            return False
        if in_time := is_in_time():
            deliver(payload)
        return in_time

    def _handle_command(self, *args: Any) -> bool:
        """Handle a command. Its exceptions do not end the event loop. The thread that drains."""
        try:
            return self._handle(*args)
        except SystemExit:
            if self._context.on_remote_shutdown is None:
                raise
            self._context.on_remote_shutdown()
        except Exception:
            logger.exception("a command of remote control failed; continuing")
        return True

    def _warn(self) -> None:
        if not ControlExchanges._has_warned:
            ControlExchanges._has_warned = True
            logger.warning(
                "dropped a command to workers, since remote control is off here: %s. (Said once.)", REMEDY
            )


def _wants_replies(message: dict[str, Any]) -> bool:
    from celery_sqs_visibility.control.wire import body_of  # noqa: PLC0415 - imported only where it is on

    return bool(body_of(message).get("reply_to"))

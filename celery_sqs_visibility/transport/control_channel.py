"""The part of kombu's Channel that carries remote control: see `celery_sqs_visibility.control`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from celery_sqs_visibility.command_line import shown_in_one_line
from celery_sqs_visibility.delivery.publish.retries import RETRIED_ERRORS
from celery_sqs_visibility.errors import AccessDeniedError, CommandNotSentError, RemoteControlError, SQSError
from celery_sqs_visibility.policy.control_names import Use, use_of
from celery_sqs_visibility.transport.exchanges import use_here
from celery_sqs_visibility.transport.fanout_channel import FanoutChannel

logger = logging.getLogger(__name__)

REMEDY: Final = (
    "set broker_transport_options = {'remote_control': True} for the workers and for whoever asks them; each "
    "worker then has a queue of its own, which costs about USD 0.05 a month"
)

DROPPED: Final = "dropped a command to workers, since remote control is off here: %s. (Said once.)"

#: Commands or batches of events that wait in a process. While so many do, it receives no more.
MOST_ERRANDS: Final = 100

#: Exit statuses of `celery inspect`, from sysexits.h: nobody answers, and a permission is missing.
EX_UNAVAILABLE: Final = 69
EX_NOPERM: Final = 77


class ControlChannel(FanoutChannel):
    """Methods belong to the thread that has the channel. Without the option there are no control queues."""

    _has_warned = False  # of the class: once in a process

    #: kombu declares a queue's exchange right before the queue (kombu/entity.py: `Queue.declare`).
    _declared: str | None = None

    def exchange_declare(self, exchange: str | None = None, *args: Any, **kwargs: Any) -> None:
        """Note an exchange, and that the next queue may be for it: bindings come after the queue."""
        super().exchange_declare(exchange, *args, **kwargs)
        self._declared = exchange

    def queue_declare(self, *args: Any, **kwargs: Any) -> Any:
        """Create the queue if it is missing."""
        try:
            return super().queue_declare(*args, **kwargs)
        finally:
            self._declared = None

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Bind the queue. One of Celery's own, whose names change, has no place in the exchange's table."""
        if exchange and use_here(exchange):
            state: Any = self.state
            state.binding_declare(queue, exchange, routing_key, arguments)
        else:
            super().queue_bind(queue, exchange, routing_key, arguments, **kwargs)

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any) -> Any:
        """Publish the message: a command at once, in a block of `publish_batch` too, a reply by a thread.

        An event goes to the monitors that listen.
        """
        use = use_here(exchange) if exchange and self._has_control else use_of(exchange)
        if use is None or (use is Use.EVENTS and not self._has_control):
            return super().basic_publish(message, exchange, routing_key, **kwargs)
        if not self._has_control:
            self._warn()
        elif use is Use.EVENTS:
            self.context.control.events.publish(exchange, message)
        elif use is Use.REPLIES:
            self.context.control.reply(exchange, routing_key, message)
        else:
            self._broadcast(exchange, message)
        return None

    def after_reply_message_received(self, queue: str) -> None:
        """Forget the binding. The queue itself serves this process's next command."""
        state: Any = self.state
        state.queue_bindings_delete(queue)

    def _broadcast(self, exchange: str, message: dict[str, Any]) -> None:
        """Send the command. kombu would repeat it for ever, without a pause, at an error that passes.

        It publishes commands with `retry`, but without a policy (kombu/pidbox.py: `Mailbox._publish`).
        """
        try:
            self.context.control.broadcast(exchange, message)
        except AccessDeniedError as error:
            raise shown_in_one_line(error, EX_NOPERM) from error
        except RETRIED_ERRORS as error:
            not_sent = CommandNotSentError(f"the command to the workers was not sent: {error}")
            raise shown_in_one_line(not_sent, EX_UNAVAILABLE) from error
        except SQSError as error:
            raise shown_in_one_line(error, EX_UNAVAILABLE) from error

    @property
    def _has_control(self) -> bool:
        return bool(self.context.options.remote_control)

    def _new_queue(self, queue: str, **kwargs: Any) -> None:
        """Make the queue; one of Celery's own only when it is consumed, or replies are about to come."""
        exchange = self._own_exchange_of(queue, self._declared)
        if exchange is None:
            super()._new_queue(queue, **kwargs)
        elif not self._has_control:
            error = RemoteControlError(f"remote control is off here: {REMEDY}")
            raise shown_in_one_line(error, EX_UNAVAILABLE)
        elif use_of(exchange) is Use.REPLIES:
            self.context.control.expect_replies(exchange)

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        """Delete the queue; Celery's own are deleted where they are no longer consumed."""
        if self._own_exchange_of(queue) is None:
            super()._delete(queue, *args, **kwargs)

    def _consume_control(self, queue: str, deliver: Callable[[dict[str, Any]], object]) -> bool:
        """Have a queue of Celery's own consumed; whether it is one."""
        if not self._has_control or (exchange := self._own_exchange_of(queue)) is None:
            return False
        handle = self._handle_command if use_of(exchange) is Use.COMMANDS else self._handle
        buffer = self._transport.buffer

        def put(payload: dict[str, Any], is_in_time: Callable[[], bool]) -> None:
            buffer.put_errand(partial(handle, queue, deliver, payload, is_in_time))

        self.context.control.consume(queue, exchange, put, lambda: buffer.errands >= MOST_ERRANDS)
        return True

    def _cancel_control(self, queue: str) -> bool:
        """Have it consumed no longer; whether it is one of Celery's own."""
        if not self._has_control or (exchange := self._own_exchange_of(queue)) is None:
            return False
        self.context.control.cancel(queue, exchange)
        return True

    def _own_exchange_of(self, queue: str, declared: str | None = None) -> str | None:
        """The exchange of Celery's own that the queue is bound to. The queue's name tells nothing.

        A task queue's exchange is named like the queue. `declared` is the exchange of a queue not bound yet.
        """
        bound = [declared] if declared else [each.exchange for each in self.state.queue_bindings(queue)]
        return next((each for each in bound if each != queue and use_here(each)), None)

    def _handle(
        self,
        queue: str,
        deliver: Callable[[dict[str, Any]], object],
        payload: dict[str, Any],
        is_in_time: Callable[[], bool],
    ) -> bool:
        """Deliver to the consumer that it came for, unless that has gone; whether it was delivered."""
        registered = self._transport._callbacks.get(queue)  # noqa: SLF001 - as in `basic_consume`
        # kombu takes away the callback of all consumers of a queue that one of them cancels: it is used on.
        if registered is not deliver and (registered or queue not in self._active_queues):
            self.context.control.hand_on(queue, payload, is_in_time)
            return False
        if in_time := is_in_time():
            deliver(payload)
        return in_time

    def _handle_command(self, *args: Any) -> bool:
        """Nothing that a command raises ends the event loop, but a shutdown."""
        try:
            return self._handle(*args)
        except SystemExit:
            if self.context.on_remote_shutdown is None:
                raise
            self.context.on_remote_shutdown()
        except Exception:
            logger.exception("a command of remote control failed; continuing")
        return True

    def _warn(self) -> None:
        if not ControlChannel._has_warned:
            ControlChannel._has_warned = True
            logger.warning(DROPPED, REMEDY)

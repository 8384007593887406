"""A worker's answers to commands, which threads of their own send: Celery's event loop waits for none."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.aws.process_lock import ProcessLock
from celery_sqs_visibility.control import wire
from celery_sqs_visibility.control.queues import ControlQueues
from celery_sqs_visibility.errors import PASSING_ERRORS, QueueDoesNotExistError, SQSError, TooLargeError
from celery_sqs_visibility.events import emit
from celery_sqs_visibility.measurements import ReplyDropped

logger = logging.getLogger(__name__)

#: A reply is sent again after these seconds: SQS may not see a new queue for a second.
REPLY_PAUSES_SECONDS: Final = (0.1, 0.2, 0.3, 0.3, 0.5, 0.6)

#: Most replies that a process sends at once.
REPLY_THREADS: Final = 4


class ReplySender:
    """Those of a process. Any thread."""

    def __init__(self, queues: ControlQueues) -> None:
        self._queues = queues
        self._lock = ProcessLock()  # guards what follows
        self._threads: ThreadPoolExecutor | None = None

    def send(self, exchange: str, routing_key: str, message: dict[str, Any]) -> None:
        """Send a worker's answer, in another thread. A caller that has gone gets none."""
        address, _, collector = routing_key.partition(".")
        url = self._queues.url_of(exchange, address)
        if url is None:
            logger.warning("dropped the reply to a command, since %r is no address of one", routing_key)
            emit(ReplyDropped())
            return
        reply, reply_id = wire.body_of(message), wire.new_id()
        try:
            text = wire.encode(message, reply, exchange, collector, message_id=reply_id)
        except TooLargeError as error:
            errors = {node: {"error": f"the reply cannot be sent: {error}"} for node in reply}
            text = wire.encode(message, errors, exchange, collector, message_id=reply_id)
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(REPLY_THREADS, "sqs-control-reply")
            self._threads.submit(self._send, url, text)

    def close(self) -> None:
        """Send no more than what is under way."""
        with self._lock:
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False)

    def _send(self, url: str, text: str) -> None:
        """One of the threads."""
        for seconds in (*REPLY_PAUSES_SECONDS, None):
            try:
                self._queues.sqs.send(url, OutgoingMessage(text, repeatable=True))
            except (*PASSING_ERRORS, QueueDoesNotExistError) as error:
                if seconds is None:
                    logger.info("dropped the reply to a command, since its caller has gone: %s", error)
                    emit(ReplyDropped())
                    return
                threading.Event().wait(seconds)
            except SQSError as error:
                logger.warning("cannot send the reply to a command: %s", error)
                emit(ReplyDropped())
                return
            else:
                return

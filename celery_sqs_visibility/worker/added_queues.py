"""Queues that `celery control add_consumer` adds: one that is refused is left out, and ends no worker.

Celery answers the command before its event loop adds the queue, and an error there would end the worker, with
each other one that got the command. Celery's main thread; asks SQS for the queue.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from celery.utils.log import get_logger

from celery_sqs_visibility.contacts.worker import add_queues_by
from celery_sqs_visibility.errors import SQSVisibilityError

logger = get_logger(__name__)

LEFT_OUT: Final = (
    "queue %r, which add_consumer names, is not consumed: %s. Send the command again once that is mended"
)


class AddedQueues:
    """Adds queues to a worker's `celery.worker.consumer.Consumer` while it runs."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._add = add_queues_by(consumer, self.add)

    def add(self, queue: str, *args: Any, **options: Any) -> None:
        """Consume the queue, or log why not."""
        queues = self._consumer.app.amqp.queues
        known = queue in queues
        try:
            self._add(queue, *args, **options)
        except Exception as error:
            self._consumer.cancel_task_queue(queue)  # or the worker would wait for it as it connects anew
            if not known:
                queues.pop(queue, None)  # or the next command could not define it otherwise
            unknown = not isinstance(error, SQSVisibilityError)  # whose sentence says all
            logger.log(logging.ERROR, LEFT_OUT, queue, repr(error) if unknown else error, exc_info=unknown)

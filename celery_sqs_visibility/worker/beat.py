"""beat's start: with wrong settings it ends, with one sentence.

Celery's beat connects when its first task is due, and logs a traceback for each that it cannot publish,
without end (celery/beat.py: `Scheduler.apply_entry`).
"""

from __future__ import annotations

from typing import Any

from celery.platforms import EX_FAILURE
from celery.utils.log import get_logger

from celery_sqs_visibility.errors import AccessDeniedError, QueueDoesNotExistError, SQSError
from celery_sqs_visibility.transport.transport import Transport
from celery_sqs_visibility.worker.refusals import passes, reason_and_remedy

logger = get_logger(__name__)


def check_settings(app: Any) -> None:
    """Look for the default queue, where the app is on our transport. beat's thread.

    One request, and the first publication to that queue makes one less.

    Raises:
        SystemExit: SQS cannot be used with these settings. Celery's signals let no other exception through.
    """
    with app.connection_for_write() as connection:
        if not isinstance(connection.transport, Transport):
            return
        context = connection.transport.context
        find = context.queues.ensure if context.options.predefined_queues else context.queues.find
        try:
            find(app.conf.task_default_queue)
        except (AccessDeniedError, QueueDoesNotExistError):
            pass  # SQS is there, and beat may publish to other queues
        except SQSError as error:
            if not passes(error):
                logger.critical("beat cannot start: %s", reason_and_remedy(error))
                raise SystemExit(EX_FAILURE) from None

"""beat's start: with wrong settings it ends, with one sentence.

Celery's beat connects when its first task is due, and logs a traceback for each that it cannot publish,
without end (celery/beat.py: `Scheduler.apply_entry`).
"""

from __future__ import annotations

from typing import Any, NoReturn

from celery.platforms import EX_FAILURE
from celery.utils.log import get_logger

from celery_sqs_visibility.errors import (
    CredentialsRefusedError,
    OptionError,
    RequestRefusedError,
    SQSError,
    TLSError,
)
from celery_sqs_visibility.transport.broker_context import BrokerContext
from celery_sqs_visibility.transport.transport import Transport
from celery_sqs_visibility.worker.refusals import passes, reason_and_remedy

logger = get_logger(__name__)


def check_settings(app: Any) -> None:
    """Look for the default queue, where the app is on our transport. beat's thread.

    One request, and the first publication to that queue makes one less.

    Raises:
        SystemExit: SQS cannot be used with these settings. Celery's signals let no other exception through.
    """
    try:
        with app.connection_for_write() as connection:
            if isinstance(connection.transport, Transport):
                _find_default_queue(connection.transport.context, app.conf.task_default_queue)
    except OptionError as error:
        _end(str(error))
    except SQSError as error:
        if _is_about_settings(error):
            _end(reason_and_remedy(error))


def _find_default_queue(context: BrokerContext, name: str) -> None:
    find = context.queues.ensure if context.options.predefined_queues else context.queues.find
    find(name)


def _is_about_settings(error: SQSError) -> bool:
    """Whether nothing can be published. A refusal by SQS is about one queue, and there may be others."""
    if isinstance(error, (CredentialsRefusedError, TLSError)):
        return not passes(error)
    return isinstance(error, RequestRefusedError) and not hasattr(error.__cause__, "response")


def _end(reason: str) -> NoReturn:
    logger.critical("beat cannot start: %s", reason)
    raise SystemExit(EX_FAILURE) from None

"""The loggers of boto3 and what it uses, in a worker: quiet unless somebody has set their level.

Celery gives the root logger the level of `-l` (celery/app/log.py: `Logging.setup_logging_subsystem`), and a
logger without a level of its own takes that. botocore then writes some hundred lines a request at DEBUG, and
two a client at INFO. To have them, set a level, in Celery's signal `after_setup_logger` for one:
`logging.getLogger("botocore").setLevel(logging.DEBUG)`.
"""

from __future__ import annotations

import logging
from typing import Final

from celery import signals

LOGGERS: Final = ("boto3", "botocore", "s3transfer", "urllib3")


def quiet_dependencies() -> None:
    """Have them write warnings and errors only. In a worker, after Celery has set up its logging.

    A level that somebody has set stays. Who sets up logging in place of Celery decides about levels, too.
    """
    if signals.setup_logging.receivers:
        return
    for logger in map(logging.getLogger, LOGGERS):
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.WARNING)

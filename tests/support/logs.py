"""Logging as a user may break it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


def broken(record: logging.LogRecord) -> bool:
    """A user's filter, with a bug: `logging` lets through what it raises."""
    raise RuntimeError("a filter's bug")


@contextmanager
def a_filter_that_raises() -> Iterator[None]:
    """On every logger of the package."""
    names = [name for name in logging.root.manager.loggerDict if name.startswith("celery_sqs_visibility")]
    loggers = [logging.getLogger(name) for name in names]
    for logger in loggers:
        logger.addFilter(broken)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(broken)

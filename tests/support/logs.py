"""Logging as a user may break it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


class BrokenFilter(logging.Filter):
    """A user's, with a bug: `logging` lets through what it raises."""

    def filter(self, record: logging.LogRecord) -> bool:
        raise RuntimeError("a filter's bug")


@contextmanager
def a_filter_that_raises() -> Iterator[None]:
    """On every logger of the package."""
    broken = BrokenFilter()
    loggers = [
        logging.getLogger(name)
        for name in list(logging.root.manager.loggerDict)
        if name.startswith("celery_sqs_visibility")
    ]
    for logger in loggers:
        logger.addFilter(broken)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(broken)

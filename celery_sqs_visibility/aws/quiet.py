"""botocore's own log lines, each of them once: our errors say what went wrong, in the caller's words."""

from __future__ import annotations

import logging
from typing import Final

#: Their lines repeat with every client that is made, or with every request while credentials cannot be
#: renewed, the latter with a traceback.
LOGGERS: Final = ("botocore.credentials", "botocore.configprovider", "botocore.tokens", "botocore.utils")


class Once(logging.Filter):
    """Lets a sentence pass the first time, without its traceback, and DEBUG always."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter.filter`. Any thread; two that come at once may both pass."""
        if record.levelno <= logging.DEBUG:
            return True
        said = str(record.msg) in self._said
        self._said.add(str(record.msg))
        record.exc_info = None
        return not said


_once: Final = Once()


def quiet_botocore() -> None:
    """Have botocore say everything once in this process. Idempotent."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_once)

"""kombu's attempts to publish: how many failed in a row, for the interval before the next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from weakref import WeakKeyDictionary

from celery_sqs_visibility.errors import PASSING_ERRORS, CredentialsRefusedError

#: kombu publishes again after these: errors that pass, and refused credentials, which rotation may replace.
RETRIED_ERRORS: Final = (*PASSING_ERRORS, CredentialsRefusedError)


class PublishAttempts:
    """The attempts of one kombu Connection, which one thread at a time uses.

    Attributes:
        failed: how many in a row failed with one of `RETRIED_ERRORS`.
    """

    failed = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count an attempt, or a part of one, that fails inside."""
        try:
            yield
        except RETRIED_ERRORS:
            self.failed += 1
            raise


#: By kombu's Connection, which makes a new Transport and a new Channel before each retry.
_attempts: WeakKeyDictionary[Any, PublishAttempts] = WeakKeyDictionary()


def attempts_of(connection: Any) -> PublishAttempts:
    """The attempts of a kombu Connection so far."""
    return _attempts.setdefault(connection, PublishAttempts())

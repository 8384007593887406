"""botocore says the same thing once a process, and without tracebacks."""

from __future__ import annotations

import logging

from celery_sqs_visibility.aws.quiet import Once, quiet_botocore


def record(message, level=logging.WARNING):
    return logging.LogRecord(
        "botocore.x", level, __file__, 1, message, ("a",), (ValueError, ValueError(), None)
    )


def test_a_sentence_passes_once_without_its_traceback_and_debug_always():
    once = Once()
    first = record("Refreshing credentials failed during %s period.")
    assert once.filter(first)
    assert first.exc_info is None
    assert not once.filter(record("Refreshing credentials failed during %s period."))
    assert once.filter(record("Another"))
    assert once.filter(record("Another", logging.DEBUG))
    assert once.filter(record("Another", logging.DEBUG))


def test_doing_it_twice_filters_once():
    quiet_botocore()
    quiet_botocore()
    assert len([f for f in logging.getLogger("botocore.credentials").filters if isinstance(f, Once)]) == 1

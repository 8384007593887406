"""What the bytes of a message cause is its fault; all else passes."""

import bz2
import json
import sys

import pytest
from kombu.exceptions import DecodeError

from celery_sqs_visibility.errors import UnavailableError, UnreadableError
from celery_sqs_visibility.policy.passing_errors import passes


def error_of(function, *args):
    try:
        function(*args)
    except Exception as error:  # noqa: BLE001 - any
        return error
    raise AssertionError


def wrapped(error):
    outer = DecodeError(error)
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        wrapped(MemoryError()),
        OSError(24, "Too many open files"),
        ConnectionResetError(),
        TimeoutError("timed out"),
        UnavailableError("no answer"),
        wrapped(UnavailableError("no answer")),
    ],
)
def test_what_has_its_cause_here_passes(error):
    assert passes(error)


@pytest.mark.parametrize(
    "error",
    [
        UnreadableError("no"),
        ValueError("no"),
        KeyError("zap"),
        wrapped(ZeroDivisionError()),
        error_of(bz2.decompress, b"no bzip2 stream"),  # an OSError
        error_of(json.loads, "[" * 200_000),  # a RecursionError
    ],
)
def test_what_the_bytes_cause_does_not(error):
    assert not passes(error)


def test_a_recursion_error_of_a_deep_stack_of_ours_passes():
    def deep(levels):
        return passes(RecursionError()) if levels == 0 else deep(levels - 1)

    assert deep(sys.getrecursionlimit() * 2 // 3)
    assert not deep(1)

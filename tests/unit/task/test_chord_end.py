"""SIGTERM waits in a pool's process while its run, a chord's member, is at its end."""

from __future__ import annotations

import signal
import threading

import pytest

from celery_sqs_visibility.task import chord_end


@pytest.fixture
def told(monkeypatch):
    """The signals that the pool's own handler got."""
    numbers = []

    def handler(number, _frame):
        numbers.append(number)

    monkeypatch.setattr(chord_end, "POOLS_HANDLER", handler)
    before = signal.signal(signal.SIGTERM, handler)
    yield numbers
    chord_end.end()
    signal.signal(signal.SIGTERM, before)


def test_sigterm_waits_for_the_end_of_the_run(told):
    chord_end.begin()
    assert chord_end.is_at_end(threading.get_ident())
    signal.raise_signal(signal.SIGTERM)
    assert told == []
    chord_end.end()
    assert told == [signal.SIGTERM]
    assert not chord_end.is_at_end(threading.get_ident())
    chord_end.begin()
    chord_end.end()
    signal.raise_signal(signal.SIGTERM)
    assert told == [signal.SIGTERM] * 2, "it waited once, and does not wait between two runs"


def test_a_handler_of_another_process_is_left_alone(told):
    def celerys(_number, _frame):
        pass

    signal.signal(signal.SIGTERM, celerys)
    chord_end.begin()
    assert signal.getsignal(signal.SIGTERM) is celerys
    chord_end.end()
    assert signal.getsignal(signal.SIGTERM) is celerys
    assert told == []


def test_a_run_that_never_came_to_its_end_has_none(told):
    chord_end.end()
    assert told == []
    assert not chord_end.is_at_end(None)

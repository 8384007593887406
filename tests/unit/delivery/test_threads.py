"""A thread is started, or its absence is told; nobody is surprised by an exception."""

from __future__ import annotations

import queue
import threading
from weakref import WeakSet

import pytest
from support.processes import SOON

from celery_sqs_visibility.delivery.threads import copy_of, start_thread


def test_a_thread_runs_with_its_arguments_and_name_and_keeps_no_process_alive():
    seen = queue.SimpleQueue()
    thread = start_thread(lambda *args: seen.put((args, threading.current_thread())), "sqs-test", 1, 2)
    assert seen.get(timeout=SOON) == ((1, 2), thread)
    assert thread.name == "sqs-test"
    assert thread.daemon


def test_where_the_system_has_no_more_threads_there_is_none(monkeypatch):
    def no_more(_thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_more)
    assert start_thread(print, "sqs-test") is None


class Member:
    """Of a weak set."""


def test_a_set_to_which_another_thread_adds_meanwhile_is_copied_anew():
    first, added = Member(), [Member() for _ in range(10)]

    class Changing(WeakSet):
        def __iter__(self):
            for member in super().__iter__():
                self.update(added)
                yield member

    members = Changing([first])
    with pytest.raises(RuntimeError):
        list(members)
    members = Changing([first])
    assert set(copy_of(members)) == {first, *added}

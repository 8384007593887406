"""A thread is started, or its absence is told; nobody is surprised by an exception."""

import queue
import signal
import threading

import pytest
from support.processes import SOON

from celery_sqs_visibility.delivery import threads
from celery_sqs_visibility.delivery.threads import COPY_ATTEMPTS, is_main_thread, snapshot, start_thread


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


def test_a_thread_that_has_no_memory_to_begin_is_none_and_nobody_waits_for_it(monkeypatch):
    # As where the first call in the new thread raises MemoryError: Python prints it and ends the thread.
    monkeypatch.setattr(threading.Thread, "_bootstrap", lambda self: None)
    monkeypatch.setattr(threads, "START_SECONDS", 0.01)
    assert start_thread(print, "sqs-test") is None


def test_a_thread_that_begins_after_it_was_given_up_does_nothing(monkeypatch):
    bootstrap, given_up, ended, ran = threading.Thread._bootstrap, threading.Event(), threading.Event(), []

    def stalled(thread):
        given_up.wait(SOON)
        bootstrap(thread)
        ended.set()

    monkeypatch.setattr(threading.Thread, "_bootstrap", stalled)
    monkeypatch.setattr(threads, "START_SECONDS", 0.01)
    assert start_thread(ran.append, "sqs-test", 1) is None
    given_up.set()
    assert ended.wait(SOON)
    assert ran == []


def test_a_set_to_which_another_thread_adds_meanwhile_is_copied_anew():
    class Changing(set):
        def __iter__(self):
            for member in super().__iter__():
                self.update(range(10))
                yield member

    with pytest.raises(RuntimeError):
        list(Changing(["first"]))
    assert set(snapshot(Changing(["first"]))) == {"first", *range(10)}


def test_a_set_that_never_rests_is_not_copied_for_ever():
    class Changing(set):
        def __iter__(self):
            for member in super().__iter__():
                self.add(len(self))
                yield member

    changing = Changing(["first"])
    with pytest.raises(RuntimeError):
        snapshot(changing)
    assert len(changing) == 1 + COPY_ATTEMPTS


@pytest.mark.parametrize("handler", [signal.SIG_DFL, None], ids=["Python's", "not Python's"])
def test_the_main_thread_is_known_whoever_handles_sigint(monkeypatch, handler):
    monkeypatch.setattr(signal, "getsignal", lambda _number: handler)
    monkeypatch.setattr(signal, "signal", refuse_threads)
    told = queue.SimpleQueue()
    start_thread(lambda: told.put(is_main_thread()), "sqs-test")
    assert not told.get(timeout=SOON)
    assert is_main_thread()


def refuse_threads(_number, _handler):
    """As Python's own, and changes nothing."""
    if threading.current_thread() is not threading.main_thread():
        raise ValueError


def test_python_itself_says_which_thread_is_the_main_one():
    told = queue.SimpleQueue()
    start_thread(lambda: told.put(is_main_thread()), "sqs-test")
    assert not told.get(timeout=SOON)
    assert is_main_thread() is (threading.current_thread() is threading.main_thread())

"""Each process makes its own clients."""

import os
import threading

import pytest

from celery_sqs_visibility.aws import process_lock
from celery_sqs_visibility.aws.process_lock import ProcessClients, shared_property


def test_a_client_is_made_when_first_needed_and_anew_after_it_was_discarded():
    clients = ProcessClients(object)
    assert clients.discard() is None
    first = clients.get()
    assert clients.get() is first
    assert clients.discard() is first
    assert clients.get() is not first


def test_a_child_has_a_client_of_its_own_and_discards_no_other(monkeypatch):
    clients = ProcessClients(object)
    parents = clients.get()
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        assert clients.get() is not parents
        clients.discard()
    assert clients.get() is parents


def test_what_threads_share_is_made_once_while_others_wait():
    made = []

    class Shared:
        @shared_property
        def part(self):
            """Another thread finds the lock taken."""
            lock = process_lock._MAKING._by_pid[os.getpid()]
            other = threading.Thread(target=lambda: made.append(lock.acquire(blocking=False)))
            other.start()
            other.join()
            return object()

    shared = Shared()
    assert shared.part is shared.part
    assert made == [False]
    assert isinstance(Shared.part, shared_property)


def test_a_client_that_cannot_be_made_is_tried_again():
    settings = []
    clients = ProcessClients(settings.pop)
    with pytest.raises(IndexError):
        clients.get()
    settings.append("client")
    assert clients.get() == "client"

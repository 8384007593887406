"""Each process makes its own clients."""

from __future__ import annotations

import os

import pytest

from celery_sqs_visibility.aws.process_lock import ProcessClients


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


def test_a_client_that_cannot_be_made_is_tried_again():
    settings = []
    clients = ProcessClients(settings.pop)
    with pytest.raises(IndexError):
        clients.get()
    settings.append("client")
    assert clients.get() == "client"

"""A consumer gets each message once, and those that came while there was none."""

from __future__ import annotations

import pytest

from celery_sqs_visibility.control.inbox import Mailbox


def is_in_time():
    return True


@pytest.fixture
def got():
    return []


@pytest.fixture
def put(got):
    return lambda payload, may_run: got.append((payload["n"], may_run))


def test_messages_that_come_before_the_consumer_wait_for_it_in_their_order(put, got):
    mailbox = Mailbox()
    for number in range(3):
        mailbox.put({"n": number}, is_in_time)
    assert (mailbox.is_open, got) == (False, [])
    mailbox.open(put)
    assert mailbox.is_open
    assert got == [(0, is_in_time), (1, is_in_time), (2, is_in_time)]


def test_messages_that_waited_are_given_to_one_consumer_only(put, got):
    mailbox = Mailbox()
    mailbox.put({"n": 1}, is_in_time)
    for _ in range(2):
        mailbox.open(put)
    assert got == [(1, is_in_time)]


def test_a_consumer_gets_its_messages_at_once_and_when_it_is_gone_they_wait_for_the_next(put, got):
    mailbox = Mailbox()
    mailbox.open(put)
    mailbox.put({"n": 1}, is_in_time)
    assert got == [(1, is_in_time)]
    mailbox.close()
    mailbox.put({"n": 2}, is_in_time)
    assert (mailbox.is_open, len(got)) == (False, 1)
    mailbox.open(put)
    mailbox.put({"n": 3}, is_in_time)
    assert [number for number, _ in got] == [1, 2, 3]


def test_a_message_that_is_received_twice_is_delivered_once_and_one_that_is_handed_on_again(put, got):
    mailbox = Mailbox()
    mailbox.open(put)
    for message_id, number in (("a", 1), ("a", 1), ("b", 2)):
        mailbox.deliver(message_id, {"n": number}, is_in_time)
    assert got == [(1, is_in_time), (2, is_in_time)]
    mailbox.put({"n": 1}, is_in_time)
    assert len(got) == 3


def test_the_present_consumer_says_whether_its_backlog_is_full(put):
    assert not Mailbox().is_full()
    mailbox = Mailbox()
    mailbox.open(put, lambda: True)
    assert mailbox.is_full()
    mailbox.open(put, lambda: False)
    assert not mailbox.is_full()
    mailbox.open(put, lambda: True)
    assert mailbox.is_full()

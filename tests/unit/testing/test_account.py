"""Accounts made of events."""

import threading

import pytest

from celery_sqs_visibility import events
from celery_sqs_visibility.events import DeliveryFacts, emit
from celery_sqs_visibility.testing import Accounts, LetterFacts
from celery_sqs_visibility.testing.diary import Diary

FACTS = DeliveryFacts("orders", "m1", 1, 0.0, "shop.charge", "t1")
ENDED = [
    events.Received(FACTS),
    events.Started(FACTS),
    events.Failed(FACTS, 1, "ValueError()", 10, last=False),
    events.Hidden(FACTS, 10),
    events.DeadLettered(FACTS, "it failed"),
    events.Deleted(FACTS),
]


@pytest.fixture
def accounts():
    accounts = Accounts()
    accounts.start()
    yield accounts
    accounts.stop()


def test_an_account_has_what_happened_to_one_task(accounts):
    for event in ENDED:
        emit(event)
    emit(events.Started(DeliveryFacts("orders", "m2", 1, 0.0, "shop.charge", "t2")))
    emit(events.Started(DeliveryFacts("orders", "m3", 1, 0.0)))
    account = accounts.of("t1")
    assert (account.receives, account.runs, account.failures) == (1, 1, ["ValueError()"])
    assert account.hidden == [10]
    assert account.dead_letter == LetterFacts("it failed", "orders")
    assert account.deleted
    assert account.ended
    assert accounts.so_far("t2").runs == 1
    assert str(accounts.so_far("t4")) == "nothing happened to it so far"


def test_it_waits_for_the_end_and_no_longer(accounts):
    threading.Timer(0.05, lambda: [emit(event) for event in ENDED]).start()
    assert accounts.of("t1", timeout=20).ended


def test_a_message_that_comes_back_after_its_deletion_has_not_ended(accounts):
    for event in [*ENDED, events.Received(FACTS)]:
        emit(event)
    assert not accounts.so_far("t1").ended


def test_what_does_not_come_is_told_with_what_came(accounts):
    emit(ENDED[0])
    told = r"waited 0.05 s for the message of t1:\nReceived \(receive 1, seconds 0\)"
    with pytest.raises(TimeoutError, match=told):
        accounts.of("t1", timeout=0.05)


def test_accounts_read_the_diaries_of_others(tmp_path):
    diary = Diary(tmp_path / "diary")
    accounts = Accounts(Diary(diary.path).read)
    threading.Timer(0.05, lambda: [diary.write(event) for event in ENDED]).start()
    assert accounts.of("t1", timeout=20).events == ENDED


def test_listening_ends(accounts):
    accounts.stop()
    emit(ENDED[0])
    assert accounts.so_far("t1").receives == 0

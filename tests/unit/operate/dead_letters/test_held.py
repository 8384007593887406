from __future__ import annotations

from celery_sqs_visibility.errors import OverLimitError, UnavailableError


def test_every_message_is_seen_once_and_given_back(site):
    ids = {site.add() for _ in range(25)}
    assert {letter.id for letter in site.receive()} == ids
    assert site.messages(site.letters) == []
    assert site.held.release() == 0
    assert len(site.messages(site.letters)) == 10
    assert site.receive() == []  # seen


def test_what_is_held_is_extended_until_it_is_given_back(site):
    site.add()
    site.receive()
    for _ in range(5):
        site.clock.advance(70)
        site.held.extend()
    assert site.messages(site.letters) == []
    site.clock.advance(121)
    assert len(site.messages(site.letters)) == 1  # the command was killed


def test_what_is_held_is_extended_while_time_passes(site):
    site.add()
    site.receive()

    def pass_time(seconds):
        site.clock.advance(seconds)
        return False

    site.stop.wait = pass_time
    site.held.wait(400)
    assert site.messages(site.letters) == []


def test_nothing_is_received_once_it_is_stopped(site):
    for _ in range(20):
        site.add()
    batches = site.held.batches()
    assert len(next(batches)) == 10
    site.stop.set()
    assert list(batches) == []
    assert len(site.held) == 10


def test_more_in_flight_than_sqs_allows_ends_the_look(site):
    site.add()
    site.sqs.fail_next("ReceiveMessage", OverLimitError("too many"))
    assert site.receive() == []


def test_what_sqs_does_not_give_back_is_counted(site):
    site.add()
    site.receive()
    site.sqs.fail_next("ChangeMessageVisibilityBatch", UnavailableError("gone"))
    assert (site.held.release(), str(site.held.problem)) == (1, "gone")


def test_of_a_batch_sqs_may_refuse_single_messages(site):
    for _ in range(3):
        site.add()
    site.receive()
    site.sqs.fail_next("ChangeMessageVisibilityBatch", UnavailableError("busy"), 1)
    assert (site.held.release(), str(site.held.problem)) == (1, "busy")
    assert len(site.messages(site.letters)) == 2

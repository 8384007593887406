"""A look at dead letters goes by SQS's clock, and knows which ids it has not seen."""

from __future__ import annotations

import json
import os
import sys

import pytest

from celery_sqs_visibility.errors import UnavailableError
from celery_sqs_visibility.operate.dead_letters import session as module
from celery_sqs_visibility.operate.dead_letters.command import _told
from celery_sqs_visibility.operate.dead_letters.letter import Selection
from celery_sqs_visibility.operate.dead_letters.moves import Moves
from celery_sqs_visibility.operate.dead_letters.session import Session, find_place, session_of


def look(site, monkeypatch, ahead=None, **selection):
    """The ids of the letters that a retry takes, and those that it misses."""
    monkeypatch.setattr(module, "clock_offset", lambda _endpoint: ahead)
    monkeypatch.setattr(module, "SYSTEM_CLOCK", site.clock)
    with session_of(site.place, Selection(**selection), None) as session:
        site.clock.advance(1)
        return [letter.id for batch in session.batches() for letter in batch], session.missing()


@pytest.mark.parametrize(("ahead", "is_taken"), [(None, False), (0.9, False), (-120.0, True)])
def test_letters_of_a_moment_ago_are_taken_by_sqs_clock(site, monkeypatch, ahead, is_taken):
    letter = site.add()  # not before this machine's clock says so
    assert look(site, monkeypatch, ahead) == ([letter] if is_taken else [], [])


def test_a_letter_that_an_id_names_is_taken_whatever_the_clocks_say(site, monkeypatch):
    letter = site.add()
    assert look(site, monkeypatch, ids=[letter[:8], "not-there"]) == ([letter], ["not-there"])


def test_what_an_id_names_is_not_taken_again_when_it_fails_anew(site, monkeypatch):
    monkeypatch.setattr(module, "clock_offset", lambda _endpoint: None)
    monkeypatch.setattr(module, "SYSTEM_CLOCK", site.clock)
    site.add(task_id="a-task-of-a")
    taken = 0
    with session_of(site.place, Selection(ids=["a-task-o"]), None) as session:
        for batch in session.batches():
            taken += len(batch)
            site.add(task_id="a-task-of-a")
    assert taken == 1


def test_letters_that_a_killed_command_has_left_hidden_are_told_of(site, monkeypatch, capsys):
    letter = site.add()
    with session_of(site.place, Selection(), None) as session:
        assert [each.id for batch in session.batches() for each in batch] == [letter]
        monkeypatch.setattr(session.held, "release", lambda: 0)  # as if it had been killed
    anew = find_place(site.context, site.place.source.name, None)
    with session_of(anew, Selection(), None) as session:
        assert list(session.batches()) == []
    assert "Left out: 1 message of 'dead' that somebody else has received" in capsys.readouterr().err


@pytest.mark.parametrize("exception", [None, "Trouble"])
def test_letters_that_arrive_meanwhile_are_left_and_do_not_keep_a_look_from_its_end(
    site, monkeypatch, capsys, exception
):
    monkeypatch.setattr(module, "clock_offset", lambda _endpoint: None)
    monkeypatch.setattr(module, "SYSTEM_CLOCK", site.clock)
    ids = {site.add(exception="Trouble: in vain") for _ in range(24)}
    site.clock.advance(1)
    receive, requests = site.sqs.receive, []

    def arriving(*arguments):
        requests.append(1)
        assert len(requests) < 50, "it does not end"
        for _ in range(11):
            site.add(exception="Trouble: in vain")
        return receive(*arguments)

    monkeypatch.setattr(site.sqs, "receive", arriving)
    with session_of(site.place, Selection(exception=exception), None) as session:
        assert listed(session) == ids
    assert len(requests) <= 3 + module.MAX_REPEATS
    assert "Left out: 36 dead letters that came after this command began" in capsys.readouterr().err
    assert "NotVisible': '0'" in str(site.sqs.queue_attributes(site.letters, ["All"]))


def listed(session):
    return {letter.id for batch in session.batches() for letter in batch}


def test_two_looks_at_once_each_say_how_many_letters_the_other_has(site, monkeypatch, capsys):
    ids = {site.add() for _ in range(15)}
    with session_of(site.place, Selection(), None) as first:
        batch = next(first.batches())
        anew = find_place(site.context, site.place.source.name, None)
        with session_of(anew, Selection(), None) as second:
            assert len(listed(second)) == 5
        assert "Left out: 10 messages of 'dead' that somebody else has received" in capsys.readouterr().err
        assert listed(first) == ids - {letter.id for letter in batch}
    assert capsys.readouterr().err == "", "the first saw all in the end"


def test_letters_that_another_look_gave_back_too_late_are_told_of(site, monkeypatch, capsys):
    for _ in range(15):
        site.add()
    with session_of(site.place, Selection(), None) as first:
        next(first.batches())
        anew = find_place(site.context, site.place.source.name, None)
        with session_of(anew, Selection(), None) as second:
            assert len(listed(second)) == 5
            first.held.release()
    assert "Left out: 10 messages of 'dead'" in capsys.readouterr().err


@pytest.mark.parametrize("limit", [None, 3])
def test_what_a_look_has_seen_left_or_deleted_is_nobody_elses(site, capsys, limit):
    for _ in range(15):
        site.add()
    with session_of(site.place, Selection(), limit) as session:
        for batch in session.batches():
            session.held.forget([letter.id for letter in batch])  # though SQS still counts them
    assert capsys.readouterr().err == ""


@pytest.fixture
def twelve(make_site):
    """A site with twelve letters of one FIFO group."""
    site = make_site(".fifo")
    for number in range(12):
        site.add(task=f"proj.add{number}", group="g")
    return site


@pytest.mark.parametrize(("task", "seen"), [(None, 10), ("proj.add11", 0)])
def test_letters_behind_others_of_their_fifo_group_are_nobody_elses_and_told_of(twelve, capsys, task, seen):
    with session_of(twelve.place, Selection(task=task), None) as session:
        assert len(listed(session)) == seen
    assert capsys.readouterr().err == module.BEHIND.format("2 messages", "dead.fifo") + "\n"


def test_letters_behind_those_that_are_enough_are_not_told_of(twelve, capsys):
    with session_of(twelve.place, Selection(), 5) as session:
        assert len(listed(session)) == 5
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("task", [None, "proj.add11"])
def test_no_match_is_claimed_of_letters_behind_others_only_where_they_were_reached(twelve, capsys, task):
    with session_of(twelve.place, Selection(task=task), None) as session:
        moves = Moves(twelve.place, session.held, session.stop)
        with _told("deleted", moves.outcome, session, as_json=False):
            for batch in session.batches():
                moves.delete(batch)
    said = capsys.readouterr()
    if task:
        assert said.out == "No dead letters match, of those that SQS gives: none were deleted.\n"
    else:
        assert (said.out, said.err) == ("12 dead letters were deleted.\n", "")


@pytest.mark.parametrize(
    ("typed", "agreed"), [("y\n", True), ("YES\n", True), ("n\n", False), ("\n", False), ("", False)]
)
def test_letters_stay_hidden_while_an_answer_is_waited_for(site, monkeypatch, typed, agreed):
    reader, writer = os.pipe()
    extensions = []

    def extend():
        extensions.append(1)
        if len(extensions) == 3:
            os.write(writer, typed.encode())
            os.close(writer)

    monkeypatch.setattr(module, "ANSWER_SECONDS", 0)
    monkeypatch.setattr(site.held, "extend", extend)
    with os.fdopen(reader) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        look = Session(site.place, Selection(), None, site.held, site.stop)
        assert look.agrees("Send?") is agreed
    assert len(extensions) == 3


def test_nothing_is_agreed_once_the_command_is_to_end(site):
    site.stop.set()
    assert not Session(site.place, Selection(), None, site.held, site.stop).agrees("Send?")


def test_nothing_is_agreed_where_nobody_can_answer(site, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert not Session(site.place, Selection(), None, site.held, site.stop).agrees("Send?")


def test_what_counts_the_others_messages_may_fail_at_the_end(site, capsys):
    site.add()
    site.messages(site.letters)  # somebody else has it
    with session_of(site.place, Selection(), None) as session:
        assert session.place.number_before == 1
        site.sqs.fail_next("GetQueueAttributes", UnavailableError("gone"))
    assert capsys.readouterr().err == ""


def test_letters_that_may_move_on_are_warned_of(site, capsys):
    arn = site.sqs.queue_attributes(site.queue, ["QueueArn"])["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3})
    site.sqs.set_queue_attributes(site.letters, {"RedrivePolicy": policy})
    with session_of(find_place(site.context, "orders", None), Selection(), None):
        assert "Warning: dead-letter queue 'dead' has a redrive policy of its own" in capsys.readouterr().err


def test_letters_that_could_not_be_given_back_are_told_of(site, capsys):
    site.add()
    with session_of(site.place, Selection(), None) as session:
        listed(session)
        site.sqs.fail_next("ChangeMessageVisibilityBatch", UnavailableError("gone"))
    assert "1 message could not be given back, to be visible again in 120 s: gone" in capsys.readouterr().err


def test_letters_of_other_queues_are_told_of(site, capsys):
    site.add(source_queue="other")
    with session_of(site.place, Selection(sources=site.place.source_names), None) as session:
        assert listed(session) == set()
    assert "Left out: 1 dead letter of other queues; --any-source takes them" in capsys.readouterr().err

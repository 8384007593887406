"""A look at dead letters: where they are, which it holds, and which it leaves out."""

import json
import os
import sys

import pytest
from support.factories import queue

from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    OverLimitError,
    QueueDoesNotExistError,
    UnavailableError,
)
from celery_sqs_visibility.operate.dead_letters import session as module
from celery_sqs_visibility.operate.dead_letters.letter import Selection
from celery_sqs_visibility.operate.dead_letters.moves import move_all
from celery_sqs_visibility.operate.dead_letters.session import Session, find_place, session_of
from celery_sqs_visibility.operate.invocation import CommandError


def test_without_a_policy_the_option_does(make_site):
    site = make_site(dead_letter_queue="dead")
    site.sqs.create_queue("plain", {}, {})
    place = find_place(site.context, "plain", None)
    assert (place.letters.url, place.is_of_policy) == (site.letters, False)
    with pytest.raises(CommandError, match="leave out --native"):
        move_all(place, None)


def test_a_queue_without_dead_letters_is_refused_and_one_that_is_named_is_taken(site):
    site.sqs.create_queue("plain", {}, {})
    with pytest.raises(CommandError, match="--dead-letter-queue"):
        find_place(site.context, "plain", None)
    assert find_place(site.context, "plain", "dead").letters.url == site.letters
    with pytest.raises(QueueDoesNotExistError):  # none is created
        find_place(site.context, "plain", "missing")


def test_a_right_that_is_missing_is_told(site):
    site.context.redrive = RedriveBook()  # another command's, which has not asked
    site.sqs.fail_next("GetQueueAttributes", AccessDeniedError("allow sqs:GetQueueAttributes"))
    with pytest.raises(AccessDeniedError):
        find_place(site.context, "orders", None)
    assert find_place(site.context, "orders", "dead").letters.url == site.letters


def test_a_letter_that_sqs_moved_from_another_queue_goes_back_there(site):
    other = queue(site.sqs, "other", letters=site.place.letters, most=1).url
    site.sqs.send(other, OutgoingMessage("{}"))
    for _ in range(2):
        site.messages(other)
        site.clock.advance(31)
    (letter,) = site.receive()
    assert site.place.target_of(letter).url == other


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


def test_of_a_batch_sqs_may_refuse_single_messages(site):
    for _ in range(3):
        site.add()
    site.receive()
    site.sqs.fail_next("ChangeMessageVisibilityBatch", UnavailableError("busy"), 1)
    assert (site.held.release(), str(site.held.problem)) == (1, "busy")
    assert len(site.messages(site.letters)) == 2


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
    assert capsys.readouterr().err.startswith("Left out: 2 messages of 'dead.fifo' behind others of their ")


def test_letters_behind_those_that_are_enough_are_not_told_of(twelve, capsys):
    with session_of(twelve.place, Selection(), 5) as session:
        assert len(listed(session)) == 5
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("typed", "agreed"), [("y\n", True), ("YES\n", True), ("n\n", False), ("", False)])
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


def test_nothing_is_agreed_where_nobody_can_answer_and_once_the_command_is_to_end(site, monkeypatch):
    look = Session(site.place, Selection(), None, site.held, site.stop)
    site.stop.set()
    assert not look.agrees("Send?")
    site.stop.clear()
    monkeypatch.setattr(sys, "stdin", None)
    assert not look.agrees("Send?")


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

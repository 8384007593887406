from __future__ import annotations

import json

import pytest

from celery_sqs_visibility.aws.port import MoveTask, OutgoingMessage
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.errors import AccessDeniedError, QueueDoesNotExistError, UnavailableError
from celery_sqs_visibility.operate.dead_letters import moves
from celery_sqs_visibility.operate.dead_letters.moves import move_all
from celery_sqs_visibility.operate.dead_letters.session import find_place
from celery_sqs_visibility.operate.invocation import CommandError


def test_the_redrive_policy_names_the_dead_letter_queue(site):
    assert (site.place.letters.url, site.place.is_of_policy) == (site.letters, True)
    assert not site.place.moves_on


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


def test_a_dead_letter_queue_that_moves_messages_on_is_known(site):
    arn = site.sqs.queue_attributes(site.queue, ["QueueArn"])["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3})
    site.sqs.set_queue_attributes(site.letters, {"RedrivePolicy": policy})
    assert find_place(site.context, "orders", None).moves_on


def test_sqs_moves_a_whole_queue(site):
    site.add()
    with pytest.raises(CommandError, match=r"--rate is 0\.5"):
        move_all(site.place, 0.5)
    assert move_all(site.place, 1.5) == {"moved": 1, "to": "orders"}
    assert len(site.messages(site.queue)) == 1
    (start,) = [arguments for action, arguments in site.sqs.calls if action == "StartMessageMoveTask"]
    assert start["per_second"] == 1


@pytest.mark.parametrize(("late_looks", "moved"), [(3, 2), (99, None)])
def test_a_task_that_ended_before_is_not_taken_for_the_one_that_begins(site, monkeypatch, late_looks, moved):
    site.add()
    move_all(site.place, None)
    site.clock.advance(1)
    for _ in range(2):
        site.add()
    latest = site.sqs.latest_move_task
    former = latest(site.place.letters.arn())
    looks = iter(range(late_looks))

    def look(arn):
        return latest(arn) if next(looks, None) is None else former

    monkeypatch.setattr(site.sqs, "latest_move_task", look)
    monkeypatch.setattr(moves, "LOOK_SECONDS", 0)
    if moved:
        assert move_all(site.place, None)["moved"] == moved
    else:
        with pytest.raises(CommandError, match="does not list the task"):
            move_all(site.place, None)


@pytest.mark.parametrize(
    ("end", "sentence"),
    [
        (
            MoveTask("FAILED", 1, 2, failure="AccessDenied"),
            "moved 1 message, and then: FAILED, AccessDenied",
        ),
        (MoveTask("CANCELLED", 2, 3), "SQS moved 2 messages, and then: CANCELLED, no reason given"),
        (KeyboardInterrupt(), "SQS goes on moving the messages; this command no longer watches it"),
    ],
    ids=["it fails", "somebody cancels it", "Ctrl-C"],
)
def test_a_move_that_is_not_seen_to_its_end_is_told(site, monkeypatch, end, sentence):
    looks = iter([None, UnavailableError("gone"), MoveTask("RUNNING"), end])

    def look(_arn):
        seen = next(looks)
        if isinstance(seen, BaseException):
            raise seen
        return seen

    monkeypatch.setattr(site.sqs, "latest_move_task", look)
    monkeypatch.setattr(moves, "LOOK_SECONDS", 0)
    with pytest.raises(CommandError, match=sentence):
        move_all(site.place, None)


def test_a_letter_that_sqs_moved_from_another_queue_goes_back_there(site):
    arn = site.sqs.queue_attributes(site.letters, ["QueueArn"])["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    other = site.sqs.create_queue("other", {"RedrivePolicy": policy}, {})
    site.sqs.send(other, OutgoingMessage("{}"))
    for _ in range(2):
        site.messages(other)
        site.clock.advance(31)
    (letter,) = site.receive()
    assert site.place.target_of(letter).url == other

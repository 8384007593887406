"""Redrive policies: asked seldom, done without when SQS does not tell."""

from __future__ import annotations

import json

import pytest

from celery_sqs_visibility.aws.fake import ACCOUNT, FakeSQS
from celery_sqs_visibility.aws.queues import Queues
from celery_sqs_visibility.aws.redrive import (
    REDRIVE_SECONDS,
    RETENTION,
    RETRY_SECONDS,
    Redrive,
    RedriveBook,
    parse_redrive_policy,
)
from celery_sqs_visibility.errors import AccessDeniedError, QueueDoesNotExistError, UnavailableError


@pytest.fixture
def sqs():
    return FakeSQS()


@pytest.fixture
def dead_letters(sqs):
    return sqs.create_queue("dead_letters", {}, {})


@pytest.fixture
def policy(sqs, dead_letters):
    return Redrive(4, sqs.queue_attributes(dead_letters, ["QueueArn"])["QueueArn"])


@pytest.fixture
def queue(sqs, policy):
    value = {"deadLetterTargetArn": policy.dead_letter_arn, "maxReceiveCount": 4}
    return Queues(sqs, attributes={"RedrivePolicy": json.dumps(value)}).find_or_create("a")


@pytest.fixture
def book():
    return RedriveBook()


def requests(sqs, action="GetQueueAttributes"):
    return [
        arguments
        for name, arguments in sqs.calls
        if name == action and arguments.get("names") != ["QueueArn"]
    ]


def test_the_policy_is_read_at_most_every_five_minutes(sqs, queue, policy, book):
    assert (book.peek(queue), book.knows(queue), requests(sqs)) == (None, False, [])
    assert book.get(queue, 0) == book.get(queue, REDRIVE_SECONDS - 1) == book.peek(queue) == policy
    assert book.knows(queue)
    assert len(requests(sqs)) == 1
    assert book.get(queue, REDRIVE_SECONDS) == policy
    assert len(requests(sqs)) == 2


@pytest.mark.parametrize(
    ("error", "asked_again"),
    [(AccessDeniedError("no"), REDRIVE_SECONDS), (UnavailableError("no answer"), RETRY_SECONDS)],
)
def test_an_error_keeps_what_was_known_and_sqs_is_asked_again_in_time(
    sqs, queue, policy, book, error, asked_again
):
    sqs.fail_next("GetQueueAttributes", error)
    assert book.get(queue, 0) is None
    assert book.get(queue, asked_again - 1) is None
    assert len(requests(sqs)) == 1
    assert book.get(queue, asked_again) == policy
    sqs.fail_next("GetQueueAttributes", error)
    assert book.get(queue, asked_again + REDRIVE_SECONDS) == policy


@pytest.mark.parametrize("error", [AccessDeniedError("no"), UnavailableError("no answer")])
def test_it_is_known_why_a_policy_is_not(sqs, queue, book, error):
    assert book.why_unknown(queue) is None  # nobody asked
    sqs.fail_next("GetQueueAttributes", error)
    book.get(queue, 0)
    assert book.why_unknown(queue) is error
    book.get(queue, REDRIVE_SECONDS)
    sqs.fail_next("GetQueueAttributes", error)
    book.get(queue, 2 * REDRIVE_SECONDS)
    assert book.why_unknown(queue) is None


@pytest.mark.parametrize(("retention", "expected"), [({}, 345_600), ({RETENTION: "60"}, 60)])
def test_the_retention_comes_with_the_policy(sqs, book, retention, expected):
    queue = Queues(sqs, attributes=retention).find_or_create("retained")
    assert book.retention(queue) == 345_600
    book.get(queue, 0)
    assert book.retention(queue) == expected


def test_a_queue_without_a_policy_has_none(sqs, book):
    plain = Queues(sqs).find_or_create("plain")
    assert book.get(plain, 0) is None
    assert book.dead_letter_queue(plain) is None


def test_the_dead_letter_queue_is_looked_up_once_in_its_account(sqs, queue, dead_letters, book):
    book.get(queue, 0)
    found = book.dead_letter_queue(queue)
    assert (found.name, found.url, found.sqs) == ("dead_letters", dead_letters, sqs)
    assert book.dead_letter_queue(queue) is found
    assert requests(sqs, "GetQueueUrl")[1:] == [{"name": "dead_letters", "owner": ACCOUNT}]


def test_a_dead_letter_queue_that_is_gone_is_an_error(sqs, queue, dead_letters, book):
    book.get(queue, 0)
    sqs.delete_queue(dead_letters)
    with pytest.raises(QueueDoesNotExistError):
        book.dead_letter_queue(queue)


def test_without_the_permission_to_look_for_it_the_dead_letter_queues_url_is_made_up(
    sqs, queue, dead_letters, book
):
    book.get(queue, 0)
    sqs.fail_next("GetQueueUrl", AccessDeniedError("no"))
    assert book.dead_letter_queue(queue).url == dead_letters


def test_a_plain_queue_is_for_queues_whose_policy_names_none(sqs, queue, dead_letters):
    plain, other = (Queues(sqs).find_or_create(name) for name in ("plain", "other"))
    book = RedriveBook(lambda: plain)
    assert book.has_dead_letter_queue(other)
    assert book.dead_letter_queue(other) is plain
    assert book.dead_letter_queue(queue) is plain  # as far as we know
    book.get(queue, 0)
    assert book.dead_letter_queue(queue).url == dead_letters


def test_a_queue_is_not_its_own_dead_letter_queue(sqs):
    plain = Queues(sqs).find_or_create("plain")
    assert RedriveBook(lambda: plain).dead_letter_queue(plain) is None


def test_a_plain_queue_that_cannot_be_had_is_told_by_the_name_of_its_option(sqs, queue):
    book = RedriveBook(lambda: Queues(sqs).find("nowhere"))
    other = Queues(sqs).find_or_create("other")
    with pytest.raises(
        QueueDoesNotExistError, match="option dead_letter_queue cannot be used: SQS has no queue"
    ):
        book.find_dead_letter_queue(other)
    book.get(queue, 0)
    book.find_dead_letter_queue(queue)  # has no need of it


@pytest.mark.parametrize(
    ("plain", "told"), [(None, "are kept"), (lambda: None, "go to the dead_letter_queue")]
)
def test_it_is_told_what_becomes_of_messages_where_the_policy_cannot_be_read(sqs, queue, caplog, plain, told):
    sqs.fail_next("GetQueueAttributes", AccessDeniedError("no"))
    RedriveBook(plain).get(queue, 0)
    assert told in caplog.text


@pytest.mark.parametrize(
    "value",
    [
        "",
        "not JSON",
        "[]",
        "null",
        "{}",
        '{"maxReceiveCount": 3}',
        '{"maxReceiveCount": "x", "deadLetterTargetArn": "a:b"}',
        '{"maxReceiveCount": 3, "deadLetterTargetArn": "no arn"}',
    ],
)
def test_a_policy_that_cannot_be_understood_is_none(value):
    assert parse_redrive_policy({"RedrivePolicy": value}) is None


def test_the_count_may_be_a_string():
    value = '{"maxReceiveCount": "3", "deadLetterTargetArn": "arn:aws:sqs:r:1:q"}'
    assert parse_redrive_policy({"RedrivePolicy": value}) == Redrive(3, "arn:aws:sqs:r:1:q")

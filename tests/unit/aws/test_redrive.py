"""Redrive policies: asked seldom, done without when SQS does not tell."""

import pytest
from support.clock import FakeClock
from support.factories import CrowdedSQS, requests
from support.factories import queue as make_queue

from celery_sqs_visibility.aws.fake import ACCOUNT
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
def dead_letters(sqs):
    return make_queue(sqs, "dead_letters")


@pytest.fixture
def policy(sqs, dead_letters):
    return Redrive(4, sqs.queue_attributes(dead_letters.url, ["QueueArn"])["QueueArn"])


@pytest.fixture
def queue(sqs, dead_letters):
    return make_queue(sqs, "a", letters=dead_letters, most=4)


@pytest.fixture
def plain(sqs):
    return make_queue(sqs, "plain")


@pytest.fixture
def book():
    return RedriveBook()


def times_asked(queue):
    return [asked["queue_url"] for asked in requests(queue.sqs, "GetQueueAttributes")].count(queue.url)


def test_the_policy_is_read_at_most_every_five_minutes(queue, policy, book):
    assert (book.peek(queue), book.knows(queue), times_asked(queue)) == (None, False, 0)
    assert book.get(queue, 0) == book.get(queue, REDRIVE_SECONDS - 1) == book.peek(queue) == policy
    assert (book.knows(queue), times_asked(queue)) == (True, 1)
    assert book.get(queue, REDRIVE_SECONDS) == policy
    assert times_asked(queue) == 2


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
    assert times_asked(queue) == 1
    assert book.get(queue, asked_again) == policy
    sqs.fail_next("GetQueueAttributes", error)
    assert book.get(queue, asked_again + REDRIVE_SECONDS) == policy


@pytest.mark.parametrize(("attributes", "retention"), [({}, 345_600), ({RETENTION: "60"}, 60)])
def test_a_queue_without_a_policy_has_none_but_a_retention(sqs, book, attributes, retention):
    queue = make_queue(sqs, "plain", **attributes)
    assert book.retention(queue) == 345_600
    assert book.get(queue, 0) is None
    assert book.retention(queue) == retention
    assert book.dead_letter_queue(queue) is None


def test_the_dead_letter_queue_is_looked_up_once_in_its_account(sqs, queue, dead_letters, book):
    book.get(queue, 0)
    found = book.dead_letter_queue(queue)
    assert (found.name, found.url, found.sqs) == ("dead_letters", dead_letters.url, sqs)
    assert book.dead_letter_queue(queue) is found
    assert requests(sqs, "GetQueueUrl") == [{"name": "dead_letters", "owner": ACCOUNT}]


def test_a_dead_letter_queue_that_is_gone_is_an_error_unless_the_permission_to_look_is_missing(
    sqs, queue, dead_letters, book
):
    book.get(queue, 0)
    sqs.delete_queue(dead_letters.url)
    with pytest.raises(QueueDoesNotExistError):
        book.dead_letter_queue(queue)
    sqs.fail_next("GetQueueUrl", AccessDeniedError("no"))
    assert book.dead_letter_queue(queue).url == dead_letters.url, "made up"


def test_a_plain_queue_is_for_other_queues_whose_policy_names_none(sqs, queue, plain, dead_letters):
    other = make_queue(sqs, "other")
    book = RedriveBook(lambda _: lambda: plain)
    assert book.has_dead_letter_queue(other)
    assert book.dead_letter_queue(other) is plain
    assert book.dead_letter_queue(plain) is None
    assert book.dead_letter_queue(queue) is plain  # as far as we know
    book.get(queue, 0)
    assert book.dead_letter_queue(queue).url == dead_letters.url


def test_a_plain_queue_that_cannot_be_had_is_told_by_the_name_of_its_option(sqs, queue, plain):
    book = RedriveBook(lambda _: lambda: Queues(sqs).find("nowhere"))
    sentence = "option dead_letter_queue cannot be used: SQS has no queue"
    with pytest.raises(QueueDoesNotExistError, match=sentence):
        book.find_dead_letter_queue(plain)
    book.get(queue, 0)
    book.find_dead_letter_queue(queue)  # has no need of it


@pytest.mark.parametrize(
    ("dead_letter_queue", "told"), [(None, "are kept"), (lambda: None, "go to the dead_letter_queue")]
)
def test_it_is_told_what_becomes_of_messages_where_the_policy_cannot_be_read(
    sqs, queue, caplog, dead_letter_queue, told
):
    sqs.fail_next("GetQueueAttributes", AccessDeniedError("no"))
    RedriveBook(lambda _: dead_letter_queue).get(queue, 0)
    assert told in caplog.text


NOT_POLICIES = ["", "not JSON", "[]", "null", "{}", '{"maxReceiveCount": 3}']


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((value, None) for value in NOT_POLICIES),
        ('{"maxReceiveCount": "x", "deadLetterTargetArn": "a:b"}', None),
        ('{"maxReceiveCount": 3, "deadLetterTargetArn": "no arn"}', None),
        ('{"maxReceiveCount": "3", "deadLetterTargetArn": "arn:aws:q"}', Redrive(3, "arn:aws:q")),
    ],
)
def test_a_policy_that_cannot_be_understood_is_none_though_its_count_may_be_a_string(value, expected):
    assert parse_redrive_policy({"RedrivePolicy": value}) == expected


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


def test_a_dead_letters_receives_in_its_source_are_those_that_its_policy_allows(queue, dead_letters, book):
    source = queue.sqs.queue_attributes(queue.url, ["QueueArn"])["QueueArn"]
    for receives, in_source in [(5, 4), (6, 4), (9, 4), (3, 2)]:
        assert book.receives_in_source(dead_letters, source, receives, 0.0) == in_source
    assert times_asked(queue) == 1 + 1, "once, and once by this test"


def test_where_the_policy_of_the_source_may_not_be_read_the_least_receives_tell(
    queue, dead_letters, book, caplog
):
    source = queue.sqs.queue_attributes(queue.url, ["QueueArn"])["QueueArn"]
    queue.sqs.fail_next("GetQueueAttributes", AccessDeniedError("no"))
    told = [book.receives_in_source(dead_letters, source, receives, 0.0) for receives in (6, 7, 5, 6)]
    assert told == [5, 5, 4, 4]
    assert caplog.text == ""


def test_a_queue_near_its_quota_in_flight_is_told_once_each_time_that_it_comes_near(book):
    sqs = CrowdedSQS(FakeClock())
    queue, now, told = make_queue(sqs), 0, []
    for sqs.in_flight in (95_999, 96_000, 119_500, 95_000, 119_500):
        book.get(queue, now)
        told += [book.pop_many_in_flight(queue), book.pop_many_in_flight(queue)]
        now += REDRIVE_SECONDS
    assert told == [None, None, 96_000, None, None, None, None, None, 119_500, None]
    assert times_asked(queue) == 5, "by requests that ask for the policy"

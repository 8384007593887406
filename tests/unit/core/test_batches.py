"""Each settlement ends once, is sent in time, and shares its requests; without a lock, a clock or SQS."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import factories
from support.factories import TIMEOUT

from celery_sqs_visibility.core.batches import PendingSettlement, SettlementBatches
from celery_sqs_visibility.core.settlements import RELEASE, Delete, Hide, Why
from celery_sqs_visibility.errors import (
    AnswerLostError,
    ReceiptHandleInvalidError,
    RequestRefusedError,
    ThrottledError,
)
from celery_sqs_visibility.policy import backoff
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES, HORIZON_MARGIN_SECONDS

NOW, WINDOW = 1000.0, 0.02
QUEUES = factories.sqs_queue("standard"), factories.sqs_queue("ordered.fifo")
SETTLEMENTS = [Delete(), Hide(5), Hide(700, Why.PARKED), RELEASE]
ERRORS = [
    None,
    None,
    ThrottledError("slow down"),
    AnswerLostError("closed"),
    ReceiptHandleInvalidError("gone"),
]
number = itertools.count()
STANDARD, ORDERED = QUEUES
THROTTLED, LOST, INVALID = ERRORS[2:]
PAUSES = 0.2, 0.4  # after the first failure, and the second


@pytest.fixture
def batches(monkeypatch):
    monkeypatch.setattr(backoff.random, "uniform", lambda _shortest, longest: longest)
    return SettlementBatches(WINDOW)


def submit(batches, settlement, count=1, queue=STANDARD, **instants):
    """Deliveries that are settled so at one instant."""
    deliveries = [factories.delivery(queue, handle=f"h{next(number)}", now=NOW) for _ in range(count)]
    for delivery in deliveries:
        vars(delivery).update(instants)
        batches.add(PendingSettlement(delivery, settlement, NOW))
    return deliveries


def request(batches, now, *errors, since=None):
    """The next request, which ends with these errors; how many it has, and what ended."""
    batch = batches.take(now)
    failed = {i: error for i, error in enumerate(errors) if error}
    ended = batches.answered(batch, failed, now if since is None else since, now)
    batches.unfinished -= len(ended) + len(batch.late)
    return len(batch), [(one.delivery, error) for one, error in ended]


@given(
    submissions=st.lists(st.tuples(st.sampled_from(QUEUES), st.sampled_from(SETTLEMENTS)), max_size=60),
    chance=st.randoms(use_true_random=False),
)
def test_whatever_fails_each_settlement_ends_once_and_nothing_is_changed_too_late(submissions, chance):
    batches, now, ended, under_way = SettlementBatches(WINDOW), NOW, [], []
    added = [
        PendingSettlement(factories.delivery(queue, handle=f"h{next(number)}", now=NOW), settlement, NOW)
        for queue, settlement in submissions
    ]
    for one in added:
        batches.add(one)
    while batches.unfinished:
        due = batches.due(now)
        if due is not None and due <= now:
            batch = batches.take(now)
            if batch is None:  # what is tried again lingers for others from now on
                assert batches.due(now) is None or batches.due(now) > now
                continue
            assert len(batch.settlements) + len(batch.late) <= BATCH_ENTRIES
            assert len({one.delivery.queue for one in [*batch.settlements, *batch.late]}) == 1
            for one in batch.settlements:
                assert not one.failures or one.since < one.delivery.deadline, "it is too late for another try"
                assert isinstance(one.settlement, Delete) or now < one.delivery.deadline, "others may have it"
            under_way.append((batch, now))
        if under_way and (due is None or due > now or chance.random() < 0.5):
            now += chance.choice([0, 0.05, TIMEOUT])  # as the process stands still
            batch, since = under_way.pop(chance.randrange(len(under_way)))
            errors = {i: chance.choice(ERRORS) for i in range(len(batch))}
            over = batches.answered(batch, {i: error for i, error in errors.items() if error}, since, now)
            ended += [one.delivery for one, _ in over] + [one.delivery for one in batch.late]
            batches.unfinished -= len(over) + len(batch.late)
        elif due is not None and due > now:
            now = due
    assert sorted(map(id, ended)) == sorted(id(one.delivery) for one in added)
    assert batches.due(now) is None
    assert batches.take(now) is None


@pytest.mark.parametrize(
    ("settlement", "queue", "count", "windows"),
    [
        (Delete(), STANDARD, 1, 1),
        (Delete(), STANDARD, 2, 5),
        (Delete(), STANDARD, BATCH_ENTRIES - 1, 5),
        (Delete(), STANDARD, BATCH_ENTRIES, 0),
        (Delete(), ORDERED, 2, 1),
        (Hide(5), STANDARD, 2, 1),
    ],
)
def test_a_request_lingers_until_it_is_full_and_longest_where_nobody_waits(
    batches, settlement, queue, count, windows
):
    assert (batches.due(NOW), batches.take(NOW)) == (None, None)
    submit(batches, settlement, count, queue)
    due = NOW + windows * WINDOW
    assert batches.due(NOW) == pytest.approx(due)
    assert not windows or batches.take(due - 0.001) is None
    batches.flushing = 1
    assert batches.due(NOW) == NOW, "nothing lingers while somebody waits for all"
    batches.flushing = 0
    batch = batches.take(due + 1e-9)
    assert (batch.origin.queue, batch.origin.kind, len(batch)) == (queue, type(settlement), count)
    assert batches.take(due + 60) is None


def test_full_requests_go_first_come_first_served_and_one_busy_queue_does_not_keep_the_others_waiting(
    batches,
):
    assert batches.ready() == 1
    submit(batches, Delete(), 25)
    submit(batches, Hide(5), 20)
    assert batches.ready() == 2 + 2
    batches.flushing = 1
    taken = list(iter(lambda: batches.take(NOW), None))
    assert [(batch.origin.kind, len(batch)) for batch in taken] == [
        *[(Delete, 10), (Hide, 10)] * 2,
        (Delete, 5),
    ]


def test_there_is_news_of_a_first_settlement_and_of_a_full_batch(batches):
    news = [batches.news]
    for _ in range(22):
        batches.news = False
        submit(batches, Delete())
        news.append(batches.news)
    assert news == [i in {1, 10, 20} for i in range(23)]


@pytest.mark.parametrize("error", [None, THROTTLED], ids=["over", "tried again"])
def test_there_is_news_of_what_is_tried_again(batches, error):
    submit(batches, Delete())
    batches.news = False
    request(batches, NOW + WINDOW, error)
    assert batches.news is (error is not None)


def test_failed_settlements_are_tried_again_after_one_pause_and_share_a_request(batches):
    first, second, third = submit(batches, Delete(), 3)
    assert request(batches, NOW + 1, THROTTLED, None, THROTTLED) == (3, [(second, None)])
    at = NOW + 1 + PAUSES[0]
    assert batches.due(NOW + 1) == at
    batches.flushing = 1
    assert batches.take(at - 0.001) is None
    batches.flushing = 0
    assert batches.take(at) is None, "they linger anew"
    assert batches.due(at) == at + 5 * WINDOW
    (late,) = submit(batches, Delete())
    assert request(batches, at + 1, THROTTLED, None) == (3, [(third, None), (late, None)])
    assert batches.due(NOW) == at + 1 + PAUSES[1], "the pause grows with the failures in a row"
    batches.take(at + 1 + PAUSES[1])
    assert request(batches, at + 3) == (1, [(first, None)])
    assert batches.unfinished == 0


@pytest.mark.parametrize("left", [0, 0.001])
def test_what_cannot_be_tried_again_before_its_deadline_has_failed(batches, left):
    (one,) = submit(batches, Hide(5), deadline=NOW + 1 + PAUSES[0] + left)
    assert request(batches, NOW + 1, THROTTLED) == (1, [] if left else [(one, THROTTLED)])


def test_after_its_deadline_a_message_is_deleted_and_not_changed_otherwise(batches):
    (deleted,) = submit(batches, Delete(), deadline=NOW + 1)
    assert request(batches, NOW + 2) == (1, [(deleted, None)])
    (hidden,) = submit(batches, Hide(5), deadline=NOW + 1)
    batch = batches.take(NOW + 1)
    assert (batch.settlements, [one.delivery for one in batch.late]) == ([], [hidden])


@pytest.mark.parametrize(
    ("settlement", "queue", "answer_lost", "error", "ends_with"),
    [
        (Delete(), STANDARD, True, INVALID, None),
        (Delete(), STANDARD, False, INVALID, INVALID),
        (Delete(), ORDERED, True, INVALID, INVALID),
        (Hide(50), STANDARD, True, INVALID, INVALID),
        (Delete(), STANDARD, True, (refused := RequestRefusedError("no")), refused),
    ],
)
def test_a_handle_is_refused_as_invalid_where_an_earlier_delete_worked_whose_answer_was_lost(
    batches, settlement, queue, answer_lost, error, ends_with
):
    (one,) = submit(batches, settlement, queue=queue)
    request(batches, NOW + 1, LOST if answer_lost else THROTTLED)
    assert request(batches, NOW + 3, error) == (1, [(one, ends_with)])


def test_what_was_hidden_by_a_request_whose_answer_was_lost_is_ours_for_as_long_as_that_says(batches):
    released, hidden = *submit(batches, RELEASE), *submit(batches, Hide(50))
    assert request(batches, NOW + 1, LOST, LOST, since=NOW) == (2, [(released, LOST)])
    assert request(batches, NOW + 11, LOST) == (1, [])
    batch = batches.take(NOW + 50)
    assert (batch.settlements, [one.delivery for one in batch.late]) == ([], [hidden])


@pytest.mark.parametrize(
    ("horizon", "seconds"),
    [(NOW + 700, 50), (NOW + HORIZON_MARGIN_SECONDS + 40.5, 40), (NOW + 1, 0)],
)
def test_nothing_is_hidden_beyond_the_horizon(batches, horizon, seconds):
    submit(batches, Hide(50, Why.PARKED), horizon=horizon)
    batches.flushing = 1
    (one,) = batches.take(NOW).settlements
    assert (one.settlement, one.seconds) == (Hide(seconds, Why.PARKED), seconds)
    submit(batches, Delete())
    assert batches.take(NOW).settlements[0].seconds == 0

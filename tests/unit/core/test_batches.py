"""Each settlement ends once, is sent in time, and shares its requests; without a lock, a clock or SQS."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
from support import factories
from support.factories import TIMEOUT

from celery_sqs_visibility.core.batches import PendingSettlement, SettlementBatches
from celery_sqs_visibility.core.settlements import RELEASE, DeadLetter, Delete, Hide, Why
from celery_sqs_visibility.errors import AnswerLostError, ReceiptHandleInvalidError, ThrottledError
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES

NOW, WINDOW = 1000.0, 0.02
QUEUES = factories.sqs_queue("standard"), factories.sqs_queue("ordered.fifo")
SETTLEMENTS = [Delete(), Hide(5), Hide(700, Why.PARKED), RELEASE, DeadLetter("broken", "body", Hide(9))]
ERRORS = [
    None,
    None,
    ThrottledError("slow down"),
    AnswerLostError("closed"),
    ReceiptHandleInvalidError("gone"),
]
number = itertools.count()


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
                assert not batch.origin.in_order or not any(
                    each.origin is batch.origin for each, _ in under_way
                )
            under_way.append((batch, now))
        if under_way and (due is None or due > now or chance.random() < 0.5):
            now += chance.choice([0, 0.05, TIMEOUT])  # as the process stands still
            batch, since = under_way.pop(chance.randrange(len(under_way)))
            errors = {i: chance.choice(ERRORS) for i in range(len(batch))}
            over = batches.answered(batch, {i: error for i, error in errors.items() if error}, since, now)
            ended += [one.delivery for one, _ in over] + [one.delivery for one in batch.late]
            batches.finish(batch, len(over) + len(batch.late))
        elif due is not None and due > now:
            now = due
    assert sorted(map(id, ended)) == sorted(id(one.delivery) for one in added)
    assert batches.due(now) is None
    assert batches.take(now) is None

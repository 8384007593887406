"""What is no task: kept, but for the head of a FIFO group, which the others wait behind."""

from __future__ import annotations

import pytest
from support.clock import FakeClock

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.delivery.hold.redelivery import RedeliveryIndex
from celery_sqs_visibility.delivery.model import DeadLetter, Delete, Delivery, Hide, Lapse, Release
from celery_sqs_visibility.delivery.receive.decoder import Decoder
from celery_sqs_visibility.delivery.settle.dead_letters import KEPT
from celery_sqs_visibility.delivery.settle.rejection import Rejection
from celery_sqs_visibility.errors import AccessDeniedError
from celery_sqs_visibility.events import Facts
from celery_sqs_visibility.policy.attempts import RECEIVES_OF_NO_TASK, SECONDS_OF_AN_UNKNOWN_TASK

FIRST = 1_700_000_000.0


class World:
    def __init__(self, name="q.fifo", *, plain=False, policy=None, on_exhausted="delete", may_read=True):
        self.clock = FakeClock()
        self.sqs = FakeSQS(self.clock)
        attributes = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
        if policy:
            attributes["RedrivePolicy"] = policy
        self.queue = Queue(name, self.sqs.create_queue(name, attributes, {}), self.sqs)
        graves = Queue("graves.fifo", "memory://graves.fifo", self.sqs)
        redrive = RedriveBook((lambda: graves) if plain else None)
        if not may_read:
            self.sqs.fail_next("GetQueueAttributes", AccessDeniedError("no"))
        redrive.get(self.queue, self.clock.monotonic())
        redeliveries = RedeliveryIndex(120, self.clock)
        decoder = Decoder(lambda *_: None, 120, None, self.clock, self, redeliveries)
        self.failures = Rejection(redrive, decoder, on_exhausted, redeliveries)
        self.settled = []

    def settle(self, delivery, settlement):
        self.settled.append(settlement)
        return True

    def refuse(self, receive_count, *, seconds=0.0, others_may=False):
        """What becomes of it, and what otherwise if no dead-letter queue takes it."""
        facts = Facts("q", "m1", receive_count, FIRST, group="g", received=FIRST + seconds)
        delivery = Delivery(self.queue, "handle", facts, 1000.0, 1120.0, self)
        self.failures.refuse(delivery, "nobody can read it", "body", others_may=others_may)
        (settlement,) = self.settled
        return settlement.otherwise if isinstance(settlement, DeadLetter) else settlement


def test_what_is_no_task_comes_back_as_often_as_a_task_that_says_nothing():
    for receive_count in range(1, RECEIVES_OF_NO_TASK):
        assert World().refuse(receive_count) == Lapse()


def test_then_its_group_waits_for_it_no_longer_and_that_is_said(caplog):
    assert World().refuse(RECEIVES_OF_NO_TASK) == Delete()
    (told,) = [record for record in caplog.records if "its FIFO group waits behind it" in record.getMessage()]
    assert told.levelname == "ERROR"
    for fact in ("message_id=m1", "group=g", "nobody can read it"):
        assert fact in told.getMessage()


def test_a_standard_queue_keeps_it():
    assert World("q").refuse(1000, seconds=1e6) == Lapse()


def test_where_what_is_given_up_is_kept_it_is_kept():
    assert World(on_exhausted="keep").refuse(RECEIVES_OF_NO_TASK) == Hide(KEPT)


def test_where_nobody_told_the_redrive_policy_nothing_is_deleted():
    assert World(may_read=False).refuse(1000, seconds=1e6) == Lapse()


@pytest.mark.parametrize(("receive_count", "otherwise"), [(RECEIVES_OF_NO_TASK, Hide(KEPT)), (1, Lapse())])
def test_where_a_dead_letter_queue_is_named_it_is_not_deleted_without_a_copy(receive_count, otherwise):
    assert World(plain=True).refuse(receive_count) == otherwise


def test_where_its_dead_letter_queue_does_not_take_it_sqs_is_to_move_it():
    policy = '{"deadLetterTargetArn": "arn:aws:sqs:us-east-1:1:graves.fifo", "maxReceiveCount": 9}'
    assert World(policy=policy).refuse(RECEIVES_OF_NO_TASK) == Release()


@pytest.mark.parametrize(
    ("seconds", "becomes"),
    [(SECONDS_OF_AN_UNKNOWN_TASK - 1, Lapse()), (SECONDS_OF_AN_UNKNOWN_TASK, Delete())],
)
def test_another_worker_may_know_the_task_for_an_hour(seconds, becomes):
    assert World().refuse(50, seconds=seconds, others_may=True) == becomes

"""Which copies are sent together, and when no more are; without a lock, a clock or SQS."""

import pytest
from support import factories

from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.core.copies import (
    BATCHES_SIDE_BY_SIDE,
    CHECK_SECONDS,
    RECORDS_A_TURN,
    REMAINDER,
    PendingCopies,
    Sending,
)
from celery_sqs_visibility.core.settlements import RELEASE, Lapse, Purpose
from celery_sqs_visibility.errors import AccessDeniedError, RequestRefusedError, ThrottledError
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES, MESSAGE_BYTES

NOW, WINDOW, SPARE = 1000.0, 0.5, 20
QUEUE = factories.sqs_queue()


class Copying:
    """Pending copies, which note how often they look at the deadlines of originals."""

    def __init__(self, window=WINDOW, **how):
        self.looks = 0
        self.pending = PendingCopies(window, lambda _queue, size: size > 100, self.spare, **how)

    def spare(self, _delivery):
        self.looks += 1
        return SPARE

    def add(self, forward, now=NOW):
        delivery = factories.delivery(QUEUE, now=now)
        self.pending.add(delivery, forward, now)
        return delivery


def records(count, size=1, remainder=lambda _indices: None):
    return factories.split([OutgoingMessage("x" * size) for _ in range(count)], remainder)


@pytest.fixture
def copying():
    return Copying()


def test_copies_linger_until_a_batch_is_full_unless_somebody_waits_for_all(copying):
    pending = copying.pending
    assert (pending.due(NOW), pending.take(NOW)) == (None, None)
    copying.add(records(3))
    assert (pending.take(NOW + 0.1), pending.due(NOW + 0.1)) == (None, NOW + WINDOW)
    pending.flushing = 1
    assert pending.due(NOW + 0.1) == NOW + 0.1
    assert len(pending.take(NOW + 0.1)) == 3
    copying.add(records(BATCH_ENTRIES))
    pending.flushing = 0
    assert pending.due(NOW) == NOW
    assert pending.ready() == 2, "one more than there are, for the look at the originals"


def test_originals_are_looked_at_twice_a_second_while_something_is_to_be_sent(copying):
    pending = copying.pending
    copying.add(records(1))
    batch = pending.take(NOW + WINDOW)
    assert copying.looks == 1
    assert pending.due(NOW + WINDOW) == NOW + WINDOW + CHECK_SECONDS
    assert pending.take(NOW + WINDOW + CHECK_SECONDS - 0.01) is None
    assert copying.looks == 1
    assert pending.take(NOW + WINDOW + CHECK_SECONDS) is None
    assert copying.looks == 2
    pending.answered(batch, {}, NOW + 2)
    assert (pending.due(NOW + 2), pending.take(NOW + 9)) == (None, None)
    assert copying.looks == 2


@pytest.mark.parametrize(
    ("forward", "left", "stops"),
    [
        (records(1), SPARE + 0.1, False),
        (records(1), SPARE, True),
        (factories.letter(), 0.1, False),
        (factories.letter(), 0, True),
    ],
    ids=["records", "records too late", "a dead letter", "a dead letter too late"],
)
@pytest.mark.parametrize("reserve", [0, 5])
def test_nothing_is_begun_too_shortly_before_the_deadline(forward, left, stops, reserve):
    copying = Copying(reserve=reserve) if reserve else Copying()
    delivery = copying.add(forward)
    left += reserve if forward.purpose is Purpose.DEAD_LETTER else 0
    batch = copying.pending.take(delivery.deadline - left)
    assert len(batch) == (0 if stops else 1)


@pytest.mark.parametrize(("purpose", "together"), [("records", 1), ("waits", BATCH_ENTRIES)])
def test_only_records_go_to_s3_and_then_by_themselves(copying, purpose, together):
    for _ in range(BATCH_ENTRIES):
        copying.add(records(1, 101) if purpose == "records" else factories.renewal("x" * 101))
    copying.pending.flushing = 1
    assert len(copying.pending.take(NOW)) == together


def test_a_copy_that_nothing_takes_ends_its_sending_at_once_and_once(copying):
    pending = copying.pending
    copying.add(factories.renewal("x" * (MESSAGE_BYTES + 1)))
    assert pending.due(NOW) == NOW
    batch = pending.take(NOW)
    (ended,) = pending.answered(batch, {}, NOW)
    assert (len(batch), ended.left) == (0, [0])
    assert isinstance(ended.refusal, RequestRefusedError)
    copying.add(factories.renewal())
    pending.answered(pending.take(NOW + WINDOW), {}, NOW + WINDOW)
    assert ended.unsent == [0]


def test_nothing_is_sent_of_what_is_forgotten(copying):
    pending = copying.pending
    gone, *others = (copying.add(records(3)) for _ in range(3))
    pending.forget(gone)
    assert pending.unfinished == 2
    assert [sending.delivery for sending in pending.sendings] == others
    assert {copy.tag.sending.delivery for copy in pending.take(NOW + WINDOW).messages} == {*others}
    assert pending.take(NOW + WINDOW) is None


def test_the_error_of_a_copy_is_the_last_that_passes_or_its_own_refusal(copying):
    pending, slow, refused = copying.pending, ThrottledError("slow down"), RequestRefusedError("no")
    copying.add(factories.renewal())
    copying.add(factories.renewal())
    sendings = list(pending.sendings)
    assert pending.answered(pending.take(NOW + WINDOW), {0: slow, 1: slow}, NOW + WINDOW) == []
    assert [each.error for each in sendings] == [slow, slow]
    pending.flushing = 1
    batch = pending.take(NOW + 10)
    assert pending.answered(batch, {0: refused, 1: refused}, NOW + 10) == [], "one may be another's"
    assert [each.error for each in sendings] == [slow, slow]
    ended = []
    for error in (refused, None):
        failed = {} if error is None else {0: error}
        ended += pending.answered(pending.take(NOW + 11), failed, NOW + 11)
    assert [each.refusal for each in ended] == [refused, None]


@pytest.mark.parametrize("count", [RECORDS_A_TURN, RECORDS_A_TURN + 3])
def test_the_rest_of_a_long_event_is_made_one_message_of(count):
    asked = []
    sending = Sending(factories.delivery(QUEUE), records(count, remainder=asked.append))
    assert sending.most == count
    assert asked == ([] if count == RECORDS_A_TURN else [range(RECORDS_A_TURN, count)])


def test_where_the_message_for_the_rest_is_refused_too_the_event_comes_back():
    messages = [OutgoingMessage("a"), OutgoingMessage("b")]
    forward = factories.split(messages, lambda _: OutgoingMessage("left"), otherwise=RELEASE)
    sending = Sending(factories.delivery(QUEUE), forward)
    sending.begin()
    sending.note_sent(0, "id")
    sending.note_unsent(1, refused := AccessDeniedError("no"))
    assert sending.remainder() is not None
    sending.note_unsent(REMAINDER, refused)
    assert sending.settlement() == Lapse()


def test_the_message_that_stands_for_the_records_that_are_left_is_tried_once():
    delivery = factories.delivery(QUEUE)
    records = [OutgoingMessage(str(n)) for n in range(3)]
    sending = Sending(delivery, factories.split(records, lambda left: OutgoingMessage(f"left {list(left)}")))
    assert sending.begin() == [0, 1, 2]
    sending.note_sent(0, "id")
    sending.note_unsent(1, None)
    sending.note_unsent(2, None)
    assert sending.ended
    assert sending.remainder() == OutgoingMessage("left [1, 2]")
    sending.note_unsent(REMAINDER, None)
    assert sending.ended
    assert sending.remainder() is None
    assert sending.left == [1, 2]


@pytest.mark.parametrize(
    ("given_back", "sent", "settled"),
    [(False, 0, Lapse()), (True, 0, RELEASE), (True, 1, Lapse())],
    ids=["its visibility timeout brings it back", "the worker ends", "the worker ends, and some were sent"],
)
def test_an_original_whose_copies_were_not_refused_comes_back(given_back, sent, settled):
    records = [OutgoingMessage(str(n)) for n in range(2)]
    delivery = factories.delivery(QUEUE)
    sending = Sending(delivery, factories.split(records), given_back=given_back)
    for index in sending.begin():
        if index < sent:
            sending.note_sent(index, "id")
        else:
            sending.note_unsent(index, None)
    assert sending.settlement() == settled


def test_nor_is_a_message_parked_whose_copy_was_not_refused():
    delivery = factories.delivery(QUEUE)
    sending = Sending(delivery, factories.renewal())
    (index,) = sending.begin()
    sending.note_unsent(index, None)
    assert sending.settlement() == Lapse()


def test_of_an_event_as_many_records_are_under_way_as_there_may_be_and_no_more():
    records = [OutgoingMessage(str(n)) for n in range(100)]
    sending = Sending(factories.delivery(QUEUE), factories.split(records))
    assert sending.begin() == list(range(BATCH_ENTRIES))
    assert sending.begin() == []
    sending.note_sent(0, "id")
    sending.begin()
    assert len(sending.under_way) == BATCH_ENTRIES * BATCHES_SIDE_BY_SIDE

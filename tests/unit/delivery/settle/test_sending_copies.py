"""Copies go out in batches, side by side; nothing is sent twice that was sent, whatever interrupts it."""

import pytest
from support import factories
from support.clock import FakeClock
from support.factories import DELETES, TIMEOUT

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.core.copies import (
    BATCHES_SIDE_BY_SIDE,
    RECORDS_A_TURN,
    PendingCopies,
    Sending,
)
from celery_sqs_visibility.core.settlements import Delete, Hide, Lapse, Purpose
from celery_sqs_visibility.delivery.payloads.outgoing import OutgoingMessages
from celery_sqs_visibility.delivery.pump import InProgressBatch, Pump
from celery_sqs_visibility.delivery.settle.copies import Copies
from celery_sqs_visibility.delivery.settle.copy_permissions import CopyPermissions
from celery_sqs_visibility.delivery.settle.dead_letters import DeadLetters
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    RequestRefusedError,
    ThrottledError,
    UnavailableError,
    UnreadableError,
)
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES, MESSAGE_BYTES

BATCHES, SEND = "SendMessageBatch", "SendMessage"
SPARE = 20


class World:
    """Copies whose requests the test makes, on a clock that the test turns."""

    def __init__(self, name="q"):
        self.clock = FakeClock()
        self.sqs = FakeSQS(self.clock)
        self.queue = factories.queue(self.sqs, name)
        self.ended = []
        self.graves = factories.queue(self.sqs, name.replace("q", "graves"))
        outgoing, permissions = OutgoingMessages(), CopyPermissions(self.clock)
        self.copies = Copies(
            PendingCopies(0, outgoing.offloads, lambda _: SPARE),
            outgoing,
            permissions,
            DeadLetters(RedriveBook(lambda _: lambda: self.graves)),
            self.note_end,
            Pump(self.clock),
        )

    def note_end(self, sending):
        self.ended.append(sending)
        self.settled = self.copies.settlement(sending)

    def split(self, count, body="", **fields):
        """An event of so many records; what is left of it is told by its indices."""
        (delivery,) = factories.received(self.queue, 1, self.clock)
        fifo = {"group_id": "g"} if self.queue.fifo else {}
        records = [
            OutgoingMessage(f"{n}{body}", deduplication_id=str(n) if fifo else None, **fifo, **fields)
            for n in range(count)
        ]

        def remainder(indices):
            return OutgoingMessage(f"left {list(indices)}", deduplication_id="left" if fifo else None, **fifo)

        self.copies.submit(delivery, factories.split(records, remainder))
        return delivery

    def renew(self, *bodies):
        for body, delivery in zip(
            bodies, factories.received(self.queue, len(bodies), self.clock), strict=True
        ):
            self.copies.submit(delivery, factories.renewal(body))

    def take(self):
        return self.copies.take(self.clock.monotonic())

    def in_flight(self):
        """Take all requests that may be made side by side."""
        taken = []
        while (batch := self.take()) is not None:
            taken.append(batch)
        return taken

    def answer(self, batch):
        self.copies.conclude(batch, self.clock.monotonic(), self.send(batch))

    def send(self, batch):
        """Make the request, and leave its errors to be concluded."""
        now = self.clock.monotonic()
        return self.copies.lane._send(InProgressBatch(batch, now, now))

    def work_off(self, requests=10_000):
        for _ in range(requests):
            if not self.copies.lane.send_next():
                due = self.copies.due(self.clock.monotonic())
                if due is None:
                    return
                self.clock.advance(max(0, due - self.clock.monotonic()))

    def give_up(self, *bodies):
        """Dead letters with these bodies."""
        deliveries = factories.received(self.queue, len(bodies), self.clock)
        fifo = {"group_id": "g"} if self.queue.fifo else {}
        for body, delivery in zip(bodies, deliveries, strict=True):
            self.copies.submit(delivery, factories.letter(body, deduplication_id=body, **fifo))
        return deliveries

    def sent(self, queue=None):
        messages = self.sqs.queues[(queue or self.queue).url].messages
        return [message.body for message in messages if message.body != "task"]

    def requests(self, action):
        return len(factories.requests(self.sqs, action))


@pytest.fixture
def world():
    return World()


def numbers(*ranges):
    return [str(number) for each in ranges for number in each]


def test_seven_hundred_records_take_seventy_requests_and_one_question(world):
    world.split(700)
    world.work_off()
    assert world.sent() == numbers(range(700))
    assert (world.requests(BATCHES), world.requests(SEND), world.requests(DELETES)) == (70, 1, 1)
    (sending,) = world.ended
    assert sending.left == []


def test_the_first_batch_goes_alone_and_then_several_side_by_side(world):
    world.split(100)
    (first,) = world.in_flight()
    assert len(first) == BATCH_ENTRIES
    world.answer(first)
    side_by_side = world.in_flight()
    assert [len(batch) for batch in side_by_side] == [BATCH_ENTRIES] * BATCHES_SIDE_BY_SIDE
    for batch in reversed(side_by_side):
        world.answer(batch)
    assert sorted(map(int, world.sent())) == list(range(50))


def test_a_batch_has_a_mebibyte_at_the_most(world):
    world.split(4, "x" * (MESSAGE_BYTES // 3))
    world.work_off()
    assert world.requests(BATCHES) == 2
    assert len(world.sent()) == 4


def test_a_fifo_group_goes_one_after_the_other_also_when_one_is_tried_again():
    world = World("q.fifo")
    world.sqs.fail_next(BATCHES, ThrottledError("slow down"))
    world.split(25)
    world.work_off()
    assert world.sent() == numbers(range(25))


def test_copies_that_wait_share_requests_and_tell_their_ids(world):
    world.renew(*"abc")
    world.work_off()
    assert (world.requests(BATCHES), sorted(world.sent())) == (1, ["a", "b", "c"])
    ids = {message.body: message.id for message in world.sqs.queues[world.queue.url].messages}
    assert [(each.forward.messages[0].body, each.message_id) for each in world.ended] == [
        (body, ids[body]) for body in "abc"
    ]


@pytest.mark.parametrize("answered", range(6))
def test_an_interrupted_event_goes_on_as_one_message_where_it_stopped(world, answered):
    world.split(100)
    for _ in range(answered):
        world.answer(world.take())
    in_flight = [world.take()] if answered else []
    world.copies.interrupt(None, Purpose.RECORDS)
    for batch in in_flight:
        world.answer(batch)
    world.work_off()
    (sending,) = world.ended
    sent = 10 * (answered + len(in_flight))
    if not sent:
        assert (world.sent(), sending.given_back) == ([], True)
    else:
        assert world.sent() == [*numbers(range(sent)), f"left {list(range(sent, 100))}"]
        assert sending.left == []


def test_what_failed_of_a_batch_is_what_is_left(world):
    world.split(30)
    world.answer(world.take())
    world.sqs.fail_next(BATCHES, ThrottledError("slow down"), position=3)
    second, third = world.in_flight()
    world.answer(second)
    world.answer(third)
    world.copies.interrupt(None, Purpose.RECORDS)
    world.work_off()
    assert world.sent() == [*numbers(range(13), range(14, 30)), "left [13]"]


def test_what_fails_that_was_under_way_as_the_process_ends_is_not_sent_again(world):
    world.renew("a")
    batch = world.take()
    world.copies.interrupt(None, Purpose.RENEWAL)
    world.sqs.fail_next(SEND, ThrottledError("slow down"))
    world.answer(batch)
    assert world.sent() == []
    assert [(each.left, each.given_back) for each in world.ended] == [([0], True)]


@pytest.mark.parametrize("error", [ThrottledError("slow down"), UnavailableError("no answer")])
def test_in_an_outage_nothing_ends_until_the_deadline_is_near(world, error):
    delivery = world.split(30)
    world.answer(world.take())
    for _ in range(1000):
        world.sqs.fail_next(BATCHES, error)
    for _ in range(2):
        delivery.deadline += 60  # the heartbeat extends it
        for _ in range(50):
            world.work_off(1)
        assert world.ended == []
    world.clock.advance(delivery.deadline - SPARE - world.clock.monotonic())
    world.work_off(1)
    world.sqs._failures.clear()
    world.work_off()
    assert world.sent() == [*numbers(range(10)), f"left {list(range(10, 30))}"]
    assert world.ended[0].left == []


@pytest.mark.parametrize("lost", [True, False])
def test_of_a_lost_original_nothing_more_is_sent(world, lost):
    delivery = world.split(30)
    world.answer(world.take())
    delivery.lost = lost
    world.clock.advance(1 if lost else TIMEOUT)
    world.work_off()
    assert world.sent() == numbers(range(10))
    assert len(world.ended[0].left) == 20


def test_nothing_is_sent_of_an_original_that_is_lost_while_sqs_is_asked_whether_it_can_be_deleted(world):
    world.split(30)
    world.sqs.delete = lambda *_: world.clock.advance(TIMEOUT)
    world.work_off()
    assert world.sent() == []
    assert len(world.ended[0].left) == 30


def test_others_go_on_where_one_original_is_lost_while_sqs_is_asked(world):
    first = world.split(1)
    world.split(10)
    first.deadline -= TIMEOUT - SPARE - 1
    world.sqs.delete = lambda *_: world.clock.advance(SPARE + 1)
    world.work_off()
    assert sorted(world.sent()) == numbers(range(10))
    assert [len(sending.left) for sending in world.ended] == [1, 0]


def test_a_thread_that_was_replaced_while_it_asked_sends_nothing_beside_the_other(world):
    def hang(*_):
        del world.sqs.delete
        world.clock.advance(1)
        world.copies.conclude(batch, world.clock.monotonic(), dict.fromkeys(range(10), UnavailableError("")))
        world.work_off()

    world.split(10)
    batch, world.sqs.delete = world.take(), hang
    assert len(world.send(batch)) == 10
    assert world.sent() == numbers(range(10))


def test_after_a_turn_the_rest_goes_on_as_one_message(world):
    world.split(RECORDS_A_TURN + 5)
    world.work_off()
    rest = list(range(RECORDS_A_TURN, RECORDS_A_TURN + 5))
    assert world.sent() == [*numbers(range(RECORDS_A_TURN)), f"left {rest}"]


def test_where_no_message_can_stand_for_the_rest_all_records_are_sent(world):
    (delivery,) = factories.received(world.queue, 1, world.clock)
    records = [OutgoingMessage(str(n)) for n in range(RECORDS_A_TURN + 5)]
    world.copies.submit(delivery, factories.split(records))
    world.work_off()
    assert world.sent() == numbers(range(RECORDS_A_TURN + 5))


def test_a_record_that_is_refused_goes_on_alone_with_the_others_behind_it(world):
    world.split(20)
    world.sqs.fail_next(BATCHES, RequestRefusedError("wrong"), position=3)
    world.work_off()
    assert world.sent() == [*numbers(range(3), range(4, 10)), f"left {[3, *range(10, 20)]}"]


def test_without_the_permission_to_send_one_request_is_made(world):
    world.split(100)
    world.sqs.fail_next(BATCHES, AccessDeniedError("no"))
    world.work_off()
    assert (world.sent(), world.requests(BATCHES)) == ([], 1)
    assert isinstance(world.ended[0].error, AccessDeniedError)


def test_without_the_permission_to_delete_none_is_made_for_a_while(world):
    world.sqs.fail_next(DELETES, AccessDeniedError("no"))
    world.split(100)
    world.renew("a")
    world.work_off()
    assert (world.sent(), world.requests(DELETES)) == ([], 1)
    assert [each.error.action for each in world.ended] == ["DeleteMessage"] * 2
    world.clock.advance(301)
    world.split(10)
    world.work_off()
    assert world.sent() == numbers(range(10)), "the permission was given meanwhile"


def test_a_record_of_which_no_message_can_be_made_ends_the_event(world):
    class Unsendable(list):
        def __getitem__(self, index):
            raise UnreadableError("its arguments cannot be sent")

    (delivery,) = factories.received(world.queue, 1, world.clock)
    world.copies.submit(delivery, factories.split(Unsendable("ab")))
    world.work_off()
    assert "its arguments cannot be sent" in str(world.ended[0].error)


def test_a_flush_waits_for_all(world):
    world.split(10)
    assert not world.copies.flush(0)
    world.work_off()
    assert world.copies.flush(0)
    assert not world.copies.pending.unfinished


def test_dead_letters_share_requests_to_their_own_queue(world):
    bodies = [str(n) for n in range(12)]
    world.give_up(*bodies)
    world.work_off()
    assert (world.sent(), sorted(world.sent(world.graves))) == ([], sorted(bodies))
    assert (world.requests(BATCHES), world.requests(SEND)) == (2, 12), "the others sent the messages"
    assert {each.settlement() for each in world.ended} == {Delete(keeps_payload=True)}


def test_dead_letters_of_a_fifo_group_go_one_after_the_other_also_when_one_is_tried_again():
    world = World("q.fifo")
    world.give_up(*"abc")
    for _ in range(2):
        world.sqs.fail_next(SEND, ThrottledError("slow down"))
    world.work_off()
    assert world.sent(world.graves) == ["a", "b", "c"]


def test_a_dead_letter_is_tried_up_to_the_deadline_and_then_its_message_comes_back(world):
    (delivery,) = world.give_up("a")
    for _ in range(1000):
        world.sqs.fail_next(SEND, ThrottledError("slow down"))
    while delivery.deadline - world.clock.monotonic() > 1:
        assert world.ended == []
        world.work_off(1)
    world.clock.advance(1)
    world.work_off()
    assert (world.sent(world.graves), world.settled) == ([], Lapse())


def test_a_worker_that_ends_does_not_release_what_is_given_up(world):
    world.give_up("a")
    world.copies.interrupt(None, Purpose.RENEWAL, Purpose.RECORDS)
    world.work_off()
    assert world.sent(world.graves) == ["a"]
    (delivery,) = factories.received(world.queue, 1, world.clock)
    sending = Sending(delivery, factories.letter(), given_back=True)
    (index,) = sending.begin()
    sending.note_unsent(index, None)
    assert sending.settlement() == Lapse()


def test_the_refusal_of_a_dead_letter_is_logged_once_until_it_is_over(world, caplog):
    for denials in (2, 1):
        for _ in range(denials):
            world.give_up("a")
            world.sqs.fail_next(SEND, AccessDeniedError("no"))
            world.work_off()
            assert world.settled == Hide(9)
        world.give_up("a")
        world.work_off()
        assert world.settled == Delete(keeps_payload=True)
    assert caplog.text.count("cannot send to the dead-letter queue of 'q'") == 2


def test_a_queue_is_no_dead_letter_queue_of_its_own(world, caplog):
    world.graves = world.queue
    world.give_up("a", "b")
    world.work_off()
    assert (world.sent(), world.settled) == ([], Hide(9))
    assert caplog.messages == []


def test_no_dead_letter_is_sent_of_a_message_that_nobody_may_delete(world):
    world.sqs.fail_next(DELETES, AccessDeniedError("no"))
    world.give_up("a")
    world.work_off()
    assert (world.sent(world.graves), world.settled) == ([], Hide(9))

"""What is given up, rejected, or no task: kept, dead-lettered or deleted."""

import pytest
from support import factories
from support.clock import FakeClock

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.core.settlements import RELEASE, Delete, Forward, Hide, Lapse, Why
from celery_sqs_visibility.delivery.settle.dead_letters import DeadLetters, described
from celery_sqs_visibility.delivery.settle.rejection import KEPT_SECONDS, Rejection
from celery_sqs_visibility.errors import AccessDeniedError
from celery_sqs_visibility.events import Unreadable
from celery_sqs_visibility.policy.retries import (
    UNKNOWN_TASK_SECONDS,
    UNREADABLE_RECEIVES,
    by_attempt,
)

FIRST = 1_700_000_000.0
KEPT = Hide(KEPT_SECONDS, Why.KEPT)


class Rejecting:
    """A `Rejection` of one queue's deliveries, which it holds.

    `redrive` is the number of receives of the queue's redrive policy; "plain": a dead-letter queue is named
    instead; "hidden": the policy may not be read.
    """

    def __init__(self, name="q", redrive=None, on_error=None, when_exhausted="delete"):
        clock = FakeClock()
        sqs = FakeSQS(clock)
        letters = factories.queue(sqs, "letters.fifo")
        by_policy = {"letters": letters, "most": redrive} if isinstance(redrive, int) else {}
        self.queue = factories.queue(sqs, name, **by_policy)
        self.redrive = book = RedriveBook(lambda _: (lambda: letters) if redrive == "plain" else None)
        if redrive == "hidden":
            sqs.fail_next("GetQueueAttributes", AccessDeniedError("no"))
        book.get(self.queue, clock.monotonic())
        options_of = factories.every_queue(error_visibility_timeout=on_error, when_exhausted=when_exhausted)
        self.rejection = Rejection(book, options_of, self, DeadLetters(book))
        self.settled, self.remembered = [], set()

    def settle(self, _delivery, settlement):
        self.settled.append(settlement)
        return True

    def remember(self, past, delivery):
        is_new = not self.remembers(past, delivery)
        self.remembered.add((past, delivery.message_key))
        return is_new

    def remembers(self, past, delivery):
        return (past, delivery.message_key) in self.remembered

    def delivery(self, receive_count=1, *, seconds=0.0):
        received = {"receive_count": receive_count, "first_received": FIRST, "received": FIRST + seconds}
        return factories.delivery(self.queue, self, group="g", **received)

    def refuse(self, receive_count=1, *, seconds=0.0, others_may=False):
        """The settlement, or the one in place of a dead letter that is not taken."""
        delivery = self.delivery(receive_count, seconds=seconds)
        self.rejection.refuse(delivery, "nobody can read it", "body", others_may=others_may)
        settlement = self.settled.pop()
        return settlement.otherwise(None) if isinstance(settlement, Forward) else settlement


def letter_of(settlement):
    """The reason of a dead letter, its body, and what is done where it is not taken."""
    (copy,) = settlement.messages
    return settlement.reason, copy.body, settlement.otherwise(None)


@pytest.mark.parametrize(
    ("redrive", "when_exhausted", "becomes"),
    [
        (None, "delete", Delete()),
        (None, "keep", KEPT),
        # There may be a redrive policy that nobody here can see: let it count.
        ("hidden", "delete", Lapse()),
        ("hidden", "keep", Lapse()),
    ],
)
@pytest.mark.parametrize("by_task", [False, True])
def test_without_dead_letters_a_failed_message_is_deleted_or_kept(redrive, when_exhausted, becomes, by_task):
    other = "keep" if when_exhausted == "delete" else "delete"
    world = Rejecting(redrive=redrive, when_exhausted=other if by_task else when_exhausted)
    world.rejection.give_up(
        world.delivery(),
        "failed",
        lambda: pytest.fail("nobody needs it"),
        when_exhausted if by_task else None,
    )
    assert world.settled == [becomes]


def given_up(world):
    world.rejection.give_up(world.delivery(), "failed at its last attempt", lambda: "")


def rejected(world):
    world.rejection.reject(world.delivery(), requeue=False)


@pytest.mark.parametrize("end", [given_up, rejected])
@pytest.mark.parametrize(
    ("redrive", "when_exhausted", "lines"), [(None, "delete", 1), (None, "keep", 0), (5, "delete", 0)]
)
def test_a_message_that_is_deleted_for_good_has_one_warning(caplog, end, redrive, when_exhausted, lines):
    end(Rejecting("q.fifo", redrive, when_exhausted=when_exhausted))
    assert [record.levelname for record in caplog.records] == ["WARNING"] * lines
    for record in caplog.records:
        for fact in ("give its queue one", "queue=q.fifo", "message_id=m1", "reason="):
            assert fact in record.getMessage()


@pytest.mark.parametrize(
    ("redrive", "receive_count", "otherwise"),
    # Received more often than the policy says, SQS should have moved it, and could not; it must not spin.
    [(5, 4, RELEASE), (5, 5, RELEASE), (5, 6, KEPT), ("plain", 4, KEPT)],
)
def test_a_failed_message_becomes_a_dead_letter_and_is_not_deleted_without(redrive, receive_count, otherwise):
    world = Rejecting("q.fifo", redrive)
    world.rejection.give_up(world.delivery(receive_count), "failed", lambda: "body", exception="ValueError()")
    (settlement,) = world.settled
    assert letter_of(settlement) == ("failed", "body", otherwise)
    assert described(settlement.messages[0].attributes)["exception"] == "ValueError()"


@pytest.mark.parametrize(
    ("redrive", "requeue", "becomes"),
    [(None, True, RELEASE), (5, True, RELEASE), (5, False, Lapse()), (None, False, Delete())],
)
def test_a_rejected_message_is_released_or_left_to_the_policy_or_deleted(redrive, requeue, becomes):
    world = Rejecting("q.fifo", redrive)
    world.rejection.reject(world.delivery(), requeue=requeue)
    assert world.settled == [becomes]


@pytest.mark.parametrize(
    ("world", "others_may", "receive_count", "becomes"),
    [
        (Rejecting(on_error=by_attempt(10, 60)), False, 2, Hide(60)),
        (Rejecting(redrive="plain", on_error=by_attempt(10, 60)), False, 2, ("why", "body", Hide(60))),
        (Rejecting("q.fifo", 3), True, 2, Lapse()),
        (Rejecting("q.fifo", 3), True, 3, ("why", "body", Lapse())),
    ],
    ids=["hidden where there are none", "taken", "another worker may know it", "not after its last receive"],
)
def test_a_refused_message_becomes_a_dead_letter(world, others_may, receive_count, becomes):
    world.rejection.refuse(world.delivery(receive_count), "why", "body", others_may=others_may)
    (settlement,) = world.settled
    assert (letter_of(settlement) if isinstance(settlement, Forward) else settlement) == becomes
    world.settled.clear()


def test_a_refused_message_has_one_event_however_often_it_comes_back(events):
    world = Rejecting()
    refused = [world.rejection.refuse(world.delivery(count), "wh\0y", "body") for count in (1, 2, 3)]
    assert refused == [True, False, False]
    assert [event.reason for event in events.of(Unreadable)] == ["wh\N{REPLACEMENT CHARACTER}y"]
    assert len(world.settled) == 3


@pytest.mark.parametrize(
    ("on_error", "receive_count", "becomes"),
    [
        (None, 1, Lapse()),
        (by_attempt(10, 60.5), 1, Hide(10)),
        (by_attempt(10, 60.5), 2, Hide(61)),
        (by_attempt(10, 60.5), 7, Hide(61)),
    ],
)
def test_the_error_visibility_timeout_goes_by_receives_in_whole_seconds(on_error, receive_count, becomes):
    world = Rejecting(on_error=on_error)
    assert world.rejection.after_an_error(world.delivery(receive_count)) == becomes


def test_receives_of_a_message_that_only_waited_are_no_failures():
    world = Rejecting(on_error=by_attempt(10, 60))
    delivery = world.delivery(4)
    delivery.parkings = 3
    assert world.rejection.after_an_error(delivery) == Hide(10)


def test_a_broken_error_visibility_timeout_is_logged_and_harmless(caplog):
    def broken(retries, exc):
        raise LookupError("a user's bug")

    world = Rejecting(on_error=broken)
    assert world.rejection.after_an_error(world.delivery()) == Lapse()
    assert "a user's bug" in caplog.text


def test_the_head_of_a_group_is_deleted_after_some_receives_and_that_is_logged(caplog):
    world = Rejecting("q.fifo")
    for receive_count in range(1, UNREADABLE_RECEIVES):
        assert world.refuse(receive_count) == Lapse()
    assert world.refuse(UNREADABLE_RECEIVES) == Delete()
    # The event's own line is there too, if a consumer of this process has begun to write events.
    (record,) = (each for each in caplog.records if each.name.endswith(".rejection"))
    assert record.levelname == "ERROR"
    for fact in ("its FIFO group waits behind it", "message_id=m1", "group=g", "nobody can read it"):
        assert fact in record.getMessage()


@pytest.mark.parametrize(
    ("rejecting", "receive_count", "becomes"),
    [
        (Rejecting("q"), 1000, Lapse()),
        (Rejecting("q.fifo", when_exhausted="keep"), UNREADABLE_RECEIVES, KEPT),
        (Rejecting("q.fifo", "hidden"), 1000, Lapse()),
        (Rejecting("q.fifo", "plain"), UNREADABLE_RECEIVES, KEPT),
        (Rejecting("q.fifo", "plain"), 1, Lapse()),
        (Rejecting("q.fifo", 9), UNREADABLE_RECEIVES, RELEASE),
    ],
    ids=["standard queue", "kept", "unknown policy", "named dead letters", "early", "left to the policy"],
)
def test_nothing_else_is_deleted_without_a_copy(rejecting, receive_count, becomes):
    assert rejecting.refuse(receive_count, seconds=1e6) == becomes


@pytest.mark.parametrize(
    ("seconds", "becomes"),
    [(UNKNOWN_TASK_SECONDS - 1, Lapse()), (UNKNOWN_TASK_SECONDS, Delete())],
)
def test_another_worker_may_know_the_task_for_an_hour(seconds, becomes):
    assert Rejecting("q.fifo").refuse(50, seconds=seconds, others_may=True) == becomes


@pytest.mark.parametrize(("redrive", "receive_count", "may"), [(3, 2, True), (3, 3, False), (None, 99, True)])
def test_a_message_may_return_until_the_policy_moves_it(redrive, receive_count, may):
    world = Rejecting("q.fifo", redrive)
    assert world.delivery(receive_count).may_return is may


@pytest.mark.parametrize(("receive_count", "becomes"), [(2, Lapse()), (3, Hide(3600))])
def test_what_could_not_be_read_here_comes_back_late_where_sqs_would_move_it(receive_count, becomes):
    world = Rejecting(redrive=3)
    world.rejection.come_back(world.delivery(receive_count), MemoryError())
    assert world.settled == [becomes]


@pytest.mark.parametrize("redrive", [None, 5])
def test_a_message_that_comes_back_after_it_was_given_up_has_not_failed_anew(redrive):
    world = Rejecting(redrive=redrive, when_exhausted="keep")
    told = []
    for _ in range(2):
        delivery = world.delivery()
        world.rejection.give_up(delivery, "failed", str)
        told.append(delivery.end_of_given_up)
    assert told == ["failed", "released"]


@pytest.mark.parametrize(
    ("name", "redrive", "receive_count", "others_may", "follows"),
    [
        ("q", 3, 1, True, "it comes back, and at receive 3 it becomes a dead letter"),
        ("q", 3, 3, True, "it becomes a dead letter"),
        ("q", "plain", 1, False, "it becomes a dead letter"),
        ("q", "plain", 1, True, "it comes back, until the retention of its queue ends"),
        ("q", None, 9, True, "it comes back, until the retention of its queue ends"),
        ("q", None, 9, False, "it comes back, until the retention of its queue ends"),
        ("q.fifo", None, UNREADABLE_RECEIVES, False, "it is deleted"),
    ],
)
def test_the_log_says_what_becomes_of_a_message_that_is_no_task(
    events, name, redrive, receive_count, others_may, follows
):
    world = Rejecting(name, redrive)
    world.refuse(receive_count, others_may=others_may)
    (event,) = events.of(Unreadable)
    assert (event.reason, event.follows) == ("nobody can read it", follows)

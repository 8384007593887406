"""What is sent together: full batches within SQS's limits, in a group's order, without losing anything."""

from __future__ import annotations

import math
from collections import Counter, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.core.pending import (
    GIVE_UP_SECONDS,
    LINGER_SECONDS,
    MAX_CREDENTIAL_LOOKUPS,
    PendingMessages,
)
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    CredentialsRefusedError,
    RequestRefusedError,
    ThrottledError,
    UnavailableError,
)
from celery_sqs_visibility.policy.backoff import MAX_PAUSE_SECONDS
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES, MESSAGE_BYTES

NOW = 1000.0
SENT: dict = {}  # no entry failed
PLAIN = Queue("q", "https://sqs.example/1/q", FakeSQS())
FIFO = Queue("q.fifo", "https://sqs.example/1/q.fifo", FakeSQS())


@pytest.fixture
def pending():
    return PendingMessages()


def fill(pending, *ids, queue=PLAIN, now=NOW, **fields):
    """Add messages; whether the last made a batch that waits for nothing."""
    return [pending.add(queue, OutgoingMessage(str(i), **fields), str(i), now) for i in ids][-1]


def whole(batch, error):
    """What failed where a request failed as a whole."""
    return dict.fromkeys(range(len(batch)), error)


def ids(batch):
    return [entry.tag for entry in batch]


def test_ten_go_together_and_the_rest_lingers_for_a_second_unless_it_is_flushed(pending):
    assert not fill(pending, *range(9))
    assert pending.take(NOW) == []
    assert fill(pending, *range(9, 13))
    assert len(pending.take(NOW)) == BATCH_ENTRIES
    assert pending.take(NOW) == []
    assert pending.due() == NOW + LINGER_SECONDS
    assert ids(pending.take(NOW + LINGER_SECONDS)) == ["10", "11", "12"]
    fill(pending, 13)
    assert ids(pending.take(NOW, flushing=True)) == ["13"]


def test_each_queue_has_batches_of_its_own_and_they_take_turns(pending):
    fill(pending, *range(20))
    fill(pending, *range(20, 30), queue=FIFO, group_id=None)
    assert [pending.take(NOW)[0].queue for _ in range(3)] == [PLAIN, FIFO, PLAIN]


def test_a_message_that_is_too_large_fails_alone_and_says_how_large_it_is(pending):
    body = "x" * (MESSAGE_BYTES + 1)
    assert pending.add(PLAIN, OutgoingMessage(body), "large", NOW) is False
    fill(pending, "small")
    assert pending.accepted == 2
    assert ids(pending.take(NOW, flushing=True)) == ["small"]
    ((task_id, reason),) = pending.failures
    assert task_id == "large"
    assert "1,048,577" in str(reason)
    assert "1,048,576" in str(reason)
    assert "'q'" in str(reason)


def test_a_batch_may_be_as_large_as_sqs_allows(pending):
    half = "x" * (MESSAGE_BYTES // 2)
    fill(pending, 1)
    pending.conclude(pending.take(NOW, flushing=True), SENT, NOW)
    for tag in "ab":
        assert not pending.add(PLAIN, OutgoingMessage(half), tag, NOW)
    assert ids(pending.take(NOW, flushing=True)) == ["a", "b"]
    assert not pending.add(PLAIN, OutgoingMessage(half * 2), "whole", NOW)
    assert not fill(pending, "of another queue", queue=FIFO)
    assert ids(pending.take(NOW, flushing=True)) == ["whole"]


def test_a_message_whose_payload_goes_to_s3_is_sent_alone(pending):
    def offloaded(queue, size):
        return queue is PLAIN and size > 10

    fill(pending, "a")
    assert pending.add(PLAIN, OutgoingMessage("x" * 20), "large", NOW, offloaded)
    fill(pending, "b")
    assert [ids(pending.take(NOW, flushing=True)) for _ in range(3)] == [["a"], ["large"], ["b"]]
    assert pending.add(PLAIN, OutgoingMessage("x" * (MESSAGE_BYTES + 1)), "larger", NOW, offloaded)
    assert ids(pending.take(NOW)) == ["larger"]


def test_it_is_told_whether_and_how_many_batches_are_ready(pending):
    fill(pending, *range(9))
    assert (pending.has_more(flushing=False), pending.has_more(flushing=True)) == (False, True)
    assert fill(pending, 9), "the tenth makes it full"
    assert pending.has_more(flushing=False)
    fill(pending, 10)
    fill(pending, 11, queue=FIFO)
    assert pending.batches_ready() == 3
    assert pending.accepted == 12


def test_what_failed_comes_back_alone_after_a_pause(pending):
    fill(pending, *range(3))
    batch = pending.take(NOW, flushing=True)
    pending.conclude(batch, {1: ThrottledError("slow down")}, NOW)
    assert pending.count == 1
    assert pending.take(NOW, flushing=True) == []
    assert NOW < pending.due() <= NOW + MAX_PAUSE_SECONDS
    assert ids(pending.take(pending.due(), flushing=True)) == ["1"]


@pytest.mark.parametrize("error", [AccessDeniedError("no"), RequestRefusedError("nonsense")])
def test_what_does_not_pass_is_given_up_at_once(pending, error):
    fill(pending, *range(3))
    pending.conclude(pending.take(NOW, flushing=True), {1: error}, NOW)
    assert pending.count == 0
    assert pending.failures == [("1", error)]


def test_refused_credentials_are_looked_for_anew_a_few_times(pending):
    fill(pending, 1)
    refused = CredentialsRefusedError("expired")
    now, tries = NOW, 0
    while pending.count:
        pending.conclude(pending.take(now, flushing=True), {0: refused}, now)
        now, tries = pending.due() or now, tries + 1
    assert tries == MAX_CREDENTIAL_LOOKUPS
    assert pending.failures == [("1", refused)]


def test_an_outage_ends_it_for_all_when_nothing_has_worked_for_so_long(pending):
    now = NOW
    fill(pending, 1)
    while not pending.failures:
        pending.conclude(pending.take(now, flushing=True), {0: UnavailableError("down")}, now)
        now = pending.due() or now
    assert GIVE_UP_SECONDS - MAX_PAUSE_SECONDS <= now - NOW <= GIVE_UP_SECONDS
    now = NOW + GIVE_UP_SECONDS
    fill(pending, 2, now=now)
    pending.conclude(pending.take(now, flushing=True), {0: UnavailableError("down")}, now)
    assert [task_id for task_id, _ in pending.failures] == ["1", "2"]  # not another half minute
    fill(pending, 3, 4, now=now)
    something_worked = {0: UnavailableError("down")}
    pending.conclude(pending.take(now, flushing=True), something_worked, now)
    assert pending.count == 1


def test_of_a_request_refused_as_a_whole_only_what_is_wrong_fails(pending):
    fill(pending, *range(10))
    sent = []
    while batch := pending.take(NOW, flushing=True):
        if "7" in ids(batch):
            pending.conclude(batch, whole(batch, RequestRefusedError("one of them is wrong")), NOW)
        else:
            pending.conclude(batch, SENT, NOW)
            sent += ids(batch)
    assert sorted(sent) == [str(number) for number in range(10) if number != 7]
    assert [task_id for task_id, _ in pending.failures] == ["7"]


def test_a_group_sends_one_at_a_time_without_lingering_and_what_failed_is_not_overtaken(pending):
    fill(pending, "a1", queue=FIFO, group_id="a")
    assert fill(pending, "a2", queue=FIFO, group_id="a")
    fill(pending, "b1", "b2", queue=FIFO, group_id="b")
    first = pending.take(NOW)
    assert ids(first) == ["a1", "b1"]
    assert pending.take(NOW, flushing=True) == []
    pending.conclude(first, {0: ThrottledError("slow down")}, NOW)
    assert ids(pending.take(NOW, flushing=True)) == ["b2"]
    later = pending.due()
    again = pending.take(later, flushing=True)
    assert ids(again) == ["a1"]
    pending.conclude(again, SENT, later)
    assert ids(pending.take(later, flushing=True)) == ["a2"]


def test_the_last_of_a_group_lingers_and_what_follows_it_goes_on(pending):
    fill(pending, "a1", "a2", "a3", queue=FIFO, group_id="a")
    for expected in (["a1"], ["a2"]):
        batch = pending.take(NOW)
        assert ids(batch) == expected
        pending.conclude(batch, SENT, NOW)
    assert pending.take(NOW) == []
    pending.conclude(pending.take(NOW, flushing=True), SENT, NOW)
    fill(pending, "a4", queue=FIFO, group_id="a")
    assert ids(pending.take(NOW, flushing=True)) == ["a4"]


def test_halves_of_a_refused_request_are_tried(pending):
    fill(pending, *range(10))
    lengths = []
    while batch := pending.take(NOW, flushing=True):
        lengths.append(len(batch))
        pending.conclude(
            batch, whole(batch, RequestRefusedError("no")) if len(batch) in (10, 3) else SENT, NOW
        )
    assert lengths == [10, 5, 5]
    fill(pending, *range(3))
    batch = pending.take(NOW, flushing=True)
    pending.conclude(batch, whole(batch, RequestRefusedError("no")), NOW)
    assert len(pending.take(NOW, flushing=True)) == 1


def test_pauses_grow_and_what_would_come_back_too_late_is_given_up(monkeypatch):
    monkeypatch.setattr("celery_sqs_visibility.core.pending.pause", float)
    pending = PendingMessages(give_up=3.0)
    down = UnavailableError("down")
    fill(pending, 1)
    pending.conclude(pending.take(NOW, flushing=True), {0: down}, NOW)
    assert pending.due() == NOW + 1
    pending.conclude(pending.take(NOW + 1, flushing=True), {0: down}, NOW + 1)
    assert pending.failures == [("1", down)]


def test_a_message_that_fails_while_others_are_sent_is_given_up_as_soon(pending):
    now = NOW
    fill(pending, "bad")
    for number in range(1000):
        fill(pending, number, now=now)
        batch = pending.take(now, flushing=True)
        pending.conclude(batch, {ids(batch).index("bad"): UnavailableError("down")}, now)
        if pending.failures:
            break
        now = pending.due()
    assert GIVE_UP_SECONDS - MAX_PAUSE_SECONDS <= now - NOW <= GIVE_UP_SECONDS


# Withdrawing.


def test_those_of_a_group_that_were_withdrawn_are_left_out(pending):
    fill(pending, "a1", "a2", "a3", "a4", queue=FIFO, group_id="a")
    assert pending.withdraw({"a2"}.__contains__) == ["a2"]
    for expected in (["a1"], ["a3"]):
        batch = pending.take(NOW)
        assert ids(batch) == expected
        pending.conclude(batch, SENT, NOW)
    assert pending.take(NOW) == [], "the last lingers"
    assert ids(pending.take(NOW, flushing=True)) == ["a4"]


def test_where_the_first_of_a_group_is_withdrawn_the_next_follows(pending):
    fill(pending, "first", "second", queue=FIFO, group_id="a")
    fill(pending, "plain")
    assert pending.withdraw({"first", "plain"}.__contains__) == ["first", "plain"]
    assert (pending.waiting, pending.count, pending.size) == (["second"], 1, len("second"))
    assert ids(pending.take(NOW, flushing=True)) == ["second"]


def test_where_one_that_was_to_come_back_is_withdrawn_the_next_follows(pending):
    fill(pending, "first", "second", queue=FIFO, group_id="a")
    pending.conclude(pending.take(NOW), {0: UnavailableError("down")}, NOW)
    assert pending.withdraw({"first"}.__contains__) == ["first"]
    assert (pending.waiting, pending.size) == (["second"], len("second"))
    assert ids(pending.take(NOW, flushing=True)) == ["second"]


def test_the_others_still_come_back_the_soonest_first(monkeypatch):
    monkeypatch.setattr("celery_sqs_visibility.core.pending.pause", float)
    pending = PendingMessages(give_up=math.inf)
    for tag, now in (("now", NOW), ("last", NOW + 9), ("next", NOW + 5)):
        fill(pending, tag)
        pending.conclude(pending.take(NOW, flushing=True), {0: UnavailableError("down")}, now)
    assert pending.withdraw({"now"}.__contains__) == ["now"]
    assert pending.due() == NOW + 6
    assert ids(pending.take(NOW + 6, flushing=True)) == ["next"]


OUTCOMES = st.sampled_from(["sent", "sent", "sent", "throttled", "refused", "down", "too long"])


@given(
    messages=st.lists(
        st.tuples(st.sampled_from([PLAIN, FIFO]), st.sampled_from("abc"), st.integers(1, MESSAGE_BYTES + 9)),
        max_size=60,
    ),
    data=st.data(),
)
def test_whatever_happens_each_is_sent_or_told_of_once_within_the_limits_and_in_order(messages, data):
    """Batches are in flight side by side, and end in any order, in any way."""
    pending, now = PendingMessages(), NOW
    sizes = {}
    for number, (queue, group, size) in enumerate(messages):
        sizes[str(number)] = size
        pending.add(queue, OutgoingMessage("x" * size, group_id=group), str(number), now)
    sent, flying = [], []
    while pending.count:
        if batch := pending.take(now, flushing=True):
            assert len(batch) <= BATCH_ENTRIES
            assert sum(entry.size for entry in batch) <= MESSAGE_BYTES
            assert len({entry.queue for entry in batch}) == 1
            flying.append(batch)
        elif not flying:
            now = max(now, pending.due())
            continue
        if flying and (not batch or data.draw(st.booleans())):
            batch = flying.pop(data.draw(st.integers(0, len(flying) - 1)))
            errors = errors_of(data.draw(OUTCOMES), batch, data)
            pending.conclude(batch, errors, now)
            sent += [entry for i, entry in enumerate(batch) if i not in errors]
    failed = [task_id for task_id, _ in pending.failures]
    assert Counter([*ids(sent), *failed]) == Counter(list(sizes))
    assert pending.size == 0
    order = defaultdict(list)
    for entry in sent:
        if entry.queue is FIFO:
            order[entry.group].append(int(entry.tag))
    assert all(numbers == sorted(numbers) for numbers in order.values())


def errors_of(kind, batch, data):
    if kind == "sent":
        return SENT
    if kind == "down":
        return whole(batch, UnavailableError("down"))
    if kind == "too long":
        return whole(batch, RequestRefusedError("the batch is too long"))
    doomed = data.draw(st.sets(st.integers(0, len(batch) - 1)))
    error = ThrottledError if kind == "throttled" else RequestRefusedError
    return {position: error("of this entry") for position in doomed}

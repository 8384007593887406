"""What is sent together: full batches within SQS's limits, in a group's order, without losing anything."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.aws.errors import (
    AccessDenied,
    CredentialsRefused,
    RequestRefused,
    Throttled,
    Unavailable,
)
from celery_sqs_visibility.aws.memory import MemorySQS
from celery_sqs_visibility.aws.port import BatchResult, OutgoingMessage
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.backlog import MOST_REFUSALS, PATIENCE, WINDOW, Backlog
from celery_sqs_visibility.policy.pauses import LONGEST_PAUSE
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES, MESSAGE_BYTES

NOW = 1000.0
SENT = BatchResult({})
PLAIN = Queue("q", "https://sqs.example/1/q", MemorySQS())
FIFO = Queue("q.fifo", "https://sqs.example/1/q.fifo", MemorySQS())


def fill(backlog, *ids, queue=PLAIN, now=NOW, **fields):
    """Add messages; whether the last made a batch that waits for nothing."""
    return [backlog.add(queue, OutgoingMessage(str(i), **fields), str(i), now) for i in ids][-1]


def ids(batch):
    return [entry.task_id for entry in batch]


def test_ten_go_together_and_the_rest_waits_for_company_a_second_long():
    backlog = Backlog()
    assert not fill(backlog, *range(9))
    assert backlog.take(NOW) == []
    assert fill(backlog, *range(9, 13))
    assert len(backlog.take(NOW)) == BATCH_ENTRIES
    assert backlog.take(NOW) == []
    assert backlog.due() == NOW + WINDOW
    assert ids(backlog.take(NOW + WINDOW)) == ["10", "11", "12"]


def test_who_is_in_a_hurry_waits_for_nobody():
    backlog = Backlog()
    fill(backlog, 1)
    assert ids(backlog.take(NOW, hurried=True)) == ["1"]


def test_each_queue_has_batches_of_its_own_and_they_take_turns():
    backlog = Backlog()
    fill(backlog, *range(20))
    fill(backlog, *range(20, 30), queue=FIFO, group_id=None)
    assert [backlog.take(NOW)[0].queue for _ in range(3)] == [PLAIN, FIFO, PLAIN]


def test_a_message_that_is_too_large_fails_alone_and_says_how_large_it_is():
    backlog = Backlog()
    body = "x" * (MESSAGE_BYTES + 1)
    backlog.add(PLAIN, OutgoingMessage(body), "large", NOW)
    fill(backlog, "small")
    assert ids(backlog.take(NOW, hurried=True)) == ["small"]
    ((task_id, reason),) = backlog.failures
    assert task_id == "large"
    assert "1,048,577" in str(reason)
    assert "1,048,576" in str(reason)


def test_what_failed_comes_back_alone_after_a_pause():
    backlog = Backlog()
    fill(backlog, *range(3))
    batch = backlog.take(NOW, hurried=True)
    backlog.conclude(batch, BatchResult({1: Throttled("slow down")}), NOW)
    assert backlog.count == 1
    assert backlog.take(NOW, hurried=True) == []
    assert NOW < backlog.due() <= NOW + LONGEST_PAUSE
    assert ids(backlog.take(backlog.due(), hurried=True)) == ["1"]


@pytest.mark.parametrize("error", [AccessDenied("no"), RequestRefused("nonsense")])
def test_what_does_not_pass_is_given_up_at_once(error):
    backlog = Backlog()
    fill(backlog, *range(3))
    backlog.conclude(backlog.take(NOW, hurried=True), BatchResult({1: error}), NOW)
    assert backlog.count == 0
    assert backlog.failures == [("1", error)]


def test_refused_credentials_are_looked_for_anew_a_few_times():
    backlog = Backlog()
    fill(backlog, 1)
    refused = CredentialsRefused("expired")
    now, tries = NOW, 0
    while backlog.count:
        backlog.conclude(backlog.take(now, hurried=True), refused, now)
        now, tries = backlog.due() or now, tries + 1
    assert tries == MOST_REFUSALS
    assert backlog.failures == [("1", refused)]


def test_patience_ends_for_all_when_nothing_has_worked_for_so_long():
    backlog = Backlog()
    now = NOW
    fill(backlog, 1)
    while not backlog.failures:
        backlog.conclude(backlog.take(now, hurried=True), Unavailable("down"), now)
        now = backlog.due() or now
    assert PATIENCE - LONGEST_PAUSE <= now - NOW <= PATIENCE
    fill(backlog, 2, now=NOW + PATIENCE)
    backlog.conclude(backlog.take(NOW + PATIENCE, hurried=True), Unavailable("down"), NOW + PATIENCE)
    assert [task_id for task_id, _ in backlog.failures] == ["1", "2"]  # not another half minute
    fill(backlog, 3, 4, now=NOW + PATIENCE)
    batch = backlog.take(NOW + PATIENCE, hurried=True)
    backlog.conclude(batch, BatchResult({0: Unavailable("down")}), NOW + PATIENCE)  # something worked
    assert backlog.count == 1


def test_of_a_request_refused_as_a_whole_only_what_is_wrong_fails():
    backlog = Backlog()
    fill(backlog, *range(10))
    sent = []
    while batch := backlog.take(NOW, hurried=True):
        if "7" in ids(batch):
            backlog.conclude(batch, RequestRefused("one of them is wrong"), NOW)
        else:
            backlog.conclude(batch, SENT, NOW)
            sent += ids(batch)
    assert sorted(sent) == [str(number) for number in range(10) if number != 7]
    assert [task_id for task_id, _ in backlog.failures] == ["7"]


def test_a_group_sends_one_at_a_time_and_does_not_wait_for_company():
    backlog = Backlog()
    fill(backlog, "a1", queue=FIFO, group_id="a")
    assert fill(backlog, "a2", queue=FIFO, group_id="a")
    fill(backlog, "b1", queue=FIFO, group_id="b")
    first = backlog.take(NOW)
    assert ids(first) == ["a1", "b1"]
    assert backlog.take(NOW, hurried=True) == []
    backlog.conclude(first, SENT, NOW)
    assert ids(backlog.take(NOW, hurried=True)) == ["a2"]


def test_a_failed_message_is_not_overtaken_by_its_group():
    backlog = Backlog()
    fill(backlog, "a1", "a2", queue=FIFO, group_id="a")
    fill(backlog, "b1", "b2", queue=FIFO, group_id="b")
    backlog.conclude(backlog.take(NOW), BatchResult({0: Throttled("slow down")}), NOW)
    assert ids(backlog.take(NOW, hurried=True)) == ["b2"]
    assert ids(backlog.take(backlog.due(), hurried=True)) == ["a1"]


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
    backlog, now = Backlog(), NOW
    sizes = {}
    for number, (queue, group, size) in enumerate(messages):
        sizes[str(number)] = size
        backlog.add(queue, OutgoingMessage("x" * size, group_id=group), str(number), now)
    sent, flying = [], []
    while backlog.count:
        if batch := backlog.take(now, hurried=True):
            assert len(batch) <= BATCH_ENTRIES
            assert sum(entry.size for entry in batch) <= MESSAGE_BYTES
            assert len({entry.queue for entry in batch}) == 1
            flying.append(batch)
        elif not flying:
            now = max(now, backlog.due())
            continue
        if flying and (not batch or data.draw(st.booleans())):
            batch = flying.pop(data.draw(st.integers(0, len(flying) - 1)))
            outcome = outcome_of(data.draw(OUTCOMES), batch, data)
            backlog.conclude(batch, outcome, now)
            if isinstance(outcome, BatchResult):
                sent += [entry for i, entry in enumerate(batch) if i not in outcome.failed]
    failed = [task_id for task_id, _ in backlog.failures]
    assert Counter([*ids(sent), *failed]) == Counter(list(sizes))
    assert backlog.size == 0
    order = defaultdict(list)
    for entry in sent:
        if entry.queue is FIFO:
            order[entry.group].append(int(entry.task_id))
    assert all(numbers == sorted(numbers) for numbers in order.values())


def outcome_of(kind, batch, data):
    if kind == "sent":
        return SENT
    if kind == "down":
        return Unavailable("down")
    if kind == "too long":
        return RequestRefused("the batch is too long")
    doomed = data.draw(st.sets(st.integers(0, len(batch) - 1)))
    error = Throttled("slow down") if kind == "throttled" else RequestRefused("nonsense")
    return BatchResult(dict.fromkeys(doomed, error))

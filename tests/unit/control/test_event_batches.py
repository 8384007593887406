"""Events share messages, in order and complete, and a request stays within SQS's limits."""

from __future__ import annotations

import json
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.control import event_feed
from celery_sqs_visibility.control.event_feed import BATCH_BYTES, EventMessage, bytes_of, take_batch
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES

EVENTS = st.builds(lambda n: {"n": n, "text": '],["'}, st.integers(0, 9))
CONTENTS = st.lists(EVENTS | st.lists(EVENTS, max_size=4), max_size=20)


def message(content, sender="a"):
    return EventMessage(json.dumps(content), {"hostname": sender})


def flat(contents):
    return [event for each in contents for event in (each if isinstance(each, list) else [each])]


@pytest.mark.parametrize("limit", [1, 40, BATCH_BYTES])
@given(contents=CONTENTS)
def test_all_events_of_a_sender_arrive_in_order(contents, limit):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_feed, "BATCH_BYTES", limit)
        waiting, arrived = deque(map(message, contents)), []
        while waiting:
            (merged,) = take_batch(waiting)
            assert merged.events == len(flat([json.loads(merged.body)]))
            arrived.append(json.loads(merged.body))
    assert flat(arrived) == flat(contents)


def test_other_senders_have_messages_of_their_own():
    waiting = deque([message({"n": 1}), message([{"n": 2}, {"n": 3}]), message({"n": 4}, sender="b")])
    batch = take_batch(waiting)
    assert [each.body for each in batch] == ['[{"n": 1},{"n": 2}, {"n": 3}]', '{"n": 4}']
    assert [each.events for each in batch] == [3, 1]


def test_a_request_has_ten_messages_and_so_many_bytes_at_the_most():
    senders = [message({}, sender=str(number)) for number in range(BATCH_ENTRIES + 1)]
    large = [message("x" * (BATCH_BYTES // 2))] * 3
    for waiting, taken in ((deque(senders), BATCH_ENTRIES), (deque(large), 1)):
        assert len(take_batch(waiting)) == taken
        assert waiting
    assert bytes_of(take_batch(deque([message("x" * (2 * BATCH_BYTES))]))) > BATCH_BYTES

"""When a queue is polled next: seldom while it is idle, never later than a message known to come back."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from celery_sqs_visibility.policy import polling
from celery_sqs_visibility.policy.polling import (
    EMPTY_POLL_SECONDS,
    FIRST_SLEEP_SECONDS,
    FOLLOW_UP_SECONDS,
    PollSchedule,
)

NOW = 1000.0


def empty_polls(schedule, now, count):
    """Poll in vain, each time when it is due; the sleeps in between."""
    sleeps = []
    for _ in range(count):
        schedule.polled(now, [])
        sleeps.append(max(0.0, schedule.next_poll() - now))
        now = max(now, schedule.next_poll())
    return sleeps


@pytest.mark.parametrize(
    ("interval", "maximum", "sleeps"),
    [
        (0, 0, [0, 0, 0, 0, 0]),
        (2, 15, [2, 4, 8, 15, 15, 15]),
        (0, 5, [0, FIRST_SLEEP_SECONDS, 2, 4, 5]),
    ],
    ids=["none", "doubling up to its maximum", "from nothing a second first"],
)
def test_the_sleep_of_an_idle_queue(interval, maximum, sleeps):
    schedule = PollSchedule(interval, maximum)
    assert schedule.next_poll() <= NOW
    assert empty_polls(schedule, NOW, len(sleeps)) == sleeps
    schedule.polled(NOW + 500, ["a"])
    assert schedule.next_poll() <= NOW + 500, "a message collapses it"
    assert empty_polls(schedule, NOW + 500, len(sleeps)) == sleeps


@given(st.floats(0, 100), st.floats(0, 1000), st.integers(1, 40))
def test_the_sleep_never_shrinks_while_the_queue_is_empty_and_reaches_its_maximum(interval, more, polls):
    maximum = interval + more
    sleeps = empty_polls(PollSchedule(interval, maximum), 0.0, polls)
    for before, after in itertools.pairwise(sleeps):
        assert after >= before or after == pytest.approx(before)
    assert sleeps[0] == pytest.approx(interval, abs=1e-6)
    assert max(sleeps) <= maximum * (1 + 1e-9) + 1e-6
    if polls > 20:
        assert sleeps[-1] == pytest.approx(maximum, abs=1e-6)


@pytest.mark.parametrize(
    ("interval", "back_in", "next_in"),
    [(60, [7], 7), (5, [7], 5), (60, [7, 9], 9)],
    ids=["sooner: the sleep is cut short", "later: nothing changes", "hidden anew"],
)
def test_a_message_that_comes_back_ends_the_sleep(interval, back_in, next_in):
    schedule = PollSchedule(interval, interval)
    schedule.polled(NOW, [])
    for seconds in back_in:
        schedule.expect("a", NOW + seconds)
    assert schedule.next_poll() == NOW + next_in
    schedule.polled(NOW + 1, ["a"])
    schedule.polled(NOW + 1, [])
    assert schedule.next_poll() == NOW + 1 + interval, "it came, and is no longer expected"


def test_a_message_that_is_late_is_looked_for_a_few_times_more_which_does_not_lengthen_the_sleep():
    schedule = PollSchedule(10, 1000)
    schedule.polled(NOW, [])
    schedule.expect("a", NOW + 3)
    looks = []
    while (due := schedule.next_poll()) < NOW + 10:
        looks.append(due)
        schedule.polled(due, [])
    assert due == NOW + 10
    assert looks == list(itertools.accumulate(FOLLOW_UP_SECONDS, initial=NOW + 3))
    schedule.polled(NOW + 10, [])
    assert schedule.next_poll() == NOW + 10 + 20


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.floats(0, 100)), max_size=30), st.integers(1, 5))
def test_of_more_messages_than_can_be_remembered_those_that_come_back_last_are_forgotten(hidden, limit):
    schedule = PollSchedule(600, 600)
    remembered: dict[str, float] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(polling, "MAX_EXPECTED", limit)
        for name, back_in in hidden:
            schedule.expect(name, NOW + back_in)
            remembered[name] = NOW + back_in
            remembered = dict(sorted(remembered.items(), key=lambda item: (item[1], item[0]))[:limit])
    for name, at in remembered.items():
        assert schedule.next_expected() == at
        schedule.arrived([name])
    assert schedule.next_expected() is None


@pytest.mark.parametrize(
    ("interval", "message_ids", "took", "back_in", "next_in"),
    [
        (0, [], 0.3, 60, EMPTY_POLL_SECONDS - 0.3),
        (0, ["b"], 0.01, 60, 0),
        (0, [], 20, 60, 0),
        (0, [], 0, 0.5, 0.5),
        (0.1, [], 0.01, 60, 0.1),
    ],
    ids=["empty at once", "it brought something", "it waited", "a message comes back", "its own interval"],
)
def test_the_pause_after_a_poll(interval, message_ids, took, back_in, next_in):
    schedule = PollSchedule(interval, interval)
    schedule.expect("a", NOW + back_in)
    schedule.polled(NOW, message_ids, took=took)
    assert max(0, schedule.next_poll() - NOW) == pytest.approx(next_in)


class Polling(RuleBasedStateMachine):
    """A queue polled when its schedule says so, while messages are hidden and come, or do not."""

    def __init__(self):
        super().__init__()
        self.now = NOW
        self.schedule = PollSchedule(5, 80)
        self.expected: dict[str, float] = {}
        self.ordinary = self.now  # the latest instant at which an ordinary poll is due

    @rule(message=st.sampled_from("abcdef"), delay=st.floats(0, 300))
    def hide(self, message, delay):
        self.expected[message] = self.now + delay
        self.schedule.expect(message, self.now + delay)

    @rule(seconds=st.floats(0, 100))
    def time_passes(self, seconds):
        self.now += seconds

    @precondition(lambda self: self.schedule.next_poll() > self.now)
    @rule()
    def time_passes_until_the_next_poll(self):
        self.now = self.schedule.next_poll()

    @rule(data=st.data())
    def poll(self, data):
        back = sorted(message for message, at in self.expected.items() if at <= self.now)
        brought = data.draw(st.lists(st.sampled_from(back), unique=True)) if back else []
        self.schedule.polled(self.now, brought)
        # What did not come at its time is looked for again, but that is an extra, not a promise.
        self.expected = {message: at for message, at in self.expected.items() if at > self.now}
        self.ordinary = self.now + 80

    @invariant()
    def no_message_waits_for_the_sleep_to_end(self):
        assert self.schedule.next_poll() <= min([*self.expected.values(), self.ordinary])

    @invariant()
    def an_idle_queue_is_left_alone(self):
        """Whenever a poll is due, another one right after it is not, unless something is expected."""
        if self.schedule.next_poll() > self.now:
            return
        self.schedule.polled(self.now, [])
        self.expected = {message: at for message, at in self.expected.items() if at > self.now}
        self.ordinary = self.now + 80
        assert self.schedule.next_poll() > self.now


TestPolling = Polling.TestCase


def test_after_a_pause_the_queue_is_polled_at_once_and_sleeps_as_at_first():
    schedule = PollSchedule(2, 60)
    for now in (0, 10, 20):
        schedule.polled(now, [])
    schedule.poll_now()
    assert schedule.next_poll() <= 20
    schedule.polled(20, [])
    assert schedule.next_poll() == 22

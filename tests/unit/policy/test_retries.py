"""Whether a message comes back, how often, and after how long."""

import math
import sys
from datetime import timedelta

import pytest
from celery import Task
from hypothesis import example, given
from hypothesis import strategies as st

from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON_SECONDS
from celery_sqs_visibility.policy.retries import (
    CELERY_RETRY_DELAY_SECONDS,
    RELEASES_FORGIVEN,
    UNKNOWN_TASK_SECONDS,
    UNREADABLE_RECEIVES,
    DelayRules,
    End,
    ExponentialBackoff,
    are_spent,
    attempts_allowed,
    attempts_made,
    by_attempt,
    choose_delay,
    comes_back_after,
    is_last_attempt,
    is_permanently_unreadable,
    parse_delay,
    retry_after,
    whole_seconds,
)

COUNTS = st.integers(0, 1000)


@pytest.mark.parametrize(
    ("receive_count", "parks", "published_retries", "attempts"),
    [(1, 0, 0, 0), (4, 0, 0, 3), (4, 2, 0, 1), (2, 0, 5, 6)],
    ids=["first", "every receive", "no parks", "celery's retries too"],
)
def test_receives_and_published_retries_count_as_attempts(receive_count, parks, published_retries, attempts):
    assert attempts_made(receive_count, parks, published_retries) == attempts


@given(st.integers(1, 1000), COUNTS, COUNTS)
def test_more_parks_than_receives_make_no_negative_attempts(receive_count, parks, published):
    assert attempts_made(receive_count, parks, published) >= published


@pytest.mark.parametrize(
    ("retries", "max_retries", "receive_count", "max_receive_count", "allowed"),
    [(0, None, 1, None, None), (1, 5, 2, None, 6), (1, None, 2, 4, 4), (1, 5, 2, 4, 4), (0, 5, 3, 4, 2)],
    ids=["no limit", "the task's", "the queue's", "the lower one", "parks use receives up"],
)
def test_the_lower_limit_says_how_many_attempts_there_are(
    retries, max_retries, receive_count, max_receive_count, allowed
):
    assert attempts_allowed(retries, max_retries, receive_count, max_receive_count) == allowed


@pytest.mark.parametrize(
    ("retries", "max_retries", "receive_count", "max_receive_count", "last"),
    [
        (2, 3, 3, None, False),
        (3, 3, 4, None, True),
        (4, 3, 5, None, True),
        (0, 0, 1, None, True),
        (2, None, 3, 4, False),
        (3, None, 4, 4, True),
        (4, None, 5, 4, True),
        (999, None, 1000, None, False),
    ],
)
def test_an_attempt_at_the_limit_is_the_last(retries, max_retries, receive_count, max_receive_count, last):
    assert is_last_attempt(retries, max_retries, receive_count, max_receive_count) is last


@pytest.mark.parametrize(
    ("retries", "max_retries", "spent"),
    [(6, 3, False), (7, 3, True), (RELEASES_FORGIVEN, 0, False), (99, None, False)],
)
def test_attempts_are_spent_beyond_the_releases_that_are_forgiven(retries, max_retries, spent):
    assert are_spent(retries, max_retries) is spent


@pytest.mark.parametrize(
    ("receives", "seconds", "others_may", "given_up"),
    [
        (UNREADABLE_RECEIVES - 1, 1e6, False, False),
        (UNREADABLE_RECEIVES, 0, False, True),
        (UNREADABLE_RECEIVES, UNKNOWN_TASK_SECONDS - 1, True, False),
        (UNREADABLE_RECEIVES - 1, UNKNOWN_TASK_SECONDS, True, False),
        (UNREADABLE_RECEIVES, UNKNOWN_TASK_SECONDS, True, True),
    ],
)
def test_a_message_that_is_no_task_closes_its_group_for_a_while(receives, seconds, others_may, given_up):
    assert is_permanently_unreadable(receives, seconds, others_may=others_may) is given_up
    assert Task.max_retries + 1 == UNREADABLE_RECEIVES, "as a task that says nothing"


#: Of each end: whether it comes back where the task does not retry the exception.
NOT_RETRIED = {
    End.FAILED: False,
    End.LOST: False,
    End.UNDECIDED: True,  # the exception is not the task's
    End.RETRIED: True,
}


@pytest.mark.parametrize("end", End)
def test_the_end_of_a_run_decides_with_the_tasks_retries_and_its_attempts(end):
    assert comes_back_after(end)
    assert comes_back_after(end, retried=False) is NOT_RETRIED[end]
    assert not comes_back_after(end, last=True)
    assert not comes_back_after(end, retried=False, last=True)


NAME = "error_visibility_timeout"
SECONDS = st.floats(0, VISIBILITY_HORIZON_SECONDS) | st.integers(0, VISIBILITY_HORIZON_SECONDS)
RETRIES = st.integers(0, 1000)
MAYBE_RULE = st.none() | st.lists(SECONDS, min_size=1, max_size=3).map(lambda seconds: by_attempt(*seconds))


class AsksError(Exception):
    """An exception that says when to come back."""

    def __init__(self, after):
        super().__init__(after)
        self.retry_after = after


def parsed(value):
    rule = parse_delay(NAME, value)
    assert rule is not None
    return rule


@pytest.mark.parametrize(("value", "seconds"), [(7, (7,)), ((1, 2), (1, 2)), (range(1, 4), (1, 2, 3))])
def test_a_number_and_any_sequence_are_lists(value, seconds):
    rule = parsed(value)
    assert tuple(rule(retries, Exception()) for retries in range(len(seconds))) == seconds
    assert parse_delay(NAME, None) is None


@example([VISIBILITY_HORIZON_SECONDS], 0)
@given(st.lists(SECONDS, min_size=1), RETRIES)
def test_a_list_goes_by_attempt_and_repeats_its_last(seconds, retries):
    rule = parsed(seconds)
    expected = seconds[retries] if retries < len(seconds) else seconds[-1]
    assert rule(retries, ValueError()) == expected


def test_a_function_sees_the_retries_and_the_exception_and_may_have_no_opinion():
    error = ValueError("no")
    rule = parsed(lambda retries, exc: 7 if (retries, exc) == (3, error) else None)
    assert rule(3, error) == 7
    assert rule(2, error) is None
    rules = DelayRules(task=rule, fallback=parsed(8))
    assert choose_delay(rules, 2, error, explicit=True) == 8, "it is left to the next"


@pytest.mark.parametrize("value", [-1, -math.inf, "60", True, math.nan, timedelta(seconds=1), [1]])
def test_a_function_that_returns_no_seconds_is_an_error(value):
    with pytest.raises(ValueError, match=r"error_visibility_timeout\(retries, exc\)"):
        parsed(lambda _retries, _exc: value)(0, ValueError())


def test_a_function_may_ask_for_more_than_twelve_hours_and_waits_as_long_as_sqs_can():
    # As `countdown` and `retry_after` may: the settler clamps. Steep backoffs get there after a few attempts.
    assert parsed(lambda retries, _exc: 60 * 4**retries)(6, ValueError()) >= VISIBILITY_HORIZON_SECONDS
    assert parsed(lambda _retries, _exc: math.inf)(6, ValueError()) == VISIBILITY_HORIZON_SECONDS


def broken(retries, exc):
    raise LookupError("a user's bug")


@pytest.mark.parametrize("function", [broken, lambda _retries, _exc: math.nan])
@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ({"queue": parsed(6), "backoff": parsed(7)}, 6),
        ({"backoff": parsed(7), "retry_delay": 8, "fallback": parsed(9)}, 7),
        ({"retry_delay": 8, "fallback": parsed(9)}, 8),
        ({"fallback": parsed(9)}, 9),
        ({"fallback": parsed(broken)}, CELERY_RETRY_DELAY_SECONDS),
    ],
)
def test_a_rule_that_raises_is_reported_and_the_next_decides(function, others, expected):
    reported = []
    rules = DelayRules(task=parsed(function), **others)
    chosen = choose_delay(
        rules, 0, ValueError(), explicit=True, failed=lambda: reported.append(sys.exc_info()[0])
    )
    assert chosen == expected
    assert reported[0] in (LookupError, ValueError)
    assert len(reported) == (2 if expected == CELERY_RETRY_DELAY_SECONDS else 1)


@pytest.mark.parametrize(
    "value", [-1, VISIBILITY_HORIZON_SECONDS + 1, math.nan, math.inf, True, "60", b"1m", {}, object(), {1}]
)
def test_a_bad_delay_is_refused_by_name_and_value(value):
    with pytest.raises(ValueError, match=NAME) as caught:
        parse_delay(NAME, value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([], "expected error_visibility_timeout to hold at least one"),
        ([1, 2, "x"], r"error_visibility_timeout\[2\].*'x'"),
        (lambda: 1, r"two arguments, \(retries, exc\)"),
        (lambda _one: 1, r"two arguments, \(retries, exc\)"),
        (lambda _a, _b, _c: 1, r"two arguments, \(retries, exc\)"),
    ],
    ids=["an empty list", "a bad item, by its place", "no argument", "one argument", "three arguments"],
)
def test_a_bad_shape_is_refused_at_once(value, said):
    with pytest.raises(ValueError, match=said):
        parse_delay(NAME, value)


def test_a_builtin_that_tells_nothing_of_its_arguments_is_taken_at_its_word():
    with pytest.raises(TypeError, match="not supported between"):
        parsed(max)(1, Exception())


@given(RETRIES, st.floats(0, 1e300), st.floats(0, 1e9))
def test_a_backoff_without_jitter_doubles_up_to_its_maximum(retries, base, maximum):
    backoff = ExponentialBackoff(base, maximum, jitter=False)
    doubled = min(maximum, base * 2.0 ** min(retries, 64))
    assert backoff(retries) == doubled
    assert parsed(backoff)(retries, ValueError()) == min(doubled, VISIBILITY_HORIZON_SECONDS)


@given(RETRIES, st.floats(0, 1e6), st.floats(0, VISIBILITY_HORIZON_SECONDS))
def test_jitter_stays_between_half_and_all_of_the_delay(retries, base, maximum):
    whole = ExponentialBackoff(base, maximum, jitter=False)(retries)
    assert whole / 2 <= ExponentialBackoff(base, maximum)(retries, ValueError()) <= whole


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [(5, 5), (2.5, 2.5), ("30", 30), (timedelta(minutes=1), 60), (0, 0), (10**6, 10**6)]
    + [(asked, None) for asked in (None, True, -1, timedelta(-1), math.nan, math.inf, "tomorrow", [], print)],
)
def test_an_exception_may_say_when_to_come_back(asked, seconds):
    assert retry_after(AsksError(asked)) == seconds
    assert retry_after(ValueError()) is None


@given(st.integers() | st.floats() | st.text() | st.binary() | st.none() | st.timedeltas())
@example(10**400)
def test_whatever_an_exception_says_a_usable_delay_or_none_comes_of_it(asked):
    seconds = retry_after(AsksError(asked))
    assert seconds is None or (math.isfinite(seconds) and seconds >= 0)


@given(
    st.builds(DelayRules, MAYBE_RULE, MAYBE_RULE, MAYBE_RULE, st.none() | SECONDS, MAYBE_RULE),
    RETRIES,
    st.none() | st.floats(-1e9, 1e9),
    st.none() | SECONDS,
    st.booleans(),
)
def test_the_first_that_has_an_opinion_wins(rules, retries, countdown, asked, explicit):
    exc = ValueError() if asked is None else AsksError(asked)
    in_order = [
        None if countdown is None else max(0.0, countdown),
        asked,
        rules.task and rules.task(retries, exc),
        rules.queue and rules.queue(retries, exc),
        rules.backoff and rules.backoff(retries, exc),
        rules.retry_delay,
        rules.fallback and rules.fallback(retries, exc),
        CELERY_RETRY_DELAY_SECONDS if explicit else None,
    ]
    expected = next((delay for delay in in_order if delay is not None), None)
    chosen = choose_delay(rules, retries, exc, explicit=explicit, countdown=countdown)
    assert chosen == expected
    assert chosen is None or chosen >= 0


@given(st.floats(0, 1e9))
def test_whole_seconds_never_come_back_early(delay):
    assert delay <= whole_seconds(delay) <= delay + 1
    assert isinstance(whole_seconds(delay), int)

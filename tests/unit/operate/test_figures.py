import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.operate.figures import duration_text, parse_duration, usd_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10m", 600), ("90s", 90), ("2h", 7200), ("1h30m", 5400), ("45", 45), ("0.5", 0.5), (" 1D ", 86_400)],
)
def test_people_write_durations_with_units_or_in_seconds(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0m", "-5", "10 minutes", "m", "30m1h", "1e3", "inf", "9" * 400])
def test_a_wrong_duration_says_what_is_one(text):
    with pytest.raises(ValueError, match="such as 90s, 10m, 1h30m, or seconds"):
        parse_duration(text)


def test_nothing_may_be_a_duration():
    assert parse_duration("0m", zero=True) == parse_duration("0", zero=True) == 0
    with pytest.raises(ValueError, match="such as 90s"):
        parse_duration("", zero=True)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.2, "0.2s"), (25.5, "25.5s"), (60, "1m"), (90, "1m30s"), (3605, "1h"), (90_061, "1d1h")],
)
def test_the_two_largest_units_are_shown(seconds, text):
    assert duration_text(seconds) == text


@given(st.integers(1, 86_399))
def test_what_is_shown_is_read_again_to_the_minute(seconds):
    assert abs(parse_duration(duration_text(seconds)) - seconds) < 60


def test_a_fifo_queue_costs_more():
    assert usd_of(1_000_000, "q.fifo") > usd_of(1_000_000, "q")

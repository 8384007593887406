"""Which task takes an event: the longest pattern that fits, and never two."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.policy.event_routes import EventRoute, EventRoutes, parse_sqs_event

NAMES = st.text("s3:/ab", min_size=1, max_size=6)


def routes(*patterns):
    return EventRoutes(EventRoute(pattern, f"task of {pattern}") for pattern in patterns)


@pytest.mark.parametrize(
    ("event", "pattern"),
    [
        ("s3:ObjectCreated:Put", "s3:ObjectCreated:Put"),
        ("s3:ObjectCreated:Copy", "s3:ObjectCreated:*"),
        ("s3:ObjectRemoved:Delete", "s3:*"),
        ("aws.s3/Object Created", "aws.s3/Object Created"),
        ("aws.s3/Object Deleted", None),
        ("sns:uploads", None),
    ],
)
def test_the_longest_pattern_that_fits_counts(event, pattern):
    table = routes("s3:*", "aws.s3/Object Created", "s3:ObjectCreated:Put", "s3:ObjectCreated:*")
    found = table.find(event)
    assert (found and found.pattern) == pattern


@given(st.lists(NAMES, unique=True, max_size=5), NAMES)
def test_what_is_found_fits_and_nothing_longer_does(patterns, event):
    table = [EventRoute(f"{pattern}*", "task") for pattern in patterns]
    found = EventRoutes(table).find(event)
    fitting = [route for route in table if route.fits(event)]
    assert (found in fitting) == bool(fitting)
    assert all(len(route.pattern) <= len(found.pattern) for route in fitting)


def test_two_tasks_cannot_have_one_pattern():
    with pytest.raises(ValueError, match=r"'a' and 'b' both have sqs_event='s3:\*': give it to one task"):
        EventRoutes([EventRoute("s3:*", "b"), EventRoute("s3:*", "a")])


def test_no_routes_are_false():
    assert not EventRoutes()
    assert routes("s3:*")


@pytest.mark.parametrize(
    ("value", "patterns"),
    [
        (None, ()),
        ("s3:ObjectCreated:*", ("s3:ObjectCreated:*",)),
        (["sns:uploads", "aws.s3/Object Created"], ("sns:uploads", "aws.s3/Object Created")),
        ("aws.partner/example.com/Order Placed", ("aws.partner/example.com/Order Placed",)),
        ("my.shop/*", ("my.shop/*",)),
    ],
)
def test_patterns(value, patterns):
    assert parse_sqs_event("sqs_event", value) == patterns


@pytest.mark.parametrize(
    "value", ["ObjectCreated", "s3:*:Put", "*", "", [], 5, ["s3:*", None], {"source": "aws.s3"}]
)
def test_what_is_no_pattern_is_refused(value):
    with pytest.raises(OptionError, match=r"expected sqs_event to be an event as 's3:ObjectCreated:\*'"):
        parse_sqs_event("sqs_event", value)

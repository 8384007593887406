"""Where keys are kept, what they are called, and how long a message waits for one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.errors import ExclusiveKeyError, OptionError
from celery_sqs_visibility.policy.exclusive import (
    KEY_BYTES,
    key_of,
    message_of,
    owner_of,
    seconds_to_wait,
    store_address,
)
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON_SECONDS


def test_a_table_may_have_a_region_of_its_own():
    plain, regional = (
        store_address("coordination_store", f"dynamodb://keys{query}") for query in ("", "?region=eu-west-1")
    )
    assert (plain.table, plain.region, plain.is_redis) == ("keys", None, False)
    assert (regional.table, regional.region) == ("keys", "eu-west-1")


@pytest.mark.parametrize("url", ["redis://:secret@host:6379/1", "rediss://host"])
def test_a_redis_is_named_by_its_url_which_is_not_shown(url):
    address = store_address("coordination_store", url)
    assert address.is_redis
    assert address.url == url
    assert "secret" not in repr(address)


@pytest.mark.parametrize(
    "value",
    [
        "table",
        5,
        "memory://",
        "dynamodb://",
        "dynamodb://a/b",
        "dynamodb://a?endpoint=x",
        "dynamodb://k:secret@a",
        "redis://[secret",
    ],
)
def test_any_other_address_is_refused_without_showing_secrets(value):
    with pytest.raises(OptionError, match="expected coordination_store to be dynamodb://TABLE") as caught:
        store_address("coordination_store", value)
    assert "secret" not in str(caught.value)


@given(st.text(min_size=1, max_size=100) | st.integers())
def test_a_key_is_its_tasks_own_and_fits_or_is_refused(given_key):
    try:
        key = key_of("proj.task", given_key)
    except ExclusiveKeyError:  # a lone surrogate
        return
    assert key == f"proj.task:{given_key}"
    assert len(key.encode()) <= KEY_BYTES


@pytest.mark.parametrize("given_key", [None, "", True, 1.5, b"bytes", ("a",), "ä" * KEY_BYTES, "\ud800"])
def test_what_is_no_key_is_refused(given_key):
    with pytest.raises(ExclusiveKeyError, match=r"'proj\.task'"):
        key_of("proj.task", given_key)


@given(st.floats(-1e6, 1e6))
def test_a_message_waits_until_the_lease_has_lapsed_and_no_longer_than_sqs_allows(left):
    seconds = seconds_to_wait(left)
    assert 1 <= seconds <= VISIBILITY_HORIZON_SECONDS
    assert seconds >= min(left, VISIBILITY_HORIZON_SECONDS)
    assert seconds < max(left, 0) + 1 or seconds == 1


def test_an_owner_tells_its_message():
    assert message_of(owner_of("m-1", "run")) == "m-1"

"""The transport options: declared once, checked together, refused with a sentence that helps."""

from __future__ import annotations

import sys
from dataclasses import FrozenInstanceError, fields
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.policy.options import (
    OptionError,
    Options,
    option_name,
    reference_table,
)
from celery_sqs_visibility.policy.other_options import OTHER_PEOPLES_OPTIONS, REMEDIES
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON_SECONDS, WAIT_TIME_SECONDS
from celery_sqs_visibility.policy.retry_delays import ExponentialBackoff

NAMES = [option_name(f.name) for f in fields(Options)]
IN_SECONDS = [
    "visibility_timeout",
    "heartbeat_interval",
    "wait_time_seconds",
    "polling_interval",
    "polling_interval_max",
    "shutdown_timeout",
    "settle_window",
    "prefetch_seconds",
    "sts_token_timeout",
    "sts_token_buffer_time",
]
MODULE = "module_of_a_user"
BACKOFF = ExponentialBackoff(30, jitter=False)


def refusal(options):
    with pytest.raises(OptionError) as caught:
        Options.parse(options)
    return str(caught.value)


def test_the_defaults_are_those_of_the_readme():
    options = Options.parse({})
    assert (options.visibility_timeout, options.heartbeat_interval) == (120, 40)
    assert options.error_visibility_timeout is None
    assert options.wait_time_seconds == 20
    assert (options.polling_interval, options.polling_interval_max) == (0, 0)
    assert (options.shutdown_timeout, options.settle_window, options.prefetch_seconds) == (25, 0.02, 1)
    assert options.sqs_base64_encoding is True
    assert options.is_secure is False


@pytest.mark.parametrize("field", fields(Options), ids=lambda field: field.name)
def test_every_option_is_declared_with_a_parser_a_default_and_a_sentence(field):
    assert callable(field.metadata["parse"])
    assert field.metadata["default"]
    assert field.metadata["doc"].endswith(".")


@pytest.mark.parametrize("name", IN_SECONDS)
@pytest.mark.parametrize(
    "value", [-1, VISIBILITY_HORIZON_SECONDS + 1, "soon", True, [], float("nan"), float("inf")]
)
def test_every_duration_has_bounds_and_is_a_number(name, value):
    message = refusal({name: value})
    assert name in message
    assert repr(value) in message


@pytest.mark.parametrize("name", ["visibility_timeout", "polling_interval"])
def test_a_number_too_large_for_a_float_is_an_option_error_too(name):
    assert name in refusal({name: 10**400})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("region", 5),
        ("is_secure", "yes"),
        ("queue_name_prefix", 5),
        ("predefined_queues", ["q"]),
        ("predefined_queues", {"q": {}}),
        ("predefined_queues", {"q": "https://sqs/q"}),
        ("sqs-creation-attributes", "x"),
        ("queue_tags", [1]),
        ("client-config", 5),
        ("fetch_message_attributes", 5),
        ("sqs_base64_encoding", "perhaps"),
        ("sts_role_arn", 5),
        ("sts_token_timeout", 899),
        ("wait_time_seconds", WAIT_TIME_SECONDS + 1),
        ("settle_window", 6),
        ("prefetch_seconds", 61),
        ("visibility_timeout", 0),
        ("visibility_timeout", 1.5),
        ("error_visibility_timeout", -1),
        ("error_visibility_timeout", []),
        ("error_visibility_timeout", [1, "x"]),
        ("error_visibility_timeout", VISIBILITY_HORIZON_SECONDS + 1),
        ("error_visibility_timeout", "no.such.module"),
        ("error_visibility_timeout", "celery_sqs_visibility.policy.retry_delays.no_such"),
        ("error_visibility_timeout", "word"),
        ("error_visibility_timeout", ".relative.path"),
        ("on_exhausted", "Keep"),
        ("on_exhausted", ["keep"]),
        ("dead_letter_queue", "arn:aws:sqs:eu-west-1:123456789012:dead"),
        ("dead_letter_queue", "https://sqs.eu-west-1.amazonaws.com/123456789012/dead"),
        ("dead_letter_queue", 7),
    ],
)
def test_a_bad_value_is_refused_by_the_name_of_its_option(name, value):
    message = refusal({name: value})
    assert name in message
    assert "expected" in message
    assert "got" in message or "agree" in message


@given(st.sampled_from(IN_SECONDS), st.one_of(st.text(), st.integers(), st.floats(), st.binary()))
def test_whatever_is_given_for_a_duration_it_is_refused_or_a_number_within_bounds(name, value):
    try:
        options = Options.parse({name: value})
    except OptionError:
        assert name in refusal({name: value})
    else:
        assert 0 <= getattr(options, name) <= VISIBILITY_HORIZON_SECONDS


@pytest.mark.parametrize(
    ("name", "given", "default", "value"),
    [
        ("visibility_timeout", "60", 120, 60),
        ("on_exhausted", "keep", "delete", "keep"),
        ("on_lost", "terminate", "continue", "terminate"),
        ("dead_letter_queue", "my.dead.fifo", None, "my.dead.fifo"),
        ("is_secure", "true", False, True),
        ("sqs_base64_encoding", 0, True, False),
    ],
)
def test_a_good_value_replaces_the_default_also_as_text(name, given, default, value):
    assert getattr(Options.parse({}), name) == default
    assert getattr(Options.parse({name: given}), name) == value


@pytest.mark.parametrize("value", [None, ""])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_and_empty_text_mean_not_set_as_for_kombu(name, value):
    assert Options.parse({name: value}) == Options.parse({})


@pytest.mark.parametrize(
    "name", ["heartbeat_interval", "wait_time_seconds", "settle_window", "prefetch_seconds"]
)
def test_zero_is_a_value(name):
    assert getattr(Options.parse({name: 0}), name) == 0


@given(st.integers(1, VISIBILITY_HORIZON_SECONDS))
def test_the_heartbeat_follows_the_visibility_timeout(visibility_timeout):
    options = Options.parse({"visibility_timeout": visibility_timeout})
    assert options.heartbeat_interval == visibility_timeout / 3


def test_the_longest_sleep_follows_the_first():
    assert Options.parse({"polling_interval": 7}).polling_interval_max == 7


def test_a_heartbeat_that_comes_too_late_is_refused():
    message = refusal({"visibility_timeout": 30, "heartbeat_interval": 30})
    assert "heartbeat_interval" in message
    assert "visibility_timeout (30)" in message
    assert "got 30" in message


def test_a_longest_sleep_shorter_than_the_first_is_refused():
    message = refusal({"polling_interval": 10, "polling_interval_max": 5})
    assert "polling_interval_max" in message
    assert "got 5" in message


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("visibilty_timeout", "visibility_timeout"),
        ("heartbeat_intervall", "heartbeat_interval"),
        ("error_visibility_timout", "error_visibility_timeout"),
        ("client_config", "client-config"),
        ("sqs_creation_attributes", "sqs-creation-attributes"),
        ("wait_time", "wait_time_seconds"),
    ],
)
def test_a_misspelt_name_suggests_the_nearest(misspelt, meant):
    message = refusal({misspelt: 1})
    assert f"{misspelt!r}" in message
    assert f"did you mean {meant!r}?" in message


def test_a_name_like_no_other_lists_them_all():
    message = refusal({"xyzzy": 1})
    assert all(name in message for name in NAMES)


@pytest.mark.parametrize("name", sorted(REMEDIES))
def test_what_we_do_not_do_is_refused_with_the_reason(name):
    assert REMEDIES[name] in refusal({name: True})


@pytest.mark.parametrize(
    "given",
    [
        {"aws_secret_access_key": "hush"},
        {"client-config": "https://me:hush@proxy"},
        {"predefined_queues": [{"secret_access_key": "hush"}]},
        {"predefined_queues": {"q": {"secret_access_key": "hush"}}},
    ],
    ids=repr,
)
def test_no_refusal_shows_a_secret(given):
    assert "hush" not in refusal(given)


@pytest.mark.parametrize("name", sorted(OTHER_PEOPLES_OPTIONS))
def test_options_of_kombu_and_celery_are_left_alone(name):
    assert Options.parse({name: object()}) == Options.parse({})


@pytest.mark.parametrize("value", [30, [30, 60], BACKOFF, f"{MODULE}.BACKOFF"], ids=repr)
def test_the_error_visibility_timeout_takes_every_shape(value, monkeypatch):
    monkeypatch.setitem(sys.modules, MODULE, SimpleNamespace(BACKOFF=BACKOFF))
    rule = Options.parse({"error_visibility_timeout": value}).error_visibility_timeout
    assert rule is not None
    assert rule.delay(0, ValueError()) == 30


def test_what_a_dotted_path_names_is_checked_at_start():
    path = "celery_sqs_visibility.policy.attempts.attempts_made"
    with pytest.raises(OptionError, match=r"two arguments"):
        Options.parse({"error_visibility_timeout": path})


@pytest.mark.parametrize("separator", [".", ":"])
def test_a_path_may_be_written_with_a_colon(separator):
    path = f"celery_sqs_visibility.policy.quotas{separator}DELAY_SECONDS"
    rule = Options.parse({"error_visibility_timeout": path}).error_visibility_timeout
    assert rule is not None
    assert rule.delay(0, ValueError()) == 900


@pytest.mark.parametrize(("name", "url"), [("q.fifo", "https://sqs/1/q"), ("q", "https://sqs/1/q.fifo")])
def test_fifo_queues_are_named_so(name, url):
    message = refusal({"predefined_queues": {name: {"url": url}}})
    assert repr(name) in message
    assert repr(url) in message


def test_predefined_queues_are_kept_as_they_are():
    queues = {"q": {"url": "https://sqs/1/q", "region": "eu-west-1"}}
    assert Options.parse({"predefined_queues": queues}).predefined_queues == queues


def test_options_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        Options.parse({}).visibility_timeout = 5


def test_the_reference_has_a_row_for_every_option_with_default_and_meaning():
    head, rule, *rows = reference_table().splitlines()
    assert head == "| option | default | bounds | meaning |"
    assert rule == "|---|---|---|---|"
    assert len(rows) == len(NAMES)
    for row, field in zip(rows, fields(Options), strict=True):
        _, name, default, bounds, meaning, _ = (cell.strip() for cell in row.split("|"))
        assert name == f"`{option_name(field.name)}`"
        assert default == f"`{field.metadata['default']}`"
        assert bounds == field.metadata["bounds"]
        assert meaning == field.metadata["doc"]


def test_the_reference_tells_the_true_defaults():
    options = Options.parse({})
    for field in fields(Options):
        shown = field.metadata["default"]
        if shown not in {"visibility_timeout / 3", "polling_interval"}:
            assert shown == repr(getattr(options, field.name))

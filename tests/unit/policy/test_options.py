"""Transport options: each is checked, and all errors are told at once."""

import re
import sys
from dataclasses import fields
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.reference import options_page

from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.operate.templates.terraform import TERRAFORM
from celery_sqs_visibility.policy.option_parsers import KOMBU_OPTIONS, Seconds
from celery_sqs_visibility.policy.options import (
    Options,
    beyond_horizon,
    option_name,
)
from celery_sqs_visibility.policy.queue_names import ATTRIBUTES
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON_SECONDS, WAIT_TIME_SECONDS
from celery_sqs_visibility.policy.retries import ExponentialBackoff
from celery_sqs_visibility.policy.unknown_options import REMEDIES

TOPIC = "arn:aws:sns:eu-west-1:123456789012:x"
NAMES = [option_name(f.name) for f in fields(Options)]
PARSERS = {f.name: f.metadata["parse"] for f in fields(Options)}
IN_SECONDS = [
    name
    for name, parse in PARSERS.items()
    if isinstance(parse, Seconds) and parse.high <= VISIBILITY_HORIZON_SECONDS
]
MODULE = "module_of_a_user"
BACKOFF = ExponentialBackoff(30, jitter=False)


def refusal(options):
    with pytest.raises(OptionError) as caught:
        Options.parse(options)
    return str(caught.value)


TOO_LARGE_FOR_A_FLOAT = 10**400
BAD_SECONDS = [-1, VISIBILITY_HORIZON_SECONDS + 1, "soon", True, [], float("nan"), float("inf")]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param(name, value, id=f"{name}-{str(value)[:20]}")
        for name in IN_SECONDS
        for value in [*BAD_SECONDS, TOO_LARGE_FOR_A_FLOAT]
        if (name, value) != ("visibility_timeout", VISIBILITY_HORIZON_SECONDS + 1)  # which is clamped
    ],
)
def test_every_duration_has_bounds_and_is_a_number(name, value):
    message = refusal({name: value})
    assert name in message
    assert repr(value) in message


NO_PATHS = ["word", ".relative.path", "no.such.module", "celery_sqs_visibility.policy.retries.no_such"]
NO_ADDRESSES = [8080, "8080", "x:", "x:0", "x:65536", "x:-1", "x:8o", "::1:80", "[x]:80", "[::]", "[::1:80"]
NO_BUCKETS = [5, "b", "s3:/b", "s3:///x", "S3://b", "s3://a b/", "s3://s3://b", "s3://b/" + "x" * 901]
BAD = {
    "decompressed_max_bytes": [1.5e9, "many", 5],
    "http_address": [*NO_ADDRESSES, "http://x:80", "x:80/metrics", "x y:80"],
    "payload_store": NO_BUCKETS,
    "control_prefix": ["a.b", 1],
    "region": [5],
    "is_secure": ["yes"],
    "queue_name_prefix": [5],
    "predefined_queues": [["q"], {"q": {}}, {"q": "https://sqs/q"}],
    "QueueOwnerAWSAccountId": [123456789012, "1234"],
    "sqs-creation-attributes": ["x"],
    "queue_tags": [[1]],
    "client-config": [5],
    "fetch_message_attributes": [5],
    "sqs_base64_encoding": ["perhaps"],
    "sts_role_arn": [5],
    "sts_token_timeout": [899],
    "sts_token_buffer_time": [43_200],
    "wait_time_seconds": [WAIT_TIME_SECONDS + 1],
    "visibility_timeout": [0, 1.5],
    "error_visibility_timeout": [-1, [], [1, "x"], VISIBILITY_HORIZON_SECONDS + 1, *NO_PATHS],
    "when_exhausted": ["Keep", ["keep"]],
    "message_adapter": [5, "adapt", "proj.adapters:", "proj adapters:adapt"],
    "coordination_store": [7, "table", "memory://"],
    "dead_letter_queue": [
        7,
        "arn:aws:sqs:eu-west-1:1234:dead",
        "https://sqs.eu-west-1.amazonaws.com/1234/dead",
    ],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in BAD.items() for value in values],
    ids=lambda each: repr(each)[:60],
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
        given = getattr(options, name)
        assert (value == "" and options == Options.parse({})) or 0 <= given <= VISIBILITY_HORIZON_SECONDS


TEXTS = {"FifoQueue": "true", "DelaySeconds": "5"}
POLICY = {"RedrivePolicy": '{"maxReceiveCount": 5}'}


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("visibility_timeout", "60", 60),
        ("visibility_timeout", "43200.0", 43_200),  # as in Airflow's configuration
        ("polling_interval", "1.0", 1),
        ("when_exhausted", "keep", "keep"),
        ("when_lost", "terminate", "terminate"),
        ("dead_letter_queue", "my.dead.fifo", "my.dead.fifo"),
        ("message_adapter", "proj.adapters:to_task", "proj.adapters:to_task"),
        ("is_secure", "true", True),
        ("sqs_base64_encoding", 0, False),
        ("heartbeat_interval", 0, 0),
        ("wait_time_seconds", 0, 0),
        ("sqs-creation-attributes", {"FifoQueue": True, "DelaySeconds": 5}, TEXTS),
        ("sqs-creation-attributes", {"RedrivePolicy": {"maxReceiveCount": 5}}, POLICY),
        ("queue_tags", {"team": 7}, {"team": "7"}),
        ("QueueOwnerAWSAccountId", "001234567890", "001234567890"),
    ],
)
def test_a_good_value_replaces_the_default_also_as_text_and_as_zero(name, given, value):
    (field,) = (f.name for f in fields(Options) if option_name(f.name) == name)
    assert getattr(Options.parse({name: given}), field) == value


@pytest.mark.parametrize("value", [None, ""])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_and_empty_text_mean_not_set_as_for_kombu(name, value):
    assert Options.parse({name: value}) == Options.parse({})


@given(st.integers(1, VISIBILITY_HORIZON_SECONDS))
def test_the_heartbeat_follows_the_visibility_timeout_and_the_longest_sleep_the_first(seconds):
    options = Options.parse({"visibility_timeout": seconds, "polling_interval": seconds})
    assert options.heartbeat_interval == seconds / 3
    assert options.polling_interval_max == seconds


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"visibility_timeout": 30, "heartbeat_interval": 30},
            ["heartbeat_interval", "visibility_timeout (30)", "got 30"],
        ),
        ({"polling_interval": 10, "polling_interval_max": 5}, ["polling_interval_max", "got 5"]),
        ({"external_id": "42"}, ["sts_role_arn", "external_id"]),
        ({"predefined_exchanges": {"x": {"arn": f"{TOPIC}.fifo"}}}, ["'x'", f"'{TOPIC}.fifo'"]),
        ({"predefined_exchanges": {"x": {"arn": TOPIC}}}, ["supports_fanout is not set"]),
        ({"queue_order": "strict"}, ["expected queues to list the queues", "queue_order is 'strict'"]),
        (
            {"sts_token_timeout": 900, "sts_token_buffer_time": 900},
            ["sts_token_buffer_time", "sts_token_timeout (900)", "got 900"],
        ),
        (
            {"error_visibility_timeout": "celery_sqs_visibility.policy.retries.attempts_made"},
            ["two arguments"],
        ),
    ],
    ids=[
        "a heartbeat too late",
        "a longest sleep too short",
        "an id of no role",
        "a fifo topic",
        "exchanges without fanout",
        "an order of no queues",
        "credentials that are renewed without end",
        "what a path names",
    ],
)
def test_values_that_do_not_agree_are_refused(options, said):
    message = refusal(options)
    assert [part for part in said if part not in message] == []


MISSPELT = {
    "visibilty_timeout": "visibility_timeout",
    "heartbeat_intervall": "heartbeat_interval",
    "error_visibility_timout": "error_visibility_timeout",
    "client_config": "client-config",
    "sqs_creation_attributes": "sqs-creation-attributes",
    "wait_time": "wait_time_seconds",
}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        *((name, [repr(name), f"did you mean {meant!r}?"]) for name, meant in MISSPELT.items()),
        ("xyzzy", NAMES),
        *((name, [reason]) for name, reason in REMEDIES.items()),
    ],
)
def test_a_name_that_is_no_option_is_refused_with_the_nearest_or_all_or_the_reason(name, said):
    message = refusal({name: 1})
    assert [part for part in said if part not in message] == []


@pytest.mark.parametrize(
    "given",
    [
        {"aws_secret_access_key": "hush"},
        {"client-config": "https://me:hush@proxy"},
        {"predefined_queues": [{"secret_access_key": "hush"}]},
        {"predefined_exchanges": {"x": {"secret_access_key": "hush", "arn": "arn:aws:sqs:r:1:hush"}}},
    ],
    ids=repr,
)
def test_no_refusal_shows_a_secret(given):
    assert "hush" not in refusal(given)


@pytest.mark.parametrize("name", sorted(KOMBU_OPTIONS))
def test_options_of_kombu_and_celery_are_left_alone(name):
    assert Options.parse({name: object()}) == Options.parse({})


@pytest.mark.parametrize(
    "value",
    [
        30,
        [30, 60],
        BACKOFF,
        f"{MODULE}.BACKOFF",
        f"{MODULE}:BACKOFF",
        f"{MODULE}.SECONDS",
        f"{MODULE}:SECONDS",
    ],
    ids=repr,
)
def test_the_error_visibility_timeout_takes_every_shape(value, monkeypatch):
    monkeypatch.setitem(sys.modules, MODULE, SimpleNamespace(BACKOFF=BACKOFF, SECONDS=30))
    rule = Options.parse({"error_visibility_timeout": value}).error_visibility_timeout
    assert rule is not None
    assert rule(0, ValueError()) == 30


DERIVED = {
    "`25, or 5 s less than the grace period`",
    "`['prometheus'] where `http_address` is set and prometheus_client is installed`",
    "`visibility_timeout / 3`",
    "`polling_interval`",
    "`'fair', or 'weighted' if a queue has a weight`",
}


def test_the_reference_has_a_row_for_every_option_with_its_true_default_and_a_sentence():
    rows = [line for line in options_page().splitlines() if line.startswith("| `")]
    defaults = Options.parse({})
    shown = [field for field in fields(Options) if not field.metadata["internal"]]
    by_name = {f"`{option_name(field.name)}`": field for field in shown}
    assert {field.name for field in fields(Options)} - {field.name for field in shown} == {
        "control_prefix",
    }
    assert len(rows) == len(by_name)
    for row in rows:
        _, name, default, bounds, meaning, _ = (cell.strip() for cell in row.split("|"))
        named, _, anchor = name.partition("<")
        assert anchor == f'a id="{named.strip("`")}"></a>'
        field = by_name.pop(named)
        assert default == f"`{field.metadata['default']}`"
        if default not in DERIVED:
            assert default == f"`{getattr(defaults, field.name)!r}`"
        assert bounds == field.metadata["bounds"]
        assert meaning == field.metadata["doc"]
        assert meaning.endswith(".")
        assert re.search(r"\b(Set|Unset|Raise|Lower) it\b", meaning)  # when somebody changes it


def test_a_visibility_timeout_beyond_sqs_12_hours_counts_as_12_hours_and_is_known():
    given = {"visibility_timeout": "86400", "queues": {"q": {"visibility_timeout": 43201}, "*": {}}}
    options = Options.parse(given)
    assert options.visibility_timeout == options.for_queue("q").visibility_timeout == 43200
    assert options.heartbeat_interval == 14400
    assert beyond_horizon(given) == {
        "visibility_timeout": "86400",
        "queues['q']['visibility_timeout']": 43201,
    }
    assert beyond_horizon({"visibility_timeout": 43200}) == beyond_horizon({}) == {}


def test_all_wrong_options_are_told_at_once():
    given = {
        "queue_order_strategy": "sorted",
        "wait_times": 3,
        "visibility_timeout": "long",
        "queues": {"a": {"weihgt": 1, "max_runing": 2}, "b": {"weight": 0}},
        "predefined_queues": {"q": {"url": ""}, "r": {"ulr": "x"}},
    }
    with pytest.raises(OptionError, match=r"^8 options are wrong: \(1\) ") as caught:
        Options.parse(given)
    for words in (
        "queue_order_strategy",
        "did you mean 'wait_time_seconds'?",
        "visibility_timeout to be a number of seconds, got 'long'",
        "option 'weihgt' in queues['a']: did you mean 'weight'?",
        "option 'max_runing' in queues['a']: did you mean 'max_running'?",
        "queues['b']['weight'] to be a whole number between 1 and 1000, got 0",
        "got the keys ['url'], of which 'url' is empty",
        "unknown key 'ulr' in predefined_queues['r']: did you mean 'url'?",
    ):
        assert words in str(caught.value)


def test_all_contradictions_are_told_at_once():
    given = {"heartbeat_interval": 500, "polling_interval": 5, "polling_interval_max": 1, "external_id": "x"}
    with pytest.raises(OptionError, match=r"^3 options are wrong: "):
        Options.parse(given)


def options(queues, **others):
    return Options.parse({"queues": queues, **others})


def test_a_queue_has_its_own_options_and_for_the_rest_those_of_all():
    parsed = options(
        {"reports": {"visibility_timeout": "600", "error_visibility_timeout": [5, 10]}},
        wait_time_seconds=7,
        dead_letter_queue="dead",
    )
    reports, other = parsed.for_queue("reports"), parsed.for_queue("other")
    assert (reports.visibility_timeout, reports.heartbeat_interval) == (600, 200)
    assert reports.error_visibility_timeout(1, ValueError()) == 10
    assert (reports.wait_time_seconds, reports.dead_letter_queue) == (7, "dead")
    assert (other.visibility_timeout, other.heartbeat_interval, other.error_visibility_timeout) == (
        120,
        40,
        None,
    )
    assert (parsed.longest_visibility_timeout, parsed.longest_poll) == (600, 7)
    assert (other.polling_interval, other.polling_interval_max) == (0, 0)


@pytest.mark.parametrize(
    ("queue", "weight"), [("high", 8), ("high-1", 2), ("high-low", 2), ("low", 3), ("a.low", 3), ("else", 1)]
)
def test_the_name_goes_first_and_then_the_first_glob_that_matches(queue, weight):
    queues = {"high*": {"weight": 2}, "*low": {"weight": 3}, "high": {"weight": 8}}
    assert options(queues).for_queue(queue).weight == weight


@pytest.mark.parametrize(
    ("queue", "for_all", "heartbeat_interval"),
    [
        ({"visibility_timeout": 30}, {"heartbeat_interval": 60}, 10),
        ({"visibility_timeout": 30}, {"heartbeat_interval": 0}, 0),
        ({"visibility_timeout": 30, "heartbeat_interval": 20}, {}, 20),
        ({"visibility_timeout": None, "heartbeat_interval": ""}, {"heartbeat_interval": 7}, 7),
    ],
)
def test_the_heartbeat_follows_the_queues_own_timeout(queue, for_all, heartbeat_interval):
    assert options({"q": queue}, **for_all).for_queue("q").heartbeat_interval == heartbeat_interval


def test_a_longer_sleep_of_a_queue_needs_no_longer_longest_sleep():
    q = options({"q": {"polling_interval": 5}}, polling_interval_max=3).for_queue("q")
    assert (q.polling_interval, q.polling_interval_max) == (5, 5)


@pytest.mark.parametrize(
    ("queues", "words"),
    [
        ([], ["expected queues", "mapping"]),
        ({5: {}}, ["names of queues", "5"]),
        ({"q": 5}, ["queues['q']", "mapping"]),
        ({"q": {"region": "x"}}, ["'region'", "queues['q']", "weight"]),
        ({"q": {"visibility_timeout": 0}}, ["queues['q']['visibility_timeout']", "between 1 and 43200", "0"]),
        ({"q": {"heartbeat_interval": 120}}, ["queues['q']", "visibility_timeout (120)", "120"]),
        ({"q": {"polling_interval": 9, "polling_interval_max": 1}}, ["queues['q']", "at least", "9", "1"]),
        ({"q": {"error_visibility_timeout": [1, "x"]}}, ["queues['q']['error_visibility_timeout'][1]", "x"]),
        ({"q": {"dead_letter_queue": "a:b"}}, ["queues['q']['dead_letter_queue']", "a:b"]),
        *(
            ({"q": {"max_running": wrong}}, ["queues['q']['max_running']", "between 1 and", repr(wrong)])
            for wrong in (0, 1.5, True, 10**5, float("inf"))
        ),
    ],
)
def test_a_refusal_names_queue_option_value_and_bound(queues, words):
    sentence = refusal({"queues": queues})
    assert [word for word in words if word not in sentence] == []


@pytest.mark.parametrize("name", ["weight", "max_running"])
def test_an_option_of_queues_only_is_refused_for_all_with_its_place(name):
    with pytest.raises(OptionError, match=f"there is no transport option '{name}': .*queues"):
        Options.parse({name: 3})


@given(st.lists(st.text("ab*?[]", max_size=3), unique=True), st.text("ab", max_size=3))
def test_any_globs_give_every_queue_options(globs, queue):
    parsed = options({glob: {"weight": number + 1} for number, glob in enumerate(globs)})
    found = parsed.for_queue(queue)
    assert found.weight == (1 if found.place == len(globs) else found.place + 1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"fetch_message_attributes": {"MessageAttributeName": ["tenant"]}},
            "key 'MessageAttributeName' in fetch_message_attributes: did you mean 'MessageAttributeNames'?",
        ),
        (
            {"sqs-creation-attributes": {"VisibilityTimout": 60}},
            "attribute 'VisibilityTimout' in sqs-creation-attributes: did you mean 'VisibilityTimeout'?",
        ),
        ({"sqs-creation-attributes": {"visibility_timeout": 60}}, "did you mean 'VisibilityTimeout'?"),
    ],
    ids=str,
)
def test_a_misspelt_key_is_refused_with_its_place_and_the_nearest(options, said):
    with pytest.raises(OptionError) as caught:
        Options.parse(options)
    assert said in str(caught.value)


def test_attributes_that_sqs_may_have_one_day_are_left_to_it():
    given = {"MessageColour": "red", **dict.fromkeys(ATTRIBUTES, "1")}
    assert Options.parse({"sqs-creation-attributes": given}).sqs_creation_attributes == given
    assert set(ATTRIBUTES) == set(TERRAFORM)

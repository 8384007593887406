"""The option `predefined_queues`: kombu's keys and SQS's, each checked, and no secret shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.predefined import (
    BackoffPolicy,
    PredefinedQueue,
    parse_predefined_exchanges,
    parse_predefined_queues,
)
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON_SECONDS

URL = "https://sqs/1/q"
AMAZON = "https://sqs.eu-west-1.amazonaws.com/123456789012/q"
KEYS = {"access_key_id": "AKIA", "secret_access_key": "hush"}
ROLE = "arn:aws:iam::123456789012:role/worker"
POLICY = {"backoff_policy": {1: 10, 2: 20.5}, "backoff_tasks": ["proj.load"]}


def parsed(**queue):
    return parse_predefined_queues("predefined_queues", {"q": queue})["q"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"url": URL}, PredefinedQueue(URL)),
        ({"url": URL, "region": "eu-west-1", "sts_role_arn": None}, PredefinedQueue(URL, region="eu-west-1")),
        ({"url": AMAZON}, PredefinedQueue(AMAZON, region="eu-west-1")),
        ({"url": AMAZON, "region": "eu-west-2"}, PredefinedQueue(AMAZON, region="eu-west-2")),
        (
            {"url": URL, **KEYS, "session_token": "token"},
            PredefinedQueue(URL, **KEYS, session_token="token"),
        ),
        (
            {"url": URL, "sts_role_arn": ROLE, "external_id": "42"},
            PredefinedQueue(URL, sts_role_arn=ROLE, external_id="42"),
        ),
        ({"QueueOwnerAWSAccountId": "001234567890"}, PredefinedQueue(owner="001234567890")),
        (
            {"url": URL, **POLICY},
            PredefinedQueue(URL, backoff=BackoffPolicy(frozenset({"proj.load"}), {1: 10, 2: 20.5})),
        ),
        (  # as from JSON
            {"url": URL, "backoff_policy": {"1": "10"}, "backoff_tasks": ("proj.load",)},
            PredefinedQueue(URL, backoff=BackoffPolicy(frozenset({"proj.load"}), {1: 10})),
        ),
    ],
)
def test_a_queue_has_what_is_its_own(given, expected):
    assert parsed(**given) == expected


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, r"to be a mapping with a 'url' or a 'QueueOwnerAWSAccountId', got the keys \[\]"),
        ({"url": ""}, r"got the keys \['url'\]"),
        ({"secret_access_key": "hush"}, r"got the keys \['secret_access_key'\]"),
        ({"ulr": URL}, "unknown key 'ulr' in .* did you mean 'url'"),
        (
            {"url": URL, "acces_key_id": "AKIA"},
            "unknown key 'acces_key_id' in .* did you mean 'access_key_id'",
        ),
        ({"url": URL, "zzz": 1}, "unknown key 'zzz' in .* valid ones are: url, "),
        ({"url": URL, "secret_access_key": b"hush"}, r"\['secret_access_key'\] to be text, got a bytes"),
        ({"url": URL, "access_key_id": "AKIA"}, "to have 'secret_access_key' beside 'access_key_id'"),
        ({"url": URL, "secret_access_key": "hush"}, "to have 'access_key_id' beside 'secret_access_key'"),
        ({"url": URL, "external_id": "42"}, "to have 'sts_role_arn' beside 'external_id'"),
        ({"url": URL, "backoff_policy": {1: 2}}, "to have 'backoff_tasks' beside 'backoff_policy'"),
        ({"url": URL, "backoff_tasks": ["t"]}, "to have 'backoff_policy' beside 'backoff_tasks'"),
        ({"url": URL, **POLICY, "backoff_tasks": "proj.load"}, "to be a list of names of tasks"),
        ({"url": URL, **POLICY, "backoff_policy": {0: 5}}, "numbers of attempts, from 1 on, got 0"),
        ({"url": URL, **POLICY, "backoff_policy": {"x": 5}}, "numbers of attempts, from 1 on, got 'x'"),
        ({"url": URL, **POLICY, "backoff_policy": {1: 50_000}}, r"\['backoff_policy'\]\[1\] to be between"),
        ({"url": URL + ".fifo"}, "and its url 'https://sqs/1/q.fifo' to agree"),
        ({"QueueOwnerAWSAccountId": "1234"}, "to be the 12 digits of an AWS account"),
    ],
)
def test_a_wrong_queue_is_refused_by_name_and_key_and_shows_no_secret(given, said):
    with pytest.raises(OptionError, match=said) as caught:
        parsed(**given)
    assert "predefined_queues['q']" in str(caught.value)
    assert "hush" not in str(caught.value)


def test_a_fifo_name_needs_the_url_of_a_fifo_queue_or_none():
    with pytest.raises(OptionError, match="names of FIFO queues, and of no others"):
        parse_predefined_queues("predefined_queues", {"q.fifo": {"url": URL}})
    assert parse_predefined_queues("predefined_queues", {"q.fifo": {"QueueOwnerAWSAccountId": "0" * 12}})


@given(st.dictionaries(st.integers(1, 50), st.integers(0, VISIBILITY_HORIZON_SECONDS)), st.integers(0, 60))
def test_a_backoff_policy_has_a_delay_for_the_attempts_it_names_and_no_other(policy, retries):
    options = Options.parse(
        {"predefined_queues": {"q": {"url": URL, "backoff_policy": policy, "backoff_tasks": ["t"]}}}
        if policy
        else {}
    )
    rule = options.backoff_policy("q", "t")
    assert (rule(retries, ValueError()) if rule else None) == policy.get(retries + 1)
    assert options.backoff_policy("q", "another task") is None
    assert options.backoff_policy("another queue", "t") is None


ARN = "arn:aws:sns:eu-west-1:123456789012:news"


def exchange(**keys):
    return parse_predefined_exchanges("predefined_exchanges", {"news": {"arn": ARN, **keys}})


@pytest.mark.parametrize("alone", ["access_key_id", "secret_access_key", "session_token"])
def test_an_exchange_has_a_whole_access_key_or_none(alone):
    with pytest.raises(OptionError, match=r"expected predefined_exchanges\['news'\] to have '") as caught:
        exchange(**{alone: "hush"})
    assert "hush" not in str(caught.value)
    assert exchange(access_key_id="A", secret_access_key="B", session_token=None)


def test_a_misspelt_key_of_an_exchange_is_refused():
    with pytest.raises(OptionError, match=r"in predefined_exchanges\['news'\]: did you mean 'access_key_id'"):
        exchange(acces_key_id="A")


@pytest.mark.parametrize("defined_as", ["a.b", "app-a-b"])
def test_the_queue_of_a_policy_may_be_written_with_celerys_name_or_sqss(defined_as):
    queues = {defined_as: {"url": URL, **POLICY}}
    options = Options.parse({"predefined_queues": queues, "queue_name_prefix": "app-"})
    assert options.backoff_policy("a.b", "proj.load")(0, ValueError()) == 10

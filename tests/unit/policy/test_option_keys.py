"""Keys of options that are mappings: a misspelt one is refused with the nearest, wherever it stands."""

from __future__ import annotations

import pytest

from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.operate.queues import TERRAFORM
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.queue_names import ATTRIBUTES

URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/q"
ARN = "arn:aws:sns:eu-west-1:123456789012:news"


def exchange(**keys):
    return {"supports_fanout": True, "predefined_exchanges": {"news": {"arn": ARN, **keys}}}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"predefined_queues": {"q": {"ulr": URL}}},
            "key 'ulr' in predefined_queues['q']: did you mean 'url'?",
        ),
        (
            {"predefined_exchanges": {"news": {"anr": ARN}}},
            "key 'anr' in predefined_exchanges['news']: did you mean 'arn'?",
        ),
        (exchange(acces_key_id="A"), "did you mean 'access_key_id'?"),
        ({"queues": {"q": {"weightt": 5}}}, "option 'weightt' in queues['q']: did you mean 'weight'?"),
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


@pytest.mark.parametrize("alone", ["access_key_id", "secret_access_key", "session_token"])
def test_an_exchange_has_a_whole_access_key_or_none(alone):
    with pytest.raises(OptionError, match=r"expected predefined_exchanges\['news'\] to have '") as caught:
        Options.parse(exchange(**{alone: "hush"}))
    assert "hush" not in str(caught.value)
    assert Options.parse(exchange(access_key_id="A", secret_access_key="B", session_token=None))


def test_attributes_that_sqs_may_have_one_day_are_left_to_it():
    given = {"MessageColour": "red", **dict.fromkeys(ATTRIBUTES, "1")}
    assert Options.parse({"sqs-creation-attributes": given}).sqs_creation_attributes == given
    assert set(ATTRIBUTES) == set(TERRAFORM)

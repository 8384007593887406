"""The types that users' type checkers read have the names of the options and settings that there are."""

from dataclasses import fields
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from celery_sqs_visibility.policy import options, predefined, typed_options
from celery_sqs_visibility.policy.option_parsers import KOMBU_OPTIONS, option_name
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.task.settings import SETTINGS

SHOWN = {option_name(each.name) for each in fields(Options) if not each.metadata["internal"]}


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        (typed_options.TransportOptions, SHOWN | KOMBU_OPTIONS),
        (typed_options.QueueOptionsDict, {f.name for f in fields(options.QueueOptions) if f.metadata}),
        (typed_options.PredefinedQueueDict, {*predefined.TEXTS, *predefined.BACKOFF}),
        (typed_options.PredefinedExchangeDict, {*predefined.EXCHANGE_KEYS}),
        (typed_options.TaskSettings, {*SETTINGS}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_names_are_those_that_there_are(typed, names):
    assert set(typed.__annotations__) == names


WORDS = {
    (name, word)
    for name, hint in get_type_hints(typed_options.TransportOptions).items()
    if get_origin(hint) is Literal
    for word in get_args(hint)
}


@pytest.mark.parametrize(("name", "word"), sorted(WORDS))
def test_the_words_are_taken(name, word):
    queues = {"queues": {"urgent": {}}} if word == "strict" else {}
    assert getattr(Options.parse({name: word, **queues}), name) == word

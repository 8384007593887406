"""Which letters a command takes, and its sentences."""

from __future__ import annotations

from collections import Counter

import click
import pytest

from celery_sqs_visibility.errors import RequestRefusedError, UnavailableError
from celery_sqs_visibility.operate.dead_letters.command import _checked_id, _chosen, _sentence, _to_queues
from celery_sqs_visibility.operate.dead_letters.moves import Outcome, move_all
from celery_sqs_visibility.operate.invocation import CommandError

FILTERS = {"task": None, "exception": None, "older_than": None, "newer_than": None, "any_source": False}


@pytest.mark.parametrize("name", ["task", "exception", "older_than", "newer_than"])
def test_a_filter_is_enough(site, name):
    given = 0.0 if name.endswith("than") else "proj.*"
    chosen = _chosen(site.place, (), False, {**FILTERS, name: given})
    assert (getattr(chosen, name), chosen.sources) == (given, site.place.source_names)


@pytest.mark.parametrize(
    ("ids", "everything", "filters"),
    [((), False, {}), ((), False, {"any_source": True}), (("b2a660b2",), True, {})],
    ids=["nothing", "nothing of any source", "IDs and all"],
)
def test_what_is_meant_has_to_be_said(site, ids, everything, filters):
    with pytest.raises(click.UsageError, match="by their IDs, or by a filter, or take all by --all"):
        _chosen(site.place, ids, everything, {**FILTERS, **filters})


@pytest.mark.parametrize(
    ("number", "sentence"),
    [(0, "No dead letters match"), (1, "1 dead letter was "), (2, "2 dead letters were ")],
)
def test_letters_are_counted(number, sentence):
    assert _sentence("deleted", Outcome(done=["an-id"] * number)).startswith(sentence)


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (UnavailableError("answered 500: <html>", code="500"), CommandError),
        (RequestRefusedError("answered InvalidAction: no", code="InvalidAction"), CommandError),
        (UnavailableError("answered InternalError", code="InternalError"), UnavailableError),
    ],
)
def test_an_endpoint_without_move_tasks_is_told(site, monkeypatch, error, raised):
    def start_move_task(*_):
        raise error

    monkeypatch.setattr(site.sqs, "start_move_task", start_move_task)
    with pytest.raises(raised) as caught:
        move_all(site.place, None)
    assert ("leave out --native" in str(caught.value)) is (raised is CommandError)


def test_an_id_of_a_few_characters_is_refused():
    assert _checked_id("b2a660b2") == "b2a660b2"
    with pytest.raises(click.UsageError, match="'b2a660b' is too short for an ID"):
        _checked_id("b2a660b")


@pytest.mark.parametrize(
    ("sent_to", "end"), [({}, ""), ({"a": 2}, " to 'a'"), ({"a": 2, "b": 1}, ": 2 to 'a', 1 to 'b'")]
)
def test_the_queues_that_letters_go_to_end_the_sentence(sent_to, end):
    assert _to_queues(Counter(sent_to)) == end

"""What became of an invocation's messages is a line of the log, in CloudWatch's embedded metric format."""

from __future__ import annotations

import io
import json
import logging
import re
from pathlib import Path

import pytest

from celery_sqs_visibility.core.endings import OUTCOMES
from celery_sqs_visibility.events import DeliveryEnded
from celery_sqs_visibility.operate.metrics.emf import LOGGER, UNITS


@pytest.fixture
def lines():
    """The values of the lines so far."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    LOGGER.addHandler(handler)
    yield lambda: [
        {name: line[name] for name in line if name != "_aws"}
        for line in map(json.loads, stream.getvalue().splitlines())
    ]
    LOGGER.removeHandler(handler)


def test_an_invocation_ends_with_a_line_that_counts_its_messages(make, lines):
    world = make(options={"metrics": ["emf"]})
    handler = world.handler()
    world.send("a", "bad", "b")
    world.send("c", task="stock")
    world.invoke(handler)
    world.clock.advance(10)
    world.invoke(handler)
    assert lines() == [
        {"Queue": "q", "MessagesReceived": 4, "TasksSucceeded": 3, "TasksRetried": 1},
        {"Queue": "q", "MessagesReceived": 1, "TasksFailed": 1, "DeadLettered": 1},
    ]
    assert not DeliveryEnded.is_wanted()


def test_what_was_not_run_is_counted_and_so_is_an_invocation_that_a_task_ends(make, lines):
    world = make(options={"metrics": "emf"})
    world.send("shutdown", "b")
    assert world.invoke() == ["shutdown", "b"]
    world.send_with_eta("later", 3600)
    world.invoke()
    assert lines() == [
        {"Queue": "q", "MessagesReceived": 2, "TasksRetried": 1, "TasksReleased": 1},
        {"Queue": "q", "MessagesReceived": 2, "TasksSucceeded": 1, "TasksDelayed": 1},
    ]


@pytest.mark.parametrize("options", [{}, {"metrics": []}, {"metrics": ["prometheus"]}], ids=str)
def test_without_the_option_nothing_is_written(make, lines, options):
    world = make(options=options)
    world.send("a")
    world.invoke()
    assert lines() == []


def test_a_logger_that_raises_fails_no_invocation(make, lines, monkeypatch):
    world = make(options={"metrics": ["emf"]})
    world.send("a")
    monkeypatch.setattr(LOGGER, "filters", [lambda record: 1 / 0])
    assert world.invoke() == lines() == []


def test_each_outcome_has_its_metric_and_the_page_has_them_all():
    names = {name for name in UNITS if name.startswith("Tasks")} | {"MessagesReceived", "DeadLettered"}
    assert names >= {f"Tasks{outcome.capitalize()}" for outcome in OUTCOMES.values()}
    page = (Path(__file__).resolve().parents[3] / "docs/lambda.md").read_text()
    told = re.search(r"^## Metrics\n(.*?)^## ", page, flags=re.DOTALL | re.MULTILINE)[1]
    assert names <= set(re.findall(r"`(\w+)`", told))

"""Lines for CloudWatch follow its specification."""

import io
import json
import logging
import re
from pathlib import Path

import jsonschema
import pytest

from celery_sqs_visibility.operate.app_queues import QueueDepth
from celery_sqs_visibility.operate.metrics.emf import (
    LOGGER,
    MEAN_LINES,
    NAMESPACE,
    UNITS,
    RunSeconds,
    prepare_logger,
    write_lines,
)
from celery_sqs_visibility.operate.metrics.names import RUNS
from celery_sqs_visibility.operate.metrics.recorder import WorkerState


def text(most):
    return {"type": "string", "minLength": 1, "maxLength": most}


def array(items, **bounds):
    return {"type": "array", "items": items, **bounds}


def fields(**properties):
    return {"type": "object", "properties": properties}


METRIC = {**fields(Name=text(1024), Unit={"enum": ["Count", "Seconds"]}), "additionalProperties": False}
DIRECTIVE = fields(
    Namespace=text(1024),
    Dimensions=array(array(text(250), maxItems=30), minItems=1),
    Metrics=array({**METRIC, "required": ["Name"]}, maxItems=100),
)
CLOUDWATCH = array({**DIRECTIVE, "required": ["Namespace", "Dimensions", "Metrics"]})
ROOT = fields(Timestamp={"type": "integer"}, CloudWatchMetrics=CLOUDWATCH)

#: The bounds of Amazon's "Specification: Embedded metric format".
SCHEMA = {
    **fields(_aws={**ROOT, "required": ["Timestamp", "CloudWatchMetrics"]}),
    "required": ["_aws"],
}


@pytest.fixture
def runs(series):
    """The durations of runs that have ended."""
    return series.histograms[RUNS]


@pytest.fixture
def lines(clock, runs):
    """Write for queues with these depths, and read what was written."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    LOGGER.addHandler(handler)
    prepare_logger()

    def write(queues, *depths):
        write_lines(queues, WorkerState(8, 3, 5), depths, RunSeconds(runs).read(), clock)
        return [json.loads(line) for line in stream.getvalue().splitlines()]

    yield write
    LOGGER.handlers.clear()


def test_a_line_is_what_the_specification_asks_for_and_has_a_value_for_each_name(lines, clock, runs):
    runs.observe(("t", "q", "succeeded"), 30.0)
    depth = QueueDepth("q", visible=40, in_flight=3, delayed=1, oldest_age_seconds=7.5, dead_letters=2)
    (line,) = lines(["q"], depth)
    jsonschema.validate(line, SCHEMA)
    assert line["_aws"]["Timestamp"] == int(clock.wall() * 1000)
    (directive,) = line["_aws"]["CloudWatchMetrics"]
    assert directive["Namespace"] == NAMESPACE
    targets = {name for names in directive["Dimensions"] for name in names}
    targets |= {metric["Name"] for metric in directive["Metrics"]}
    assert {key: line[key] for key in targets} == {
        "Queue": "q",
        "Workers": 1,
        "Slots": 8,
        "SlotsBusy": 3,
        "Backlog": 40,
        "Work": 1200.0,
        "InFlight": 3,
        "Delayed": 1,
        "DeadLetters": 2,
        "OldestAge": 7.5,
    }
    assert set(line) == targets | {"_aws"}


def test_what_is_unknown_is_left_out_and_every_queue_has_its_line(lines):
    first, second = lines(["a", "b"], QueueDepth("b", visible=4, in_flight=0, delayed=0))
    jsonschema.validate(first, SCHEMA)
    assert ("Backlog" in first, first["Queue"], first["Workers"]) == (False, "a", 1)
    assert (second["Backlog"], "OldestAge" in second) == (4, False)


@pytest.mark.parametrize(("backlog", "work"), [(0, 0), (4, None), (None, None)])
def test_without_a_run_only_an_empty_queue_has_known_work(lines, backlog, work):
    (line,) = lines(["q"], QueueDepth("q", visible=backlog, in_flight=0, delayed=0))
    assert line.get("Work") == work


def test_the_duration_of_runs_is_that_of_the_last_hour_or_the_last_known(runs):
    seconds = RunSeconds(runs)
    assert seconds.read() == {}
    for task, outcome, took in (("t", "succeeded", 9.0), ("t", "failed", 1.0), ("u", "succeeded", 2.0)):
        runs.observe((task, "q", outcome), took)
    assert seconds.read() == {"q": 4.0}
    for _ in range(MEAN_LINES):
        assert seconds.read() == {"q": 4.0}
    runs.observe(("t", "q", "succeeded"), 100.0)
    runs.observe(("t", "other", "succeeded"), 5.0)
    assert seconds.read() == {"q": 100.0, "other": 5.0}


def test_lines_go_to_the_handler_that_the_app_has_given_and_else_to_standard_output(lines):
    before = list(LOGGER.handlers)
    prepare_logger()
    assert before == LOGGER.handlers
    LOGGER.handlers.clear()
    prepare_logger()
    (handler,) = LOGGER.handlers
    record = logging.makeLogRecord({"msg": "{}"})
    assert (handler.format(record), LOGGER.propagate) == ("{}", False)


def test_the_pages_line_and_the_policy_for_autoscaling_are_ours():
    docs = Path(__file__).resolve().parents[4] / "docs"
    line, policy = (
        json.loads(block)
        for page in ("metrics.md", "scaling.md")
        for block in re.findall(r"```json\n(.*?)```", (docs / page).read_text(), flags=re.DOTALL)
    )
    jsonschema.validate(line, SCHEMA)
    metrics = policy["CustomizedMetricSpecification"]["Metrics"]
    stats = [each["MetricStat"]["Metric"] for each in metrics if "MetricStat" in each]
    assert {each["Namespace"] for each in stats} == {NAMESPACE}
    assert {each["MetricName"] for each in stats} == {"Work", "Slots"} <= set(UNITS)

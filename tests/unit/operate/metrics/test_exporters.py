"""Prometheus and OpenTelemetry get the same numbers."""

import os

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.semconv._incubating.attributes import messaging_attributes as conventions
from opentelemetry.semconv._incubating.metrics import messaging_metrics
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from celery_sqs_visibility import events
from celery_sqs_visibility.events import DeliveryFacts, emit
from celery_sqs_visibility.operate.metrics import names, opentelemetry
from celery_sqs_visibility.operate.metrics.prometheus import Prometheus

FACTS = DeliveryFacts("q", "m", 1, 0.0, "tasks.add", "t")


@pytest.fixture
def filled(series, recorder):
    series.gauges[names.SLOTS] = lambda: [((), 4)]
    for outcome, ran in (("succeeded", 0.3), ("retried", 50_000.0)):
        emit(events.DeliveryEnded(FACTS, outcome, ran + 1, ran))
    emit(events.SettlementEnded(FACTS, 0.3))
    emit(events.ReceiveEnded("q", 10, 1))
    emit(events.SQSRequest("DeleteMessageBatch", 0.02, "ThrottledError", "sqs-q"))
    return series


def test_prometheus_gets_counters_gauges_and_cumulative_buckets(filled):
    registry = CollectorRegistry()
    exporter = Prometheus(filled, registry)
    families = text_string_to_metric_families(exporter.exposition())
    found = {(s.name, *sorted(s.labels.values())): s.value for family in families for s in family.samples}
    assert found["celery_sqs_tasks_total", "q", "succeeded", "tasks.add"] == 1
    assert found["celery_sqs_slots",] == 4
    runs = "celery_sqs_run_seconds_bucket"
    assert found[runs, "0.1", "q", "succeeded", "tasks.add"] == 0
    assert found[runs, "0.5", "q", "succeeded", "tasks.add"] == 1
    assert found[runs, "43200.0", "q", "retried", "tasks.add"] == 0
    assert found[runs, "+Inf", "q", "retried", "tasks.add"] == 1
    assert found["celery_sqs_run_seconds_sum", "q", "retried", "tasks.add"] == 50_000
    exporter.close()
    assert exporter.exposition() == ""


def exported(series):
    """Points by the name of the metric."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    return reader, provider, opentelemetry.export(series, provider.get_meter("tests"))


def points(reader):
    data = reader.get_metrics_data()
    metrics = data.resource_metrics[0].scope_metrics[0].metrics if data else []
    return {metric.name: list(metric.data.data_points) for metric in metrics}


def test_opentelemetry_gets_them_under_its_conventions(filled):
    reader, provider, _ = exported(filled)
    emit(events.DeliveryEnded(FACTS, "retried", 2.0, 0.3))  # of histograms, from now on
    emit(events.SQSRequest("DeleteMessageBatch", 0.02, "ThrottledError", "sqs-q"))
    found = points(reader)
    (received,) = found[messaging_metrics.MESSAGING_CLIENT_CONSUMED_MESSAGES]
    assert received.value == 1
    assert received.attributes == {
        conventions.MESSAGING_SYSTEM: conventions.MessagingSystemValues.AWS_SQS.value,
        conventions.MESSAGING_DESTINATION_NAME: "q",
        conventions.MESSAGING_OPERATION_NAME: "receive",
    }
    (run,) = found[messaging_metrics.MESSAGING_PROCESS_DURATION]
    assert (run.count, run.sum, run.explicit_bounds) == (1, 0.3, names.TASK_SECONDS)
    assert run.attributes["error.type"] == "retried"
    assert run.attributes[conventions.MESSAGING_OPERATION_NAME] == "process"
    (request,) = found[messaging_metrics.MESSAGING_CLIENT_OPERATION_DURATION]
    assert request.attributes[conventions.MESSAGING_OPERATION_NAME] == "DeleteMessageBatch"
    assert request.attributes[conventions.MESSAGING_OPERATION_TYPE] == "settle"
    assert request.attributes["error.type"] == "ThrottledError"
    provider.shutdown()


def test_the_other_histograms_are_counters_of_their_buckets(filled):
    reader, provider, _ = exported(filled)
    found = points(reader)
    buckets = {point.attributes["le"]: point.value for point in found["celery_sqs.settle.bucket"]}
    assert (buckets["0.25"], buckets["0.5"], buckets["inf"]) == (0, 1, 1)
    assert [point.value for point in found["celery_sqs.settle.sum"]] == [0.3]
    provider.shutdown()


def test_a_forked_child_has_nothing_to_tell_and_who_stopped_records_no_more(filled, monkeypatch):
    reader, provider, stop = exported(filled)
    stop()
    emit(events.DeliveryEnded(FACTS, "succeeded", 2.0, 0.3))
    assert messaging_metrics.MESSAGING_PROCESS_DURATION not in points(reader)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert not any(points(reader).values())
    provider.shutdown()


def runs(reader):
    """The number of runs that a reader has been told of, and the spans that their exemplars name."""
    (point,) = points(reader)[messaging_metrics.MESSAGING_PROCESS_DURATION]
    return point.count, [exemplar.span_id for exemplar in point.exemplars]


def test_values_wait_until_they_are_many_or_read_or_nobody_reads_any_more(series, recorder, monkeypatch):
    reader, provider, stop = exported(series)
    meant = []
    instrument = type(provider.get_meter("tests").create_histogram("any"))
    record = instrument.record
    monkeypatch.setattr(instrument, "record", lambda *given: (meant.append(given), record(*given)))
    run = events.DeliveryEnded(FACTS, "succeeded", 2.0, 0.3)
    for _ in range(opentelemetry.BATCH - 1):
        emit(run)
    assert not meant
    emit(run)
    assert len(meant) == opentelemetry.BATCH
    emit(run)
    assert runs(reader) == (opentelemetry.BATCH + 1, [])
    emit(run)
    stop()
    assert runs(reader) == (opentelemetry.BATCH + 2, [])
    provider.shutdown()


def test_in_a_span_a_value_is_recorded_at_once_and_its_exemplar_names_the_span(series, recorder):
    reader, provider, _ = exported(series)
    run = events.DeliveryEnded(FACTS, "succeeded", 2.0, 0.3)
    emit(run)
    context = SpanContext(1, 2, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    with use_span(NonRecordingSpan(context)):
        emit(run)
    assert runs(reader) == (2, [2])
    provider.shutdown()


@pytest.mark.parametrize(
    ("action", "kind"),
    [
        ("ReceiveMessage", "receive"),
        ("ChangeMessageVisibilityBatch", "settle"),
        ("SendMessageBatch", "send"),
        ("DeleteQueue", None),
        ("GetQueueUrl", None),
    ],
)
def test_an_action_of_sqs_has_the_type_that_the_conventions_know(action, kind):
    found = opentelemetry.attributes(names.REQUESTS, (action, "q", "ok"))
    assert found.get("messaging.operation.type") == kind
    assert "error.type" not in found

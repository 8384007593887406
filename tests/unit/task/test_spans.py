"""What tracers' current spans are told, of tracers that raise, and of none."""

import sys
from types import SimpleNamespace

import pytest
from support.factories import sqs_facts, trace


class Span(dict):
    """ddtrace's, as far as it is used."""

    set_tag = dict.__setitem__


@pytest.fixture
def span(monkeypatch):
    """The current span of a ddtrace that the host has imported."""
    span = Span()
    tracer = SimpleNamespace(current_span=lambda: span)
    monkeypatch.setitem(sys.modules, "ddtrace.trace", SimpleNamespace(tracer=tracer))
    return span


MESSAGE = {**sqs_facts(), "message_id": "m1"}


def seven():
    return 7


def test_a_span_is_told_its_message_before_the_tasks_code_begins(app, span):
    def told():
        return dict(span)

    told = trace(app.task(told, shared=False), sqs={**sqs_facts(receive_count=3), "message_id": "m1"}).retval
    assert told["messaging.system"] == "aws_sqs"
    assert told["messaging.message.id"] == told["messaging.aws_sqs.message.id"] == "m1"
    assert told["messaging.aws_sqs.message.receive_count"] == 3


def test_a_tracer_that_raises_fails_no_run(app, monkeypatch):
    monkeypatch.setitem(sys.modules, "ddtrace.trace", SimpleNamespace())
    assert trace(app.task(seven, shared=False)).retval == 7


def test_a_direct_call_tells_nothing(app, span):
    assert app.task(seven, shared=False)() == 7
    assert span == {}


def test_without_a_current_span_nothing_is_told(app, monkeypatch):
    tracer = SimpleNamespace(current_span=lambda: None)
    monkeypatch.setitem(sys.modules, "ddtrace.trace", SimpleNamespace(tracer=tracer))
    monkeypatch.setitem(sys.modules, "sentry_sdk", SimpleNamespace(**sentry(None)))
    assert trace(app.task(seven, shared=False), sqs=MESSAGE).retval == 7


@pytest.mark.parametrize("integration", [object(), None])
def test_sentrys_events_have_the_message_where_its_integration_is_active(app, monkeypatch, integration):
    scope = {}
    monkeypatch.setitem(sys.modules, "sentry_sdk", SimpleNamespace(**sentry(integration, scope)))
    assert trace(app.task(seven, shared=False), sqs=MESSAGE).retval == 7
    assert list(scope) == ["Amazon SQS"] * (integration is not None)


def sentry(integration, scope=None):
    """Functions of sentry_sdk, outside any span."""
    return {
        "get_client": lambda: SimpleNamespace(get_integration=lambda _name: integration),
        "get_isolation_scope": lambda: SimpleNamespace(set_context=scope.__setitem__),
        "get_current_span": lambda: None,
    }

"""Tasks under tracers' eyes: OpenTelemetry's and Sentry's, whose spans and errors go to the diary."""

import sentry_sdk
from celery import signals
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from sentry_sdk.integrations.celery import CeleryIntegration
from sentry_sdk.transport import Transport
from support.app import make_app
from support.diary import note

from celery_sqs_visibility import VisibilityTask, publish_batch

app = make_app("traced", task_cls=VisibilityTask)


class DiaryExporter(SpanExporter):
    """Notes each span that ends."""

    def export(self, spans):
        for span in spans:
            note(
                "span",
                name=span.name,
                trace=span.context.trace_id,
                span=span.context.span_id,
                parent=span.parent and span.parent.span_id,
                argument=span.attributes.get("argument"),
                attributes=dict(span.attributes),
                status=span.status.status_code.name,
                exceptions=[each.attributes["exception.type"] for each in span.events],
            )
        return SpanExportResult.SUCCESS


class DiaryTransport(Transport):
    """Notes each error and transaction that would be sent."""

    def capture_envelope(self, envelope):
        for item in envelope.items:
            sent = item.payload.json or {}
            if sent.get("type") == "transaction" or item.type == "event":
                note(
                    "sentry",
                    kind=item.type,
                    name=sent.get("transaction"),
                    trace=sent["contexts"]["trace"]["trace_id"],
                    spans=[(each["op"], each["data"]) for each in sent.get("spans", [])],
                    sqs=sent["contexts"].get("Amazon SQS"),
                )


def instrument(**_):
    """Once a process that runs tasks, as OpenTelemetry's documentation has it."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(DiaryExporter()))
    CeleryInstrumentor().instrument(tracer_provider=provider)
    trace.set_tracer_provider(provider)
    sentry_sdk.init(
        "http://key@127.0.0.1:9/1",
        transport=DiaryTransport,
        traces_sample_rate=1.0,
        default_integrations=False,
        integrations=[CeleryIntegration()],
    )


if app.conf.traced:
    if app.conf.traced == "prefork":
        signals.worker_process_init.connect(instrument, weak=False)
    else:
        instrument()


@app.task(bind=True, error_visibility_timeout=1, max_retries=1)
def flaky(self, key, failures):
    trace.get_current_span().set_attribute("argument", key)
    if self.request.retries < failures:
        raise ValueError(key)
    note("done", key=key)


@app.task
def parent(key):
    """Publishes a child alone, one in a batch, and two in a chain."""
    trace.get_current_span().set_attribute("argument", key)
    flaky.delay(f"{key}-child", 0)
    with publish_batch(app):
        flaky.delay(f"{key}-batched", 0)
    (flaky.si(f"{key}-first", 0) | flaky.si(f"{key}-second", 0)).delay()

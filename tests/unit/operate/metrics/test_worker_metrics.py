"""What the options ask for is what a worker has, and no more."""

from types import SimpleNamespace

import pytest
from celery import Celery
from celery.exceptions import ImproperlyConfigured
from prometheus_client import REGISTRY
from support.clock import FakeClock
from support.factories import delivery, queue_consumer, sqs_queue

from celery_sqs_visibility.aws.port import ReceiveOptions
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.delivery.payloads.outgoing import OutgoingMessages
from celery_sqs_visibility.delivery.pump import Pump
from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.events import DeliveryEnded, SettlementEnded, SQSRequest, Started
from celery_sqs_visibility.operate.metrics import names, worker_metrics
from celery_sqs_visibility.operate.metrics.recorder import WorkerState, show_state, worker_state
from celery_sqs_visibility.operate.metrics.series import Series
from celery_sqs_visibility.operate.metrics.worker_metrics import WorkerMetrics, exporters_of
from celery_sqs_visibility.policy.health import BrakeFacts
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.prefetch import Slots
from celery_sqs_visibility.transport.receiving import Receiving


@pytest.mark.parametrize(
    ("options", "exporters"),
    [
        ({}, ()),
        ({"http_address": ":9540"}, ("prometheus",)),
        ({"http_address": ":9540", "metrics": []}, ()),
        ({"metrics": "emf, prometheus"}, ("prometheus", "emf")),
        ({"metrics": ["opentelemetry"]}, ("opentelemetry",)),
    ],
)
def test_who_gets_metrics(options, exporters):
    assert exporters_of(Options.parse(options)) == exporters


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({}, 300),
        ({"coordination_store": "dynamodb://keys"}, 60),
    ],
)
def test_queues_are_sampled_where_metrics_are_on(options, seconds):
    assert Options.parse({"http_address": ":9540", **options}).sample_seconds == seconds


def test_a_package_that_is_missing_is_named_where_it_is_asked_for(monkeypatch):
    monkeypatch.setitem(worker_metrics.PACKAGES, "prometheus", "not_there.at_all")
    with pytest.raises(ImproperlyConfigured, match=r"pip install 'celery_sqs_visibility\[prometheus\]'"):
        exporters_of(Options.parse({"metrics": ["prometheus"]}))
    assert exporters_of(Options.parse({"http_address": ":9540"})) == ()


@pytest.mark.parametrize("wrong", ["statsd", ["prometheus", "statsd"], 7, {"emf": True, "x": 1}])
def test_other_exporters_are_refused(wrong):
    with pytest.raises(OptionError, match="expected metrics to be some of prometheus, opentelemetry, emf"):
        Options.parse({"metrics": wrong})


@pytest.fixture
def app():
    app = Celery("measured", set_as_current=False, broker="memory://")
    app.amqp.queues.select(["celery"])
    yield app
    app.close()


def context(**options):
    parsed = Options.parse(options)
    return SimpleNamespace(
        options=parsed,
        receiving=Receiving(parsed, ReceiveOptions(), RedriveBook(), Pump(), OutgoingMessages()),
        worker_name="w@h",
        coordination_store=None,
    )


def test_metrics_begin_and_end_with_the_worker(app):
    metrics = WorkerMetrics(app, context(), ("prometheus",))
    metrics.start()
    assert DeliveryEnded.is_wanted()
    answer = metrics.routes["/metrics"]()
    assert "celery_sqs_slots 0.0" in answer.body
    assert answer.content_type.startswith("text/plain")
    metrics.stop()
    metrics.stop()
    assert not DeliveryEnded.is_wanted()
    assert not any(family.name == names.SLOTS.name for family in REGISTRY.collect())


def test_for_lines_of_cloudwatch_alone_only_the_ends_of_runs_are_heard(app):
    metrics = WorkerMetrics(app, context(), ("emf",))
    metrics.start()
    wanted = [kind for kind in (DeliveryEnded, Started, SettlementEnded, SQSRequest) if kind.is_wanted()]
    assert wanted == [DeliveryEnded]
    metrics.stop()
    assert not DeliveryEnded.is_wanted()


def test_a_forked_child_counts_nothing(app):
    metrics = WorkerMetrics(app, context(), ("prometheus",))
    metrics.start()
    worker_metrics._forget_in_child()
    assert not DeliveryEnded.is_wanted()
    metrics.stop()


def test_a_worker_is_as_busy_as_it_runs_messages():
    here = context()
    consumer = queue_consumer(FakeClock())
    here.receiving.worker_queue_consumers.add(consumer)
    here.receiving.slots = lambda: Slots(4, 16)
    assert worker_state(here) == WorkerState(slots=4, busy=0, held=0)
    early = delivery(sqs_queue())
    consumer.capacity.count(early, 1)
    early.began, early.acknowledged_early = 1.0, True
    consumer.capacity.free(early, 1.0)
    assert worker_state(here).busy == 1
    consumer.close()


def test_a_cancelled_queue_has_no_last_receive(app):
    metrics = WorkerMetrics(app, context(), ("prometheus",))
    series = "celery_sqs_last_receive_timestamp_seconds{"
    assert series in metrics.routes["/metrics"]().body
    app.amqp.queues.deselect("celery")  # as celery/worker/consumer/consumer.py: cancel_task_queue
    assert series not in metrics.routes["/metrics"]().body
    metrics.stop()


def test_workers_share_a_leader_by_the_queues_at_sqs_and_not_by_celerys_names(app):
    keys = []
    for region in ("eu-west-1", "us-east-1", "eu-west-1"):
        here = context(metrics=["emf"])
        here.queues = SimpleNamespace(
            find=lambda name, at=region: SimpleNamespace(url=f"https://{at}/{name}")
        )
        keys.append(WorkerMetrics(app, here, ("emf",))._leader_key())
    assert keys[0] == keys[2] != keys[1]


def test_a_queue_that_is_paused_or_of_which_no_more_may_run_is_told():
    here, series = context(queues={"mail": {"max_running": 1}}), Series()
    here.receiving.worker_queue_consumers = [SimpleNamespace(consumed=lambda: ["mail", "orders"])]
    show_state(series, here)
    free, taken = [(("mail",), 0), (("orders",), 0)], [(("mail",), 1), (("orders",), 0)]
    assert [series.read_gauge(each) for each in (names.PAUSED, names.FULL)] == [free, free]
    here.receiving.turns.turns.hold("mail", 1)
    assert [series.read_gauge(each) for each in (names.PAUSED, names.FULL)] == [free, taken]
    here.receiving.pauses.pause("mail", 60)
    assert series.read_gauge(names.PAUSED) == taken


def test_a_brake_is_told_with_what_waits_for_it():
    here, series = context(), Series()
    show_state(series, here)
    assert series.read_gauge(names.BRAKE_ON) == []
    here.receiving.brakes = lambda: [
        BrakeFacts("bank", "on", 12.0, 3, 7),
        BrakeFacts("mail", "easing", 12.0, 3, 1),
    ]
    assert series.read_gauge(names.BRAKE_ON) == [(("bank",), 1), (("mail",), 0)]
    assert series.read_gauge(names.BRAKE_WAITING) == [(("bank",), 7), (("mail",), 1)]


def test_a_store_that_cannot_be_opened_is_told_as_the_worker_starts(app):
    class Context(SimpleNamespace):
        @property
        def coordination_store(self):
            raise OptionError("no store there")

    here = vars(context())
    del here["coordination_store"]
    with pytest.raises(ImproperlyConfigured, match="no store there"):
        WorkerMetrics(app, Context(**here), ("prometheus",))

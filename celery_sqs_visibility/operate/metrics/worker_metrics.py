"""Metrics of one worker, from its start to its end, and the thread for its periodic jobs."""

from __future__ import annotations

import logging
import math
import os
import random
import threading
import uuid
from collections.abc import Callable, Sequence
from hashlib import sha256
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from celery.exceptions import ImproperlyConfigured

from celery_sqs_visibility.command_line import shown_in_one_line
from celery_sqs_visibility.delivery.threads import start_thread
from celery_sqs_visibility.errors import OptionError, SQSError
from celery_sqs_visibility.events import DeliveryEnded, Event, log_safely
from celery_sqs_visibility.operate.http_server import Response
from celery_sqs_visibility.operate.metrics import names
from celery_sqs_visibility.operate.metrics.recorder import Recorder, show_state, worker_state
from celery_sqs_visibility.operate.metrics.series import Series
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock
from celery_sqs_visibility.policy.control_names import exchange_prefix
from celery_sqs_visibility.policy.option_parsers import EMF, OPENTELEMETRY, PROMETHEUS
from celery_sqs_visibility.policy.options import Options

logger = logging.getLogger(__name__)

#: The package that each exporter needs; the extra has the exporter's name.
PACKAGES: Final = {PROMETHEUS: "prometheus_client", OPENTELEMETRY: "opentelemetry.metrics"}

#: How long `stop` waits for the thread, which may be at a request.
STOP_SECONDS: Final = 1.0

#: Jobs are first done within this time, even if their interval is longer.
FIRST_SECONDS: Final = 60.0

#: A function, and the seconds after which it is called again.
Job = tuple[Callable[[], None], float]


def next_time(now: float, interval: float, phase: float) -> float:
    """The next instant at which `phase` (0 to 1) of an interval of the clock has passed.

    Each interval has one such instant in each worker, and the workers' phases differ.
    """
    begun = math.floor(now / interval - phase)
    at = (begun + 1 + phase) * interval
    return at if at > now else at + interval  # if `now` is such an instant, the quotient may be rounded down


class Periodic:
    """A thread that repeats jobs, one after the other, until `stop`, and then calls `end`. Main thread."""

    def __init__(
        self, jobs: Sequence[Job], end: Callable[[], None] = lambda: None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._jobs = jobs
        self._end = end
        self._clock = clock
        self._phase = random.random()  # noqa: S311 - nobody's secret
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = start_thread(self._run, "sqs-metrics")
        if self._thread is None:
            logger.error("the thread that counts queues for metrics could not be started")

    def stop(self) -> None:
        """End the thread soon. Idempotent."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        due = [self._next(min(interval, FIRST_SECONDS)) for _, interval in self._jobs]
        while not self._stopped.wait(max(0.0, min(due) - self._clock.monotonic())):
            for number, (act, interval) in enumerate(self._jobs):
                if due[number] <= self._clock.monotonic():
                    _guarded(act)
                    due[number] = self._next(interval)
        _guarded(self._end)

    def _next(self, interval: float) -> float:
        return next_time(self._clock.monotonic(), interval, self._phase)


def _guarded(act: Callable[[], None]) -> None:
    try:
        act()
    except Exception:  # noqa: BLE001 - logged, if that works
        log_safely(logger.exception, "unexpected error with metrics; continuing")


if TYPE_CHECKING:
    from celery_sqs_visibility.operate.metrics.sampler import Sampler
    from celery_sqs_visibility.transport.broker_context import BrokerContext


def exporters_of(options: Options) -> tuple[str, ...]:
    """The exporters of a worker's metrics.

    Raises:
        ImproperlyConfigured: the package of an exporter is missing.
    """
    if options.metrics is None:
        is_asked = options.http_address is not None and _is_installed(PACKAGES[PROMETHEUS])
        return (PROMETHEUS,) if is_asked else ()
    for name in options.metrics:
        if name in PACKAGES and not _is_installed(PACKAGES[name]):
            package = PACKAGES[name].partition(".")[0]
            raise shown_in_one_line(
                ImproperlyConfigured(
                    f"the transport option metrics has {name!r}, and the package {package} is not installed: "
                    f"pip install 'celery_sqs_visibility[{name}]'"
                )
            )
    return options.metrics


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False


class WorkerMetrics:
    """A worker's counters and their exporters. Main thread; `routes` are called in other threads.

    Attributes:
        routes: functions that answer HTTP requests, by path.
    """

    def __init__(self, app: Any, context: BrokerContext, exporters: tuple[str, ...]) -> None:
        self._app = app
        self._context = context
        self._series = Series()
        self.routes: dict[str, Callable[[], Response]] = {}
        self._consumed: list[str] = []
        self._names: dict[str, str] = {}
        self._recorder = Recorder(
            self._series, app.tasks, self._names_at_sqs, others=_control_queues(app, context.options)
        )
        show_state(self._series, context)
        self._ends: list[Callable[[], None]] = [self._recorder.stop]
        self._counted = DeliveryEnded if exporters == (EMF,) else Event  # EMF lines only need durations
        self._sampler = self._open_sampler(context.options.sample_seconds)
        if PROMETHEUS in exporters:
            self._open_prometheus()
        if OPENTELEMETRY in exporters:
            self._open_opentelemetry()
        jobs: list[Job] = [(self._sampler.sample, context.options.sample_seconds)]
        if EMF in exporters:
            jobs.append(self._log_job())
        self._periodic = Periodic(jobs, self._leadership.resign)

    def start(self) -> None:
        """Start to count."""
        _started.add(self._recorder)
        self._recorder.start(self._counted)
        self._periodic.start()
        self._ends.append(self._periodic.stop)

    def stop(self) -> None:
        """Stop counting. Idempotent."""
        while self._ends:
            self._ends.pop()()

    def _queues(self) -> list[str]:
        """Celery's names of the queues that the worker consumes now."""
        return list(self._app.amqp.queues.consume_from)

    def _names_at_sqs(self) -> dict[str, str]:
        """Celery's names of consumed queues, by SQS's. Any thread, when a request is about another queue."""
        if (consumed := self._queues()) != self._consumed:
            self._names = {self._context.options.name_at_sqs(queue): queue for queue in consumed}
            self._consumed = consumed
        return self._names

    def _open_prometheus(self) -> None:
        from celery_sqs_visibility.operate.metrics.prometheus import Prometheus  # noqa: PLC0415 - optional

        exporter = Prometheus(self._series)
        self._ends.append(exporter.close)
        self.routes["/metrics"] = lambda: Response(exporter.exposition(), content_type=exporter.content_type)

    def _open_opentelemetry(self) -> None:
        from celery_sqs_visibility.operate.metrics import opentelemetry  # noqa: PLC0415 - likewise

        self._ends.append(opentelemetry.export(self._series))

    def _open_sampler(self, interval: float) -> Sampler:
        from celery_sqs_visibility.operate.app_queues import queue_depths  # noqa: PLC0415
        from celery_sqs_visibility.operate.metrics.sampler import Leadership, Sampler  # noqa: PLC0415 - few sample
        from celery_sqs_visibility.operate.queue_metrics import metrics_of  # noqa: PLC0415

        context, ages = self._context, metrics_of(self._context)
        try:
            store = context.coordination_store
        except OptionError as error:
            raise shown_in_one_line(ImproperlyConfigured(str(error))) from None
        owner = f"{context.worker_name}:{uuid.uuid4().hex}"
        self._leadership = Leadership(store, self._leader_key, owner, interval)
        sampler = Sampler(lambda: queue_depths(context, self._queues(), ages), self._leadership, interval)
        sampler.show(self._series)
        return sampler

    def _leader_key(self) -> str:
        """The key shared by workers of the same queues; a digest, because a key's length is limited."""
        queues = sorted(map(self._url_or_name, self._queues()))
        return f"queue-depths:{sha256(chr(10).join(queues).encode()).hexdigest()}"

    def _url_or_name(self, queue: str) -> str:
        """A queue's URL, for which SQS is asked once, or its name while the URL is unknown."""
        try:
            return self._context.queues.find(queue).url
        except SQSError:
            return queue

    def _log_job(self) -> Job:
        from celery_sqs_visibility.operate.metrics import emf  # noqa: PLC0415

        emf.prepare_logger()
        runs = emf.RunSeconds(self._series.histograms[names.RUNS])

        def write() -> None:
            emf.write_lines(self._queues(), worker_state(self._context), self._sampler.depths, runs.read())

        return write, emf.INTERVAL_SECONDS


def _control_queues(app: Any, options: Options) -> dict[str, str]:
    """Labels for remote control's queues, by the beginnings of their names."""
    prefix = options.whole_control_prefix
    return {exchange_prefix(prefix, app.conf.event_exchange): "monitor", prefix: "control"}


_started: WeakSet[Recorder] = WeakSet()


def _forget_in_child() -> None:
    """Stop the recorders in a forked child, which may have inherited a held lock."""
    for recorder in list(_started):
        recorder.stop()


os.register_at_fork(after_in_child=_forget_in_child)

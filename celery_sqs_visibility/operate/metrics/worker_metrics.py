"""The metrics of one worker, from its start to its end, as its options say."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable
from hashlib import sha256
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from celery.exceptions import ImproperlyConfigured

from celery_sqs_visibility.command_line import shown_in_one_line
from celery_sqs_visibility.errors import OptionError, SQSError
from celery_sqs_visibility.operate.http_server import Response
from celery_sqs_visibility.operate.metrics.periodic import Job, Periodic
from celery_sqs_visibility.operate.metrics.recorder import Recorder
from celery_sqs_visibility.operate.metrics.series import Series
from celery_sqs_visibility.operate.metrics.worker_state import show_state, worker_state
from celery_sqs_visibility.policy.option_parsers import EMF, OPENTELEMETRY, PROMETHEUS
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.predefined import name_at_sqs

if TYPE_CHECKING:
    from celery_sqs_visibility.operate.metrics.sampler import Sampler
    from celery_sqs_visibility.transport.broker_context import BrokerContext

#: The package that each exporter needs; the extra has the exporter's name.
PACKAGES: Final = {PROMETHEUS: "prometheus_client", OPENTELEMETRY: "opentelemetry.metrics"}

PATH: Final = "/metrics"


def exporters_of(options: Options) -> tuple[str, ...]:
    """Who gets a worker's metrics.

    Raises:
        ImproperlyConfigured: the package of one is missing.
    """
    if options.metrics is None:
        is_asked = options.http_port is not None and _is_installed(PACKAGES[PROMETHEUS])
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
    except ModuleNotFoundError:  # of the package around it
        return False


def open_metrics(app: Any, context: BrokerContext) -> WorkerMetrics | None:
    """The metrics of a worker, to be started; `None` if nobody gets any. No request, no thread.

    Raises:
        ImproperlyConfigured: something that the options ask for is missing.
    """
    exporters = exporters_of(context.options)
    return WorkerMetrics(app, context, exporters) if exporters else None


def sqs_names(options: Options, queues: Iterable[str]) -> dict[str, str]:
    """Celery's names of queues by SQS's. No request."""
    given, prefix = options.predefined_queues, options.queue_name_prefix
    return {name_at_sqs(given, queue, prefix): queue for queue in queues}


def url_or_name(context: BrokerContext, queue: str) -> str:
    """A queue's URL, which SQS is asked for once; its name while that is not known."""
    try:
        return context.queues.find(queue).url
    except SQSError:
        return queue


class WorkerMetrics:
    """What a worker counts, and who gets it. Main thread, but for what `routes` has.

    Args:
        app: the worker's.
        context: the broker's.
        exporters: who gets it, one at least.

    Attributes:
        routes: what HTTP answers.
    """

    def __init__(self, app: Any, context: BrokerContext, exporters: tuple[str, ...]) -> None:
        self._app = app
        self._context = context
        self._series = Series()
        self.routes: dict[str, Callable[[], Response]] = {}
        self._consumed: list[str] = []
        self._names: dict[str, str] = {}
        self._recorder = Recorder(self._series, app.tasks, self._names_at_sqs)
        show_state(self._series, context)
        self._ends: list[Callable[[], None]] = [self._recorder.stop]
        self._is_read = exporters != (EMF,)  # whose lines have no number of events
        self._sampler = self._open_sampler(context.options)
        if PROMETHEUS in exporters:
            self._open_prometheus()
        if OPENTELEMETRY in exporters:
            self._open_opentelemetry()
        self._periodic = self._open_periodic(EMF in exporters)

    def start(self) -> None:
        """Count from now on."""
        if self._is_read:
            _started.add(self._recorder)
            self._recorder.start()
        if self._periodic is not None:
            self._periodic.start()
            self._ends.append(self._periodic.stop)

    def stop(self) -> None:
        """Count no more; harmless if it does not."""
        while self._ends:
            self._ends.pop()()

    def _queues(self) -> list[str]:
        return list(self._app.amqp.queues.consume_from)

    def _names_at_sqs(self) -> dict[str, str]:
        """Of the queues that are consumed now. Any thread; asked at each request about another queue."""
        if (consumed := self._queues()) != self._consumed:
            self._names, self._consumed = sqs_names(self._context.options, consumed), consumed
        return self._names

    def _open_prometheus(self) -> None:
        from celery_sqs_visibility.operate.metrics import prometheus  # noqa: PLC0415 - an optional dependency

        exporter = prometheus.Prometheus(self._series)
        self._ends.append(exporter.close)
        self.routes[PATH] = lambda: Response(exporter.exposition(), content_type=prometheus.CONTENT_TYPE)

    def _open_opentelemetry(self) -> None:
        from celery_sqs_visibility.operate.metrics import opentelemetry  # noqa: PLC0415 - likewise

        self._ends.append(opentelemetry.export(self._series))

    def _open_sampler(self, options: Options) -> Sampler | None:
        interval = options.sample_seconds
        if not interval:
            return None
        from celery_sqs_visibility.operate.metrics.sampler import Sampler  # noqa: PLC0415 - few workers sample
        from celery_sqs_visibility.operate.metrics.turn import Turn  # noqa: PLC0415
        from celery_sqs_visibility.operate.queue_depths import queue_depths  # noqa: PLC0415
        from celery_sqs_visibility.operate.queue_metrics import metrics_of  # noqa: PLC0415

        context, ages = self._context, metrics_of(self._context)
        try:
            store = context.exclusive_store
        except OptionError as error:
            raise shown_in_one_line(ImproperlyConfigured(str(error))) from None
        turn = Turn(store, self._turn_key, f"{context.worker_name}:{uuid.uuid4().hex}", interval)
        sampler = Sampler(lambda: queue_depths(context, self._queues(), ages), turn, interval)
        sampler.show(self._series)
        self._sample_seconds = interval
        return sampler

    def _turn_key(self) -> str:
        """Workers of the same queues at SQS share a turn; the name is as long as any key may be."""
        queues = sorted(url_or_name(self._context, name) for name in self._queues())
        return f"queue-depths:{sha256(chr(10).join(queues).encode()).hexdigest()}"

    def _open_periodic(self, emf: bool) -> Periodic | None:  # noqa: FBT001
        jobs: list[Job] = []
        sampler = self._sampler
        if sampler is not None:
            jobs.append((sampler.sample, self._sample_seconds))
        if emf:
            jobs.append(self._log_job())
        end = sampler.end if sampler is not None else lambda: None
        return Periodic(jobs, end) if jobs else None

    def _log_job(self) -> Job:
        from celery_sqs_visibility.operate.metrics.emf import INTERVAL_SECONDS, EMFLog  # noqa: PLC0415

        sampler = self._sampler
        log = EMFLog(
            self._queues,
            lambda: worker_state(self._context),
            lambda: sampler.depths if sampler is not None else [],
        )
        return log.write, INTERVAL_SECONDS


_started: WeakSet[Recorder] = WeakSet()


def _forget_in_child() -> None:
    """A forked child has nothing to count, and may have inherited a lock that somebody held."""
    for recorder in list(_started):
        recorder.stop()


os.register_at_fork(after_in_child=_forget_in_child)

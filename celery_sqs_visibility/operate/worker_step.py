"""Bootstep for a worker's HTTP server and metrics."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from celery import signals
from celery.utils.log import get_logger

from celery_sqs_visibility.contacts.worker import connecting
from celery_sqs_visibility.operate.health import probe
from celery_sqs_visibility.operate.health.worker_health import WorkerHealth
from celery_sqs_visibility.operate.http_server import HTTPListener, HTTPServer, Response, Routes, listener_at
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.worker.bootsteps import SQSStep

if TYPE_CHECKING:
    from celery_sqs_visibility.operate.metrics.worker_metrics import WorkerMetrics

logger = get_logger(__name__)


class Operations(SQSStep):
    """Answers over HTTP from before the worker connects, which may take time, until its end."""

    requires = ("celery_sqs_visibility.worker.bootsteps:Deliveries",)  # it sets the worker's name

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self._server: HTTPServer | None = None
        self._probed: HTTPListener | None = None
        self._metrics: WorkerMetrics | None = None
        health = WorkerHealth(parent)
        #: Functions that answer HTTP requests, by path. Metrics add theirs.
        self.routes: dict[str, Callable[[], Response]] = {"/healthz": health.live, "/readyz": health.ready}

    def create(self, parent: Any) -> None:
        """Prepare to start when the worker connects: its pool has forked by then."""
        self._metrics = metrics_of(parent)
        if self._metrics is not None:
            self.routes |= self._metrics.routes
        connecting(parent).before.insert(0, partial(self._start, parent))  # before the wait for queues
        # The consumer's own shutdown comes before the wait for polls in flight. The uid is for Celery 5.5,
        # which can't tell the methods of two workers apart.
        signals.worker_shutdown.connect(self._stop, sender=parent.controller, dispatch_uid=str(id(self)))

    def _start(self, parent: Any) -> None:
        """Start at the first connection. Main thread."""
        if self._server is not None:
            return
        self._probed = probed_listener(parent.hostname, self.routes)
        at_port = port_listener(parent.conninfo.transport.options, self.routes)
        self._server = HTTPServer([each for each in (self._probed, at_port) if each])
        self._server.start()
        if self._metrics is not None:
            self._metrics.start()

    def _stop(self, **_: Any) -> None:
        if self._probed is not None and self._probed.listens:
            probe.remove(self._probed.socket)
        if self._server is not None:
            self._server.stop()
        if self._metrics is not None:
            self._metrics.stop()


def metrics_of(parent: Any) -> WorkerMetrics | None:
    """The metrics of a consumer's worker; `None`, without an import, if none are exported.

    Raises:
        ImproperlyConfigured: a package that the options need is missing.
    """
    context = parent.conninfo.transport.context
    if not context.options.has_metrics:
        return None
    from celery_sqs_visibility.operate.metrics.worker_metrics import (  # noqa: PLC0415 - few need it
        WorkerMetrics,
        exporters_of,
    )

    exporters = exporters_of(context.options)
    return WorkerMetrics(parent.app, context, exporters) if exporters else None


def probed_listener(node: str, routes: Routes) -> HTTPListener:
    """The listener for probes of this host, at a node's Unix socket. It may not listen yet."""
    claimed = "the directory for probes of this host takes a socket"
    listener = HTTPListener(partial(probe.listen, node), routes, claimed)
    try:
        listener.claim()
    except OSError as error:
        logger.warning(
            "cannot listen for probes of this host, so celery sqs health finds no worker: let TMPDIR name a "
            "directory with a short path that this user may write to (%s); it is tried again",
            error,
        )
    return listener


def port_listener(options: Options, routes: Routes) -> HTTPListener | None:
    """The listener for the option `http_address`; `None` without it, or if the host does not exist."""
    address, listener = options.http_address, None
    if address is None:
        return None
    try:
        listener = listener_at(*address, routes)
        listener.claim()
    except OSError as error:
        logger.warning(
            "cannot answer HTTP requests, so the worker goes on without: http_address %s: %s; give each "
            "worker of a host a port of its own, or none%s",
            address,
            error,
            "" if listener is None else "; it takes the port when that is free",
        )
    return listener

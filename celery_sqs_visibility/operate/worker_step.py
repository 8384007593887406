"""The bootstep for what people and their tools see of a worker, and by which they steer it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery import signals
from celery.utils.log import get_logger

from celery_sqs_visibility.operate.health.sockets import ProbedSocket
from celery_sqs_visibility.operate.health.worker_health import WorkerHealth
from celery_sqs_visibility.operate.http_server import HTTPServer, Listener, Response
from celery_sqs_visibility.policy.operate_options import OperateOptions
from celery_sqs_visibility.worker.bootsteps import SQSStep

if TYPE_CHECKING:
    from celery_sqs_visibility.operate.metrics.worker_metrics import WorkerMetrics

logger = get_logger(__name__)


class Operations(SQSStep):
    """Answers over HTTP from before the worker connects, which may wait for its queues, to its end."""

    # Its `parent.connect`, which waits for queues, is wrapped here.
    requires = ("celery_sqs_visibility.worker.bootsteps:Deliveries",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self._server: HTTPServer | None = None
        self._probed: ProbedSocket | None = None
        self._metrics: WorkerMetrics | None = None
        health = WorkerHealth(parent)
        #: What is answered to whom. Others of this room add to it.
        self.routes: dict[str, Callable[[], Response]] = {"/healthz": health.live, "/readyz": health.ready}

    def create(self, parent: Any) -> None:
        """Be started when the worker connects: its pool has forked by then."""
        self._metrics = metrics_of(parent)
        if self._metrics is not None:
            self.routes |= self._metrics.routes
        connect = parent.connect

        def start_and_connect() -> Any:
            self._start(parent)
            return connect()

        parent.connect = start_and_connect
        # The consumer's own shutdown comes before the wait for polls in flight. The uid is for Celery 5.5,
        # which takes the methods of two workers for one.
        signals.worker_shutdown.connect(self._stop, sender=parent.controller, dispatch_uid=str(id(self)))

    def _start(self, parent: Any) -> None:
        """Start, once, however often the worker connects anew. Main thread."""
        if self._server is not None:
            return
        self._probed = probed_socket(parent.hostname)
        bound = [self._probed and self._probed.socket, tcp_socket(parent.conninfo.transport.options)]
        self._server = HTTPServer([Listener(each, self.routes) for each in bound if each])
        self._server.start()
        if self._metrics is not None:
            self._metrics.start()

    def _stop(self, **_: Any) -> None:
        if self._server is not None:
            self._server.stop()
        if self._probed is not None:
            self._probed.remove()
        if self._metrics is not None:
            self._metrics.stop()


def metrics_of(parent: Any) -> WorkerMetrics | None:
    """The metrics of a consumer's worker; nothing is imported where nobody gets any."""
    context = parent.conninfo.transport.context
    if not context.options.has_metrics:
        return None
    from celery_sqs_visibility.operate.metrics.worker_metrics import open_metrics  # noqa: PLC0415 - few need it

    return open_metrics(parent.app, context)


def probed_socket(node: str) -> ProbedSocket | None:
    """The socket for probes of this host; `None` where the temporary directory does not take it."""
    try:
        return ProbedSocket(node)
    except OSError as error:
        logger.warning(
            "cannot listen for probes of this host, so celery sqs health finds no worker: let TMPDIR name a "
            "directory with a short path that this user may write to (%s)",
            error,
        )
        return None


def tcp_socket(options: OperateOptions) -> socket.socket | None:
    """The socket of the option `http_port`; `None` without it, and where another process has the port."""
    host, port = options.http_host, options.http_port
    if port is None:
        return None
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        logger.warning(
            "cannot answer HTTP requests, so the worker goes on without: http_port %s of %s: %s; give each "
            "worker of a host a port of its own, or none",
            port,
            host,
            error,
        )
        return None

"""Health of a worker, determined when a probe asks."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from http import HTTPStatus
from typing import Any

from celery.bootsteps import CLOSE, RUN, TERMINATE  # type: ignore[attr-defined] # in no stub
from celery.worker import state

from celery_sqs_visibility.contacts.pool import processes_of
from celery_sqs_visibility.delivery.threads import snapshot
from celery_sqs_visibility.operate.http_server import Response
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.policy.health import (
    Verdict,
    WaitingFacts,
    WorkerFacts,
    WorkerPhase,
    liveness,
    readiness,
)


class WorkerHealth:
    """The health of one worker. Any thread. It takes locks, which hang if the worker's threads do."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._waiting: tuple[WaitingFacts, float] | None = None  # first seen by a probe, and when

    def live(self) -> Response:
        """Answer `GET /healthz`."""
        return self._response(liveness)

    def ready(self) -> Response:
        """Answer `GET /readyz`."""
        return self._response(readiness)

    def facts(self) -> WorkerFacts:
        """The worker's current state."""
        consumer = self._consumer
        if _is_stopping(consumer):
            return WorkerFacts(WorkerPhase.STOPPING)
        connection = consumer.connection
        if connection is None or consumer.blueprint.state != RUN:
            return WorkerFacts(WorkerPhase.STARTING)
        transport, now = connection.transport, SYSTEM_CLOCK.monotonic()
        queue_consumers = snapshot(transport.context.receiving.worker_queue_consumers)
        if not queue_consumers:
            return WorkerFacts(WorkerPhase.STARTING)
        living, wanted = _processes(consumer.pool)
        return WorkerFacts(
            WorkerPhase.RUNNING,
            transport.context.receiving.loop_late(transport.buffer.looped_at, now),
            living,
            tuple(facts for each in queue_consumers for facts in each.polling_facts(now)),
            tuple(facts for each in queue_consumers for facts in each.duty_facts(now)),
            wanted,
            self._handover(now),
            max(each.forgotten for each in queue_consumers),
            tuple(transport.context.receiving.brakes()),
        )

    def _handover(self, now: float) -> float:
        """For how many seconds tasks have waited for a pool that ran none, as far as probes have seen."""
        waiting, earlier = _waiting(), self._waiting
        if waiting is None:
            self._waiting = None
            return 0.0
        if earlier is None or not waiting.still(earlier[0]):
            self._waiting = earlier = (waiting, now)
        return now - earlier[1]

    def _response(self, judge: Callable[[WorkerFacts], Verdict]) -> Response:
        facts = self.facts()
        verdict = judge(facts)
        answer = {"node": self._consumer.hostname, "pid": os.getpid(), **asdict(verdict), **asdict(facts)}
        status = HTTPStatus.OK if verdict.ok else HTTPStatus.SERVICE_UNAVAILABLE
        return Response(json.dumps(answer | {"phase": facts.phase.value}), status)


def _waiting() -> WaitingFacts | None:
    """The tasks that wait for the pool; `None` if there are none, or something runs."""
    if snapshot(state.active_requests):
        return None
    tasks = frozenset(request.id for request in snapshot(state.reserved_requests))
    return WaitingFacts(state.all_total_count[0], tasks) if tasks else None


def _is_stopping(consumer: Any) -> bool:
    told = (each is not None and each is not False for each in (state.should_stop, state.should_terminate))
    return any(told) or consumer.blueprint.state in {CLOSE, TERMINATE}


def _processes(pool: Any) -> tuple[int | None, int | None]:
    """The numbers of processes of a prefork pool, live and wanted; `None` for other pools.

    None are wanted while `--autoscale=N,0` has nothing to run (billiard/pool.py: `Pool.shrink`).
    """
    if (processes := processes_of(pool)) is None:
        return None, None
    return sum(_lives(process.pid) for process in processes), getattr(pool, "num_processes", None)


def _lives(pid: int) -> bool:
    """Returns whether a child process is alive, without reaping it: that is the pool's job."""
    try:
        if not hasattr(os, "waitid"):  # macOS, until Python 3.13
            os.kill(pid, 0)
            return True
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except (ChildProcessError, ProcessLookupError):
        return False

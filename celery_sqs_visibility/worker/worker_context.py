"""The worker of a request: its pool and event loop, and its keys of exclusive tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery.concurrency.base import BasePool
from celery.concurrency.solo import TaskPool as SoloPool
from celery.platforms import signals
from celery.worker import state

from celery_sqs_visibility.delivery.lease_table import lease_table

if TYPE_CHECKING:
    from celery_sqs_visibility.worker.key_leases import KeyLeases


class WorkerContext:
    """One worker's pool and event loop, which its bootstep knows.

    Attributes:
        pool: Celery's pool; `None` for a request outside a worker.
        has_processes: whether the pool runs tasks in processes.
        hub: the event loop that hears how runs in processes end, once the worker has started.
        collects: whether a task has its own `Strategy`, by which it may hold messages that no slot runs.
        key_leases: the keys of exclusive tasks, if any task is exclusive.
        left: the threads whose runs nobody waits for any longer; a shutdown adds them.
        when_lost: the transport option, for tasks that do not say it themselves.
        on_eta: hears of a request with an ETA when it is made, if anybody wants to.
        waits_for_resume: lets a request wait whose task is paused, and tells whether it does; set where tasks
            can be paused.
    """

    def __init__(self, pool: BasePool | None = None, *, has_processes: bool = False) -> None:
        self.pool = pool
        self.has_processes = has_processes
        self.hub: Any = None
        self.collects = False
        self.key_leases: KeyLeases | None = None
        self.left: set[int | None] = set()
        self.when_lost = "continue"
        self.on_eta: Callable[[Any], object] | None = None
        self.waits_for_resume: Callable[[Any], bool] | None = None

    @property
    def can_end_runs(self) -> bool:
        """Whether the pool has a way to end a run: threads have none, and the solo pool."""
        terminate_job = getattr(self.pool, "terminate_job", None)
        return getattr(terminate_job, "__func__", terminate_job) not in {None, BasePool.terminate_job}

    @property
    def is_ending(self) -> bool:
        """Whether a shutdown has begun."""
        return state.should_stop is not None or bool(state.should_terminate)

    def loop_late(self, looped_at: float, now: float) -> float:
        """For how many seconds Celery's loop has not come round, since `looped_at`; 0 where that is well.

        A solo pool runs tasks on the loop's thread, and a shutdown leaves the loop. Any thread.
        """
        runs_tasks = isinstance(self.pool, SoloPool) and bool(state.active_requests)
        return 0.0 if runs_tasks or self.is_ending else max(0.0, now - looped_at)

    def kill(self, pid: Any, signal_name: str) -> None:
        """End the run that this process or greenlet of the pool has; see `can_end_runs`."""
        if self.pool is not None:
            self.pool.terminate_job(pid, signals.signum(signal_name))

    def call_in_loop(self, act: Callable[[], object]) -> None:
        """Call `act` on the thread that sends runs to processes and hears how they end. Any thread.

        Here, where there are no processes, or once a shutdown has begun: no more runs are sent then.
        """
        leases = lease_table()
        if self.hub is None or leases is None or self.is_ending:
            act()
        else:
            self.hub.call_soon(act)
            leases.wake()  # the loop of Celery 5.5 and 5.6 does not wake for `call_soon`

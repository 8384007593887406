"""The worker of a request: its pool, its event loop, and the keys of its exclusive tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery.concurrency.base import BasePool
from celery.concurrency.solo import TaskPool as SoloPool
from celery.platforms import signals
from celery.worker import state

from celery_sqs_visibility.delivery.lease_table import lease_table

if TYPE_CHECKING:
    from celery_sqs_visibility.worker.brakes import Brakes
    from celery_sqs_visibility.worker.key_leases import KeyLeases
    from celery_sqs_visibility.worker.waiting_requests import WaitingRequests


class WorkerContext:
    """One worker's pool, event loop and shared parts, filled in by its bootstep.

    Attributes:
        pool: Celery's pool; `None` for a request outside a worker.
        has_processes: whether the pool runs tasks in processes.
        hub: the event loop that learns how runs in processes end, once the worker has started.
        collects: whether a task has its own `Strategy`, which may hold messages without a slot.
        key_leases: the keys of exclusive tasks, if any task is exclusive.
        left: the threads of abandoned runs; a shutdown adds them.
        when_lost: the transport option, for tasks that don't set it themselves.
        waiting: the requests that wait in memory.
        waits_for_resume: lets a request of a paused task wait, and returns whether it does; `None` if tasks
            can't be paused.
        brakes: the brakes of the tasks, if any task has one.
    """

    def __init__(self, pool: BasePool | None = None, *, has_processes: bool = False) -> None:
        self.pool = pool
        self.has_processes = has_processes
        self.hub: Any = None
        self.collects = False
        self.key_leases: KeyLeases | None = None
        self.left: set[int | None] = set()
        self.when_lost = "continue"
        self.waiting: WaitingRequests | None = None
        self.waits_for_resume: Callable[[Any], bool] | None = None
        self.brakes: Brakes | None = None

    @property
    def can_end_runs(self) -> bool:
        """Whether the pool can end a run: thread pools and the solo pool can't."""
        terminate_job = getattr(self.pool, "terminate_job", None)
        return getattr(terminate_job, "__func__", terminate_job) not in {None, BasePool.terminate_job}

    @property
    def is_ending(self) -> bool:
        """Whether a shutdown has begun."""
        return state.should_stop is not None or bool(state.should_terminate)

    def loop_late(self, looped_at: float, now: float) -> float:
        """For how many seconds Celery's loop has been blocked, since `looped_at`; 0 where that is normal.

        A solo pool runs tasks on the loop's thread, and a shutdown leaves the loop. Any thread.
        """
        runs_tasks = isinstance(self.pool, SoloPool) and bool(state.active_requests)
        return 0.0 if runs_tasks or self.is_ending else max(0.0, now - looped_at)

    def kill(self, pid: Any, signal_name: str) -> None:
        """End the run of this process or greenlet of the pool. Requires `can_end_runs`."""
        if self.pool is not None:
            self.pool.terminate_job(pid, signals.signum(signal_name))

    def call_in_loop(self, act: Callable[[], object]) -> None:
        """Call `act` on the thread that sends runs to processes and learns how they end. Any thread.

        Without processes, or during a shutdown, when no more runs are sent, the calling thread calls it.
        """
        leases = lease_table()
        if self.hub is None or leases is None or self.is_ending:
            act()
        else:
            self.hub.call_soon(act)
            leases.wake()  # the loop of Celery 5.5 and 5.6 does not wake for `call_soon`

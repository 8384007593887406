"""The end: hand back in time what will not be done, as Sidekiq does within the 30 seconds of Amazon ECS.

Celery's warm shutdown (celery/worker/worker.py: `WorkController.stop`) goes on beside this: it waits for the
running tasks, however long they take, and then closes the channel. We stop the polls, give back at once what
has not begun, and when `shutdown_timeout` is over what still runs; then the process ends.
"""

from __future__ import annotations

import math
import os
import signal
import threading
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from billiard.process import active_children
from celery.platforms import EX_OK
from celery.utils.log import get_logger

from celery_sqs_visibility.broker import Broker
from celery_sqs_visibility.delivery.depot import Depot
from celery_sqs_visibility.delivery.log import Fields
from celery_sqs_visibility.delivery.model import Delivery
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK

logger = get_logger(__name__)

#: Tells in how many seconds after SIGTERM the SIGKILL comes, where nothing else does: in Kubernetes the pod's
#: terminationGracePeriodSeconds, repeated as the literal value of an environment variable.
GRACE_VARIABLE = "TERMINATION_GRACE_PERIOD_SECONDS"

#: Set by Amazon ECS in every container.
ECS_VARIABLE = "ECS_CONTAINER_METADATA_URI_V4"

#: Amazon ECS sends SIGKILL this many seconds after SIGTERM, unless the task definition says otherwise.
ECS_STOP_TIMEOUT = 30

#: What handing back and ending take, at the most.
MARGIN = 2

#: While runs are waited for, it is looked that often, in seconds, whether they have less time now.
GLANCE = 0.5


class Drain:
    """Drains one worker when it is told to stop, in a thread of its own.

    Args:
        consumer: the worker's `celery.worker.consumer.Consumer`.
    """

    def __init__(self, consumer: Any) -> None:
        self.consumer = consumer
        self._broker: Broker = consumer.connection.transport.broker
        self._timeout = self._broker.options.shutdown_timeout
        # A signal handler may put something in while it is being put in: this kind of queue bears it.
        self._wakes: SimpleQueue[bool] = SimpleQueue()  # whether there is something to do
        self._until = math.inf  # the monotonic instant at which what still runs is handed back
        self._exit_code = EX_OK

    def watch(self) -> None:
        """Be ready. Main thread."""
        _warn_if_too_long(self._timeout)
        threading.Thread(target=self._run, name="sqs-drain", daemon=True).start()

    def ask(self, timeout: float | None = None, exit_code: int = EX_OK) -> None:
        """Begin, or hurry. In a signal handler: no I/O, and no lock.

        Args:
            timeout: seconds that runs have, from now on; `shutdown_timeout` by default. Who asks again gives
                no more time.
            exit_code: the status with which to end, if anything still runs then.
        """
        until = SYSTEM_CLOCK.monotonic() + (self._timeout if timeout is None else timeout)
        if until < self._until:
            self._until, self._exit_code = until, exit_code
        self._wakes.put(True)

    def forget(self) -> None:
        """End the thread, if it was not asked for anything: the worker has stopped."""
        self._wakes.put(False)

    def _run(self) -> None:
        if not self._wakes.get():
            return
        try:
            orphans = self._drain(list(self._broker.depots))
        except Exception:
            logger.exception("draining stumbled; what is held comes back after its visibility timeout")
            return
        if orphans:
            _end(self.consumer, self._exit_code)

    def _drain(self, depots: list[Depot]) -> list[Delivery]:
        left = self._left()
        logger.info(
            "shutdown: no more polls; running tasks have %s",
            f"{left:.3g} s" if math.isfinite(left) else "as long as they take",
        )
        for depot in depots:
            depot.stop_polling()
        released = sum(depot.give_back_unstarted() for depot in depots)
        logger.info("shutdown: %d messages given back that had not begun", released)
        orphans: list[Delivery] = []
        for depot in depots:
            while (left := self._left()) > 0 and not depot.ledger.wait_until_empty(min(left, GLANCE)):
                pass
            orphans += depot.hand_back()
        for orphan in orphans:
            told = orphan.facts
            facts = Fields(task=told.task, task_id=told.task_id, message_id=told.message_id)
            logger.warning("shutdown: orphaned, handed back (%s)", facts, extra={"sqs": facts})
        return orphans

    def _left(self) -> float:
        return max(0.0, self._until - SYSTEM_CLOCK.monotonic())


def _end(consumer: Any, exit_code: int) -> None:
    """End the orphans and this process, whose main thread waits for them. Their messages are handed back."""
    logger.warning("shutdown: time is up, ending")
    # The pool's, and an embedded beat's.
    for child in active_children():
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
    worker = consumer.controller
    if worker.pidlock:
        worker.pidlock.release()
    # Not sys.exit: pool threads, and a solo pool's main thread, cannot be made to end.
    os._exit(exit_code)


def _warn_if_too_long(timeout: float) -> None:
    grace, reason = _grace_period()
    longest = max(0.0, grace - MARGIN)
    if timeout > longest:
        logger.warning(
            "shutdown_timeout is %g s, but %s: set at most %g, or messages of running tasks stay hidden "
            "for a visibility timeout",
            timeout,
            reason,
            longest,
        )


def _grace_period() -> tuple[float, str]:
    """Seconds from SIGTERM to SIGKILL, infinite if nobody says, and a clause that says so."""
    told = os.environ.get(GRACE_VARIABLE)
    if told:
        try:
            return float(told), f"{GRACE_VARIABLE} says that SIGKILL comes {told} s after SIGTERM"
        except ValueError:
            logger.warning("expected %s to be a number of seconds, got %r", GRACE_VARIABLE, told)
    if ECS_VARIABLE in os.environ:
        return ECS_STOP_TIMEOUT, (
            f"Amazon ECS kills {ECS_STOP_TIMEOUT} s after SIGTERM, unless stopTimeout is longer "
            f"(then say so in {GRACE_VARIABLE})"
        )
    return math.inf, ""

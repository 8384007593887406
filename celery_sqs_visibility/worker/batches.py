"""Runs of several messages at once, by tasks with their own `Strategy`: celery-batches.

Such a task gives the pool one run for many requests, with its own callbacks that acknowledge the messages
(celery_batches/__init__.py: `Batches.flush`). So the requests don't hear when the run begins and ends. They
are found by the run's arguments: each `SimpleRequest` has its request's `request_dict`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from celery import Task
from celery.utils.log import get_logger

from celery_sqs_visibility.worker.request import DeliveryRequest

logger = get_logger(__name__)

#: Requests that were collected or run, by the queue and message id in `request.sqs`.
_collected: Final[WeakValueDictionary[tuple[str, str], BatchedRequest]] = WeakValueDictionary()

if TYPE_CHECKING:
    _Base = DeliveryRequest
else:
    _Base = object


def has_own_strategy(task: Any) -> bool:
    """Returns whether the task decides when its messages run (celery/app/task.py: `Task.Strategy`)."""
    return getattr(type(task), "Strategy", None) is not Task.Strategy


class BatchedRequest(_Base):
    """Mixed into the requests of tasks with a `Strategy` of their own."""

    is_collected = True

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        if self.delivery is not None:
            _collected[_key(self.request_dict["sqs"])] = self

    def start(self) -> bool:
        """Start the request with its batch. Returns `False` if it was given back meanwhile, or lost."""
        return self.delivery is None or self.delivery.start()

    def end(self) -> None:
        """End the request with its batch. The task's callback has acknowledged the messages it chose."""
        self.ended()
        if self.delivery is not None and self.delivery.acknowledged_early:
            self.measure_run()
        if not self.acknowledged:
            self.log(logger.warning, "Task %s[%s] comes back: its batch was lost")
            self.come_back_later()


class BatchRun:
    """One run of several messages.

    Args:
        members: the run's argument for each message; those that may not run any more are removed.
    """

    def __init__(self, members: list[Any]) -> None:
        self._members = members
        self._requests = [_collected.get(_key(_sqs_of(member))) for member in members]

    def keep(self, may_run: Callable[[BatchedRequest], bool]) -> bool:
        """Keep the members that may run. Returns whether any may."""
        kept = [
            (member, request)
            for member, request in zip(self._members, self._requests, strict=True)
            if request is None or may_run(request)
        ]
        self._members[:] = [member for member, _ in kept]
        self._requests = [request for _, request in kept]
        return bool(kept)

    def start(self) -> None:
        """Start all members. The main thread, or the thread of the pool that runs them."""
        self.keep(BatchedRequest.start)

    def end(self) -> None:
        """End all members: the run is over, or its process is lost. The same threads as `start`."""
        for request in self._requests:
            if request is not None:
                request.end()

    def callbacks(self, options: dict[str, Any]) -> dict[str, Callable[..., None]]:
        """The callbacks of the run for the pool, which also call `start` and `end`."""
        accept = options.get("accept_callback")

        def begin(*args: Any, **kwargs: Any) -> None:
            self.start()
            if accept is not None:
                accept(*args, **kwargs)

        def ending(callback: Callable[..., Any] | None) -> Callable[..., None]:
            def finish(*args: Any, **kwargs: Any) -> None:
                try:
                    if callback is not None:
                        callback(*args, **kwargs)
                finally:
                    self.end()

            return finish

        return {
            "accept_callback": begin,
            "callback": ending(options.get("callback")),
            "error_callback": ending(options.get("error_callback")),
        }


def batch_run_of(args: Any) -> BatchRun | None:
    """The batch of a run with these arguments: a task, and a tuple with the list of its messages."""
    task, given = args[:2] if len(args) > 1 else (None, None)
    members = given[0] if isinstance(given, tuple) and len(given) == 1 else None
    if not isinstance(members, list) or not isinstance(task, Task) or not has_own_strategy(task):
        return None
    return BatchRun(members) if all(map(_sqs_of, members)) else None


def _sqs_of(member: Any) -> Any:
    return (getattr(member, "request_dict", None) or {}).get("sqs")


def _key(sqs: Any) -> tuple[str, str]:
    return sqs["queue"], sqs["message_id"]

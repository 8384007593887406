"""Runs of several messages at once, by tasks that collect them with their own `Strategy`: celery-batches.

Such a task gives the pool one run for many requests, with callbacks of its own that acknowledge these
(celery_batches/__init__.py: `Batches.flush`). So requests would not hear that their run begins, or ends. They
are found by what the run is given of each: a `SimpleRequest`, which has the request's `request_dict`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from celery import Task
from celery.utils.log import get_logger

from celery_sqs_visibility.worker.request import DeliveryRequest

logger = get_logger(__name__)

#: Requests that were collected, or run, by what `request.sqs` says of their messages.
_collected: Final[WeakValueDictionary[tuple[str, str], BatchedRequest]] = WeakValueDictionary()

if TYPE_CHECKING:
    _Base = DeliveryRequest
else:
    _Base = object


def has_own_strategy(task: Any) -> bool:
    """Whether the task says when its messages run (celery/app/task.py: `Task.Strategy`)."""
    return getattr(type(task), "Strategy", None) is not Task.Strategy


class BatchedRequest(_Base):
    """Mixed into the requests of tasks with a `Strategy` of their own."""

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        if self.delivery is not None:
            _collected[_key(self.request_dict["sqs"])] = self

    def start(self) -> bool:
        """Its batch begins; whether it may: it may have been given back meanwhile, or lost."""
        return self.delivery is None or self.delivery.start()

    def end(self) -> None:
        """Its batch is over, and the task's own callback has acknowledged the messages that it chose."""
        self.ended()
        if self.delivery is not None and self.delivery.acknowledged_early:
            self.measure_run()
        if not self.acknowledged:
            logger.warning(
                "Task %s[%s] comes back: its batch was lost", self.name, self.id, extra=self.log_extra()
            )
            self.come_back_later()


class Batch:
    """One run of several messages.

    Args:
        members: what the run is given of each message. What may not run any more is taken out.
    """

    def __init__(self, members: list[Any]) -> None:
        self._members = members
        self._requests = [_collected.get(_key(_sqs_of(member))) for member in members]

    def keep(self, may_run: Callable[[BatchedRequest], bool]) -> bool:
        """Keep those that may run; whether any may."""
        kept = [
            (member, request)
            for member, request in zip(self._members, self._requests, strict=True)
            if request is None or may_run(request)
        ]
        self._members[:] = [member for member, _ in kept]
        self._requests = [request for _, request in kept]
        return bool(kept)

    def start(self) -> None:
        """It begins. The main thread, or the pool's thread that runs it."""
        self.keep(BatchedRequest.start)

    def end(self) -> None:
        """It is over, or its process is lost. As `start`."""
        for request in self._requests:
            if request is not None:
                request.end()

    def told(self, options: dict[str, Any]) -> dict[str, Any]:
        """The callbacks of its run in a pool, which tell the batch, too, of its beginning and of each end."""
        return {
            "accept_callback": _both(self.start, options.get("accept_callback")),
            "callback": _both(options.get("callback"), self.end),
            "error_callback": _both(options.get("error_callback"), self.end),
        }


def batch_of(args: Any) -> Batch | None:
    """The batch that a pool runs with these arguments: a task, and in a tuple the list of its messages."""
    task, given = args[:2] if len(args) > 1 else (None, None)
    members = given[0] if isinstance(given, tuple) and len(given) == 1 else None
    if not isinstance(members, list) or not isinstance(task, Task) or not has_own_strategy(task):
        return None
    return Batch(members) if all(map(_sqs_of, members)) else None


def _both(first: Callable[..., Any] | None, second: Callable[..., Any] | None) -> Callable[..., None]:
    """Call both, those of a `Batch` without arguments; the second whatever the first raises."""

    def call(*args: Any, **kwargs: Any) -> None:
        try:
            _call(first, args, kwargs)
        finally:
            _call(second, args, kwargs)

    return call


def _call(function: Callable[..., Any] | None, args: Any, kwargs: Any) -> None:
    if isinstance(getattr(function, "__self__", None), Batch):
        args, kwargs = (), {}
    if function is not None:
        function(*args, **kwargs)


def _sqs_of(member: Any) -> Any:
    return (getattr(member, "request_dict", None) or {}).get("sqs")


def _key(sqs: Any) -> tuple[str, str]:
    return sqs["queue"], sqs["message_id"]

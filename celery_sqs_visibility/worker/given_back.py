"""Tasks that Celery holds for their ETA or rate, while their messages were given back in a pause.

Celery raises its prefetch count for each task that it holds so, and lowers it when the task's time comes
(celery/worker/strategy.py: `default`; celery/worker/consumer/consumer.py: `apply_eta_task`,
`_limit_post_eta`). Until then a task whose message is gone would count as a message that waits without a
slot, and the worker would ask for as many messages too many.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from celery.worker import state

from celery_sqs_visibility.worker.rate_limits import RateLimits

if TYPE_CHECKING:
    from celery_sqs_visibility.delivery.model import Delivery
    from celery_sqs_visibility.worker.worker_context import WorkerContext


class GivenBack:
    """Stands before what Celery does when an ETA has come, by replacing two methods of a consumer.

    Args:
        consumer: the worker's `celery.worker.consumer.Consumer`, whose tasks have no strategies yet.
        worker: tells of requests with an ETA.
        rate_limits: knows the requests that wait for their rate.
    """

    def __init__(self, consumer: Any, worker: WorkerContext, rate_limits: RateLimits) -> None:
        self._consumer = consumer
        self._rate_limits = rate_limits
        self._waiting: WeakKeyDictionary[Any, None] = WeakKeyDictionary()  # requests with an ETA to come
        self._forgotten: WeakSet[Any] = WeakSet()  # of which the prefetch count knows no more
        self._apply_eta_task = consumer.apply_eta_task
        self._limit_post_eta = consumer._limit_post_eta  # noqa: SLF001
        worker.on_eta = self.wait
        consumer.apply_eta_task = self.apply_eta_task
        consumer._limit_post_eta = self.limit_post_eta  # noqa: SLF001

    def wait(self, request: Any) -> None:
        """A request was made that Celery holds until its ETA. Main thread."""
        self._waiting[request] = None

    def forget(self, deliveries: Collection[Delivery]) -> None:
        """These were given back: their tasks are as good as gone. Any thread."""
        for request in [ref() for ref in self._waiting.keyrefs()]:
            if request is not None and _has_one_of(request, deliveries) and self._is_first(request):
                self._consumer.qos.decrement_eventually()
        self._rate_limits.forget(lambda request: _has_one_of(request, deliveries))

    def apply_eta_task(self, request: Any) -> None:
        """The ETA of a task has come. The event loop's timer."""
        if not self._is_forgotten(request):
            self._apply_eta_task(request)

    def limit_post_eta(self, request: Any, bucket: Any, tokens: int) -> None:
        """The ETA of a task has come that has a rate limit. The event loop's timer."""
        if not self._is_forgotten(request):
            self._limit_post_eta(request, bucket, tokens)

    def _is_first(self, request: Any) -> bool:
        """Whether it waits still; from now on it does not. Its time may come in another thread just now."""
        if self._waiting.pop(request, self) is self:
            return False
        self._forgotten.add(request)
        return True

    def _is_forgotten(self, request: Any) -> bool:
        if self._waiting.pop(request, self) is not self or request not in self._forgotten:
            return False
        self._forgotten.discard(request)
        state.task_ready(request)
        return True


def _has_one_of(request: Any, deliveries: Collection[Delivery]) -> bool:
    delivery = getattr(request, "delivery", None)
    return delivery is not None and delivery.current in deliveries

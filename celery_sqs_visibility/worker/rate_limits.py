"""Tasks that Celery holds until their rate limit or ETA allows them to run.

Celery holds tasks beyond their `rate_limit` in a token bucket of the worker, and tasks with an ETA in its
timer (celery/worker/strategy.py: `default`; celery/worker/consumer/consumer.py: `_limit_task`,
`_limit_post_eta`, `_schedule_bucket_request`, `_limit_move_to_pool`, `apply_eta_task`). Here they are counted
while they wait: without a slot, and where the wait for a rate is long, in SQS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, WeakSet

from celery.worker import state

from celery_sqs_visibility.contacts.worker import replace_apply_eta_task, replace_rate_limits
from celery_sqs_visibility.core.delivery import Wait
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.policy.eta import park_seconds
from celery_sqs_visibility.worker.batches import BatchedRequest
from celery_sqs_visibility.worker.request import DeliveryRequest

if TYPE_CHECKING:
    from celery_sqs_visibility.core.delivery import Delivery
    from celery_sqs_visibility.worker.worker_context import WorkerContext

#: Tasks that wait in a worker's memory for their rate, without a slot. With more, it receives fewer messages.
MAX_HELD: Final = 1000

#: Tasks of one kind that wait in SQS, as far as this worker knows. SQS hides 120,000 messages of a queue.
MAX_IN_SQS: Final = 10_000


class RateLimits:
    """Stands before Celery's token buckets, and before its timer.

    A task that waits, and whose message is settled meanwhile, is taken out by the settlement.

    Runs on Celery's main thread; without an event loop on its timer's thread, too. Each field is read and
    then written by one of them only, or a moment's error in it does no harm. Made before the consumer's tasks
    have strategies.
    """

    def __init__(self, consumer: Any, worker: WorkerContext) -> None:
        self._consumer = consumer
        #: Requests that wait in memory for their rate, without a slot.
        self._waiting: WeakSet[Any] = WeakSet()
        #: By bucket, the latest monotonic instant at which a message that waits in SQS may start.
        self._last_start: WeakKeyDictionary[Any, float] = WeakKeyDictionary()
        worker.on_eta = self.wait_for_eta
        self._apply_eta_task = replace_apply_eta_task(consumer, self.apply_eta_task)
        self._celerys = replace_rate_limits(consumer, self)

    def wait_for_eta(self, request: Any) -> None:
        """Take no slot for a request that Celery holds until its ETA."""
        if request.eta.timestamp() > SYSTEM_CLOCK.wall() and not isinstance(request, BatchedRequest):
            _rest(request, Wait.START)

    def apply_eta_task(self, request: Any) -> None:
        """Take a slot for a task whose ETA has come. The event loop's timer."""
        _resume(request)
        self._apply_eta_task(request)

    def limit_task(self, request: Any, bucket: Any, tokens: int) -> Any:
        """Let a task that has arrived wait behind the tasks that wait in SQS."""
        now = SYSTEM_CLOCK.monotonic()
        start = max(_start_of(bucket, now), self._last_start.get(bucket, 0.0) + 1 / bucket.fill_rate)
        if self._put_off(request, bucket, start, now):
            return None
        self._wait_without_slot(request, _start_of(bucket, now) - now)
        return self._celerys.limit_task(request, bucket, tokens)

    def limit_post_eta(self, request: Any, bucket: Any, tokens: int) -> Any:
        """Limit a task whose ETA has come, which may be that of a copy. The event loop's timer."""
        _resume(request)
        now = SYSTEM_CLOCK.monotonic()
        delivery = _delivery_of(request)
        settled = delivery is not None and not delivery.held
        if settled or self._put_off(request, bucket, _start_of(bucket, now), now):
            self._consumer.qos.decrement_eventually()
            state.task_ready(request)  # Celery has it among its scheduled requests
            return None
        self._wait_without_slot(request, _start_of(bucket, now) - now)
        return self._celerys.limit_post_eta(request, bucket, tokens)

    def move_to_pool(self, request: Any) -> None:
        """Take a slot for a task that its bucket lets run."""
        self._waiting.discard(request)
        _resume(request)
        self._celerys.move_to_pool(request)

    def _wait_without_slot(self, request: Any, wait: float) -> None:
        """Make a request wait in the bucket, without a slot until it may start.

        The worker receives another message in its place. It does not for a task that starts far in the future
        and cannot wait in SQS (in a FIFO queue, or without the permission to send): one worker would receive
        a whole queue of them.
        """
        if wait <= 0:
            return
        timeout = getattr(request, "visibility_timeout", None)
        is_far = timeout is not None and park_seconds(wait, timeout) is not None
        makes_room = not is_far and len(self._waiting) < MAX_HELD
        if makes_room:
            self._waiting.add(request)
        _rest(request, Wait.START if makes_room else Wait.FAR_START)

    def _put_off(self, request: Any, bucket: Any, start: float, now: float) -> bool:
        """Make a request wait in SQS if it starts far in the future. Returns whether it does."""
        wait = start - now
        if not isinstance(request, DeliveryRequest) or request.visibility_timeout is None:
            return False
        if park_seconds(wait, request.visibility_timeout) is None or wait * bucket.fill_rate > MAX_IN_SQS:
            return False
        if not request.put_off(SYSTEM_CLOCK.wall() + wait):
            return False
        self._last_start[bucket] = max(start, self._last_start.get(bucket, 0.0))
        return True


def _start_of(bucket: Any, now: float) -> float:
    """The monotonic instant at which a task that is added to the bucket now may run."""
    wait: float = bucket.expected_time(1) + len(bucket.contents) / bucket.fill_rate
    return now + wait


def _delivery_of(request: Any) -> Delivery | None:
    """`None` of a message that is not from SQS."""
    delivery: Delivery | None = getattr(request, "delivery", None)
    return delivery


def _rest(request: Any, wait: Wait) -> None:
    """Let it take no slot from now on."""
    if (delivery := _delivery_of(request)) is not None and delivery.consumer is not None:
        delivery.consumer.rest(delivery, wait)


def _resume(request: Any) -> None:
    """Let it take a slot again, if it waited."""
    if (delivery := _delivery_of(request)) is not None and delivery.consumer is not None:
        delivery.consumer.resume(delivery)

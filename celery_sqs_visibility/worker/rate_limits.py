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

from celery_sqs_visibility.contacts.worker import apply_etas_by, limit_by
from celery_sqs_visibility.core.delivery import Wait
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.policy.eta import park_seconds
from celery_sqs_visibility.worker.batches import BatchedRequest
from celery_sqs_visibility.worker.request import DeliveryRequest

if TYPE_CHECKING:
    from celery_sqs_visibility.core.delivery import Delivery
    from celery_sqs_visibility.worker.worker_context import WorkerContext

#: Tasks that wait in a worker's memory for their rate, without a slot. With more, it asks for fewer messages.
MOST_HELD: Final = 1000

#: Tasks of one kind that wait in SQS, as far as this worker knows. SQS hides 120,000 of a queue, in all.
MOST_AWAY: Final = 10_000


class RateLimits:
    """Stands before Celery's token buckets, and before its timer.

    A task that waits, and whose message is settled meanwhile, is taken out by the settlement.

    Runs on Celery's main thread; without an event loop on its timer's thread, too. Each field is read and
    then written by one of them only, or a moment's error in it does no harm.

    Args:
        consumer: the worker's `celery.worker.consumer.Consumer`, whose tasks have no strategies yet.
        worker: tells of requests with an ETA.
    """

    def __init__(self, consumer: Any, worker: WorkerContext) -> None:
        self._consumer = consumer
        #: Requests that wait in memory for their rate, without a slot.
        self._waiting: WeakSet[Any] = WeakSet()
        #: By bucket, the monotonic instant of the last turn that a message in SQS was given.
        self._last_turn: WeakKeyDictionary[Any, float] = WeakKeyDictionary()
        worker.on_eta = self.wait_for_eta
        self._apply_eta_task = apply_etas_by(consumer, self.apply_eta_task)
        self._celerys = limit_by(consumer, self)

    def wait_for_eta(self, request: Any) -> None:
        """A request was made that Celery holds until its ETA, if that is to come."""
        if request.eta.timestamp() > SYSTEM_CLOCK.wall() and not isinstance(request, BatchedRequest):
            _rest(request, Wait.START)

    def apply_eta_task(self, request: Any) -> None:
        """A task's ETA has come. The event loop's timer."""
        _resume(request)
        self._apply_eta_task(request)

    def limit_task(self, request: Any, bucket: Any, tokens: int) -> Any:
        """A task has arrived. Its turn comes after the tasks that wait in SQS."""
        now = SYSTEM_CLOCK.monotonic()
        turn = max(_turn(bucket, now), self._last_turn.get(bucket, 0.0) + 1 / bucket.fill_rate)
        if self._put_off(request, bucket, turn, now):
            return None
        self._wait_without_slot(request, _turn(bucket, now) - now)
        return self._celerys.limit_task(request, bucket, tokens)

    def limit_post_eta(self, request: Any, bucket: Any, tokens: int) -> Any:
        """A task's ETA has come, which may be the turn that it was given. The event loop's timer."""
        _resume(request)
        now = SYSTEM_CLOCK.monotonic()
        if _is_settled(request) or self._put_off(request, bucket, _turn(bucket, now), now):
            self._consumer.qos.decrement_eventually()
            state.task_ready(request)  # Celery has it among its scheduled requests
            return None
        self._wait_without_slot(request, _turn(bucket, now) - now)
        return self._celerys.limit_post_eta(request, bucket, tokens)

    def move_to_pool(self, request: Any) -> None:
        """A task's turn has come."""
        self._waiting.discard(request)
        _resume(request)
        self._celerys.move_to_pool(request)

    def _wait_without_slot(self, request: Any, wait: float) -> None:
        """Make a request wait in the bucket, without a slot before its turn.

        The worker asks for another message in its place, or those that wait here may have its slot. The
        latter for a task whose turn is far away and that cannot wait in SQS (in a FIFO queue, or without the
        permission to send): one worker would take a whole queue of them.
        """
        if wait <= 0:
            return
        timeout = getattr(request, "visibility_timeout", None)
        is_far = timeout is not None and park_seconds(wait, timeout) is not None
        makes_room = not is_far and len(self._waiting) < MOST_HELD
        if makes_room:
            self._waiting.add(request)
        _rest(request, Wait.START if makes_room else Wait.FAR_START)

    def _put_off(self, request: Any, bucket: Any, turn: float, now: float) -> bool:
        """Make a request wait in SQS if its turn is far away; whether it does."""
        wait = turn - now
        if not isinstance(request, DeliveryRequest) or request.visibility_timeout is None:
            return False
        if park_seconds(wait, request.visibility_timeout) is None or wait * bucket.fill_rate > MOST_AWAY:
            return False
        if not request.put_off(SYSTEM_CLOCK.wall() + wait):
            return False
        self._last_turn[bucket] = max(turn, self._last_turn.get(bucket, 0.0))
        return True


def _turn(bucket: Any, now: float) -> float:
    """The monotonic instant at which a task may run that is added to the bucket now."""
    wait: float = bucket.expected_time(1) + len(bucket.contents) / bucket.fill_rate
    return now + wait


def _delivery_of(request: Any) -> Delivery | None:
    """`None` of a message that is not from SQS."""
    delivery: Delivery | None = getattr(request, "delivery", None)
    return delivery


def _rest(request: Any, wait: Wait) -> None:
    """It takes no slot from now on."""
    if (delivery := _delivery_of(request)) is not None and delivery.consumer is not None:
        delivery.consumer.rest(delivery, wait)


def _resume(request: Any) -> None:
    """It takes a slot from now on, if it waited."""
    if (delivery := _delivery_of(request)) is not None and delivery.consumer is not None:
        delivery.consumer.resume(delivery)


def _is_settled(request: Any) -> bool:
    delivery = _delivery_of(request)
    return delivery is not None and not delivery.held

"""Tasks beyond their rate limit wait without a slot and, if the wait is long, in SQS.

Celery holds them in a token bucket of the worker (celery/worker/strategy.py: `default`;
celery/worker/consumer/consumer.py: `_limit_task`, `_limit_post_eta`, `_schedule_bucket_request`,
`_limit_move_to_pool`).
"""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakKeyDictionary

from celery.worker import state

from celery_sqs_visibility.contacts.worker import replace_rate_limits
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.policy.eta import park_seconds
from celery_sqs_visibility.worker.request import DeliveryRequest
from celery_sqs_visibility.worker.waiting_requests import WaitingRequests, delivery_of

#: The limit of tasks of one kind that this worker lets wait in SQS, which hides 120,000 messages of a queue.
MAX_IN_SQS: Final = 10_000


class RateLimits:
    """Stands before Celery's token buckets.

    A waiting task whose message is settled meanwhile is removed by the settlement.

    The threads and the time of creation are those of `WaitingRequests`.
    """

    def __init__(self, consumer: Any, waiting: WaitingRequests) -> None:
        self._consumer = consumer
        self._waiting = waiting
        #: By bucket, the latest monotonic instant at which a message waiting in SQS may start.
        self._last_start: WeakKeyDictionary[Any, float] = WeakKeyDictionary()
        self._celerys = replace_rate_limits(consumer, self)

    def limit_task(self, request: Any, bucket: Any, tokens: int) -> Any:
        """Let a task that has arrived wait behind the tasks that wait in SQS."""
        now = SYSTEM_CLOCK.monotonic()
        start = max(_start_of(bucket, now), self._last_start.get(bucket, 0.0) + 1 / bucket.fill_rate)
        if self._put_off(request, bucket, start, now):
            return None
        self._wait_without_slot(request, _start_of(bucket, now) - now)
        self._limit(request, bucket, tokens)
        return None

    def limit_post_eta(self, request: Any, bucket: Any, tokens: int) -> Any:
        """Limit a task whose ETA has come, perhaps the ETA of a copy. Celery's timer."""
        self._waiting.resume(request)
        now = SYSTEM_CLOCK.monotonic()
        delivery = delivery_of(request)
        settled = delivery is not None and not delivery.held
        self._consumer.qos.decrement_eventually()
        if settled or self._put_off(request, bucket, _start_of(bucket, now), now):
            state.task_ready(request)  # Celery has it among its scheduled requests
            return None
        self._wait_without_slot(request, _start_of(bucket, now) - now)
        self._limit(request, bucket, tokens)
        return None

    def _limit(self, request: Any, bucket: Any, tokens: int) -> None:
        """Let a request run, or wait in the bucket, where only the first request sets a timer.

        Celery sets a timer for each request. Hundreds, several times a second, would delay all other timers.
        """
        if bucket.contents:
            bucket.add((request, tokens))
        else:
            self._celerys.limit_task(request, bucket, tokens)

    def move_to_pool(self, request: Any) -> None:
        """Take a slot for a task that its bucket lets run."""
        self._waiting.resume(request)
        self._celerys.move_to_pool(request)

    def _wait_without_slot(self, request: Any, wait: float) -> None:
        """Make a request wait in the bucket, without a slot until it may start.

        The worker receives another message in its place, unless the task starts far in the future and can't
        wait in SQS (in a FIFO queue, or without the permission to send): one worker would receive a whole
        queue of these.
        """
        if wait > 0:
            timeout = getattr(request, "visibility_timeout", None)
            is_far = timeout is not None and park_seconds(wait, timeout) is not None
            self._waiting.rest(request, makes_room=not is_far)

    def _put_off(self, request: Any, bucket: Any, start: float, now: float) -> bool:
        """Make a request wait in SQS if it starts far in the future. Returns whether it does."""
        wait = start - now
        if not isinstance(request, DeliveryRequest) or request.visibility_timeout is None:
            return False
        if park_seconds(wait, request.visibility_timeout) is None or wait * bucket.fill_rate > MAX_IN_SQS:
            return False
        if not request.put_off(wait):
            return False
        self._last_start[bucket] = max(start, self._last_start.get(bucket, 0.0))
        return True


def _start_of(bucket: Any, now: float) -> float:
    """The monotonic instant at which a task that is added to the bucket now may run."""
    wait: float = bucket.expected_time(1) + len(bucket.contents) / bucket.fill_rate
    return now + wait

"""Tasks that Celery holds until their rate limit or ETA allows them to run.

Celery holds tasks beyond their `rate_limit` in a token bucket of the worker, and counts them against the
prefetch count (celery/worker/consumer/consumer.py: `_limit_task`, `_limit_post_eta`,
`_schedule_bucket_request`, `_limit_move_to_pool`). Here they are counted as tasks that wait for an ETA:
without a slot, and where the wait is long, in SQS.

For each task that waits for its ETA, Celery raises its prefetch count until the ETA comes
(celery/worker/strategy.py: `default`; celery/worker/consumer/consumer.py: `apply_eta_task`). If the message
of such a task is given back in a pause, the task would count as a message that waits without a slot, and the
worker would ask for as many messages too many.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, WeakSet

from celery.worker import state

from celery_sqs_visibility.contacts.worker import apply_etas_by, limit_by
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.policy.eta import park_for
from celery_sqs_visibility.worker.request import DeliveryRequest

if TYPE_CHECKING:
    from celery_sqs_visibility.core.delivery import Delivery
    from celery_sqs_visibility.delivery.receive.turns import Turns
    from celery_sqs_visibility.worker.worker_context import WorkerContext

#: Tasks that wait in a worker's memory beyond its prefetch count. With more, it asks for fewer messages.
MOST_HELD: Final = 1000

#: Tasks of one kind that wait in SQS, as far as this worker knows. SQS hides 120,000 of a queue, in all.
MOST_AWAY: Final = 10_000


class GivenBack:
    """Tasks with an ETA, of which those are forgotten whose messages were given back before.

    Args:
        consumer: the worker's `celery.worker.consumer.Consumer`, whose tasks have no strategies yet.
        worker: tells of requests with an ETA.
    """

    def __init__(self, consumer: Any, worker: WorkerContext) -> None:
        self._consumer = consumer
        self._waiting: WeakKeyDictionary[Any, None] = WeakKeyDictionary()  # requests with an ETA to come
        self._forgotten: WeakSet[Any] = WeakSet()  # of which the prefetch count knows no more
        worker.on_eta = self.wait
        self._apply_eta_task = apply_etas_by(consumer, self.apply_eta_task)

    def wait(self, request: Any) -> None:
        """A request was made that Celery holds until its ETA. Main thread."""
        self._waiting[request] = None

    def forget(self, deliveries: Collection[Delivery]) -> None:
        """These were given back: their tasks are as good as gone. Any thread."""
        for request in [ref() for ref in self._waiting.keyrefs()]:
            if request is not None and _has_one_of(request, deliveries) and self._is_first(request):
                self._consumer.qos.decrement_eventually()

    def apply_eta_task(self, request: Any) -> None:
        """The ETA of a task has come. The event loop's timer."""
        if not self.drops(request):
            self._apply_eta_task(request)

    def drops(self, request: Any) -> bool:
        """Whether a task whose ETA has come is forgotten; then it ends here. The event loop's timer."""
        if self._waiting.pop(request, self) is not self or request not in self._forgotten:
            return False
        self._forgotten.discard(request)
        state.task_ready(request)
        return True

    def _is_first(self, request: Any) -> bool:
        """Whether it waits still; from now on it does not. Its time may come in another thread just now."""
        if self._waiting.pop(request, self) is self:
            return False
        self._forgotten.add(request)
        return True


class RateLimits:
    """Stands before Celery's token buckets.

    Runs on Celery's main thread; without an event loop on its timer's thread, too. Each field is read and
    then written by one of them only, or a moment's error in it does no harm.

    Args:
        consumer: the worker's `celery.worker.consumer.Consumer`.
        turns: where its queues have turns.
        given_back: where messages may be given back before the ETAs of their tasks.
    """

    def __init__(
        self, consumer: Any, turns: Turns | None = None, given_back: GivenBack | None = None
    ) -> None:
        self._consumer = consumer
        self._turns = turns
        self._given_back = given_back
        #: Requests that wait in memory, and the QoS whose prefetch count was raised for each.
        self._waiting: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        #: By bucket, the monotonic instant of the last turn that a message in SQS was given.
        self._last_turn: WeakKeyDictionary[Any, float] = WeakKeyDictionary()
        self._celerys = limit_by(consumer, self)

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
        if self._given_back is not None and self._given_back.drops(request):
            return None
        now = SYSTEM_CLOCK.monotonic()
        if self._put_off(request, bucket, _turn(bucket, now), now):
            self._consumer.qos.decrement_eventually()
            state.task_ready(request)  # Celery has it among its scheduled requests
            return None
        self._wait_without_slot(request, _turn(bucket, now) - now)
        return self._celerys.limit_post_eta(request, bucket, tokens)

    def move_to_pool(self, request: Any) -> None:
        """A task's turn has come."""
        qos = self._waiting.pop(request, None)
        if qos is not None:
            qos.decrement_eventually()
        elif self._turns is not None and getattr(request, "delivery", None) is not None:
            self._turns.resume(request.delivery)
        self._celerys.move_to_pool(request)

    def forget(self, deliveries: Collection[Delivery]) -> None:
        """These were given back: lower Celery's prefetch count by their tasks that wait here. Any thread."""
        if self._given_back is not None:
            self._given_back.forget(deliveries)
        for request in [ref() for ref in self._waiting.keyrefs()]:
            if request is not None and _has_one_of(request, deliveries):
                qos = self._waiting.pop(request, None)
                if qos is not None:
                    qos.decrement_eventually()

    def _wait_without_slot(self, request: Any, wait: float) -> None:
        """Make a request wait in the bucket, without a slot before its turn.

        Either Celery's prefetch count is raised by one, or the messages that wait here may have its slot.
        """
        raised = self._raise_prefetch(request, wait)
        if not raised and self._turns is not None and getattr(request, "delivery", None) is not None:
            self._turns.rest(request.delivery)

    def _raise_prefetch(self, request: Any, wait: float) -> bool:
        """Raise Celery's prefetch count, as Celery does for an ETA; whether it was raised.

        Not for a task whose turn is far away and that cannot wait in SQS (in a FIFO queue, or without the
        permission to send): one worker would take a whole queue of them.
        """
        qos, before = self._consumer.qos, self._consumer.qos.value
        timeout = getattr(request, "visibility_timeout", None)
        if timeout is not None and park_for(wait, timeout) is not None:
            return False
        # Without a limit, or at `worker_eta_task_limit`, it does not rise.
        raised = len(self._waiting) < MOST_HELD and qos.increment_eventually() > before
        if raised:
            self._waiting[request] = qos
        return raised

    def _put_off(self, request: Any, bucket: Any, turn: float, now: float) -> bool:
        """Make a request wait in SQS if its turn is far away; whether it does."""
        wait = turn - now
        if not isinstance(request, DeliveryRequest) or request.visibility_timeout is None:
            return False
        if park_for(wait, request.visibility_timeout) is None or wait * bucket.fill_rate > MOST_AWAY:
            return False
        if not request.put_off(SYSTEM_CLOCK.wall() + wait):
            return False
        self._last_turn[bucket] = max(turn, self._last_turn.get(bucket, 0.0))
        return True


def _turn(bucket: Any, now: float) -> float:
    """The monotonic instant at which a task may run that is added to the bucket now."""
    wait: float = bucket.expected_time(1) + len(bucket.contents) / bucket.fill_rate
    return now + wait


def _has_one_of(request: Any, deliveries: Collection[Delivery]) -> bool:
    delivery = getattr(request, "delivery", None)
    return delivery is not None and delivery in deliveries

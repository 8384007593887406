"""The request of a running task, with the attributes that this package adds."""

from __future__ import annotations

from typing import Any, Final, TypedDict, cast

from celery import Task
from celery.app.task import Context
from kombu import Exchange, Queue

from celery_sqs_visibility.contacts.app import add_to_contexts
from celery_sqs_visibility.policy.queue_names import FIFO_SUFFIX

#: The header with which a published retry carries the limit that `self.retry()` was given.
LIMIT_HEADER: Final = "visibility_max_retries"

#: Celery's task that polls for a chord and publishes its body.
CHORD_UNLOCK = "celery.chord_unlock"


class SQSDelivery(TypedDict):
    """`self.request.sqs` of a task that runs for a message from SQS. At run time it is a plain dict.

    Attributes:
        queue: Celery's name of the queue.
        message_id: SQS's, the same for every delivery of the message.
        receive_count: 1 for the first delivery.
        first_receive_time: when SQS first handed the message out, in seconds since the epoch; 0 if unknown.
        max_receive_count: the queue's `maxReceiveCount`; `None` without a redrive policy.
        horizon: when SQS's 12 hours end; monotonic seconds, which the machine's processes share.
    """

    queue: str
    message_id: str
    receive_count: int
    first_receive_time: float
    max_receive_count: int | None
    horizon: float


class DeliveryContext(Context):
    """`self.request` of a `VisibilityTask`; attributes that do not apply are `None`.

    Celery's own class gets them, too: it would send unknown attributes along with retries and chains.
    """

    #: The facts of the delivery; `None` on any other broker.
    sqs: SQSDelivery | None
    visibility_lease: Any
    #: The key of an exclusive task, and the run that has it: see `task.exclusive`.
    visibility_exclusive: Any
    visibility_run: Any
    #: The limit that an earlier run gave to `self.retry()`.
    visibility_max_retries: int | None
    #: The limit that this run gave to `self.retry()`.
    visibility_given_limit: int | None
    #: The exception with which the task fails for good.
    visibility_final: BaseException | None
    #: Whether the awaited successor of this message was published; `None` if none is awaited.
    visibility_successor: bool | None
    #: Whether the run has itself stored RETRY, before it published a successor.
    visibility_retry_stored: bool | None
    #: Whether the run is a try while its brake is on: see `task.retries.RetryDecisions.is_forgiven`.
    visibility_try: bool | None
    #: Whether the task's own code runs, including a call of `self.run()` within it.
    visibility_in_run: bool | None


add_to_contexts(DeliveryContext.__annotations__)


def is_delivery(task: Task[..., Any]) -> bool:
    """Returns whether the task runs for a message from SQS, not for a direct or eager call."""
    return delivered_request(task) is not None


def delivered_request(task: Task[..., Any]) -> DeliveryContext | None:
    """The request of a task that runs for a message from SQS; `None` for a direct or eager call."""
    if task.request_stack is None:  # a task class without an app, as in a unit test
        return None
    request: Any = task.request
    return None if request.sqs is None or request.called_directly or request.is_eager else request


def message_group(request: DeliveryContext) -> dict[str, str]:
    """The option that publishes a message into the group of this one, if it has one."""
    group = (request.properties or {}).get("MessageGroupId")
    return {} if group is None else {"MessageGroupId": group}


def is_from_fifo(request: DeliveryContext) -> bool:
    """Returns whether the queue is FIFO, by its URL: a predefined queue may have any name."""
    url = (request.properties or {}).get("delivery_info", {}).get("sqs_queue", "")
    return bool(url.endswith(FIFO_SUFFIX))


def own_queue(request: DeliveryContext) -> dict[str, Any]:
    """The options that publish a message into the queue of this one only.

    They override the message's exchange, the task's route and `task_queues`. With a `Broadcast`, each of
    these may be a topic, which goes to all workers.
    """
    if request.sqs is None:
        return {}
    name = request.sqs["queue"]
    queue = Queue(name, Exchange("", type="direct"), routing_key=name)
    return {"queue": queue, "exchange": "", "routing_key": name, "declare": []}


def sqs_delivery(request: DeliveryContext) -> SQSDelivery:
    """The delivery of a run. Requires `is_delivery`."""
    return cast("SQSDelivery", request.sqs)

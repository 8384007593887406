"""A user's project under `mypy --strict`. `type: ignore` says which error mypy has to find in a line."""

from __future__ import annotations

import logging
from typing import ParamSpec, TypeVar

from celery import Celery

from celery_sqs_visibility import (
    DeliveryEvent,
    DeliveryFacts,
    ExponentialBackoff,
    Hidden,
    PublishError,
    PublishFailure,
    SQSDelivery,
    TaskSettings,
    TransportOptions,
    VisibilityTask,
    message_lost,
    publish_batch,
    subscribe,
)

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger(__name__)
app = Celery("shop", task_cls=VisibilityTask, set_as_current=False)


options: TransportOptions = {
    "visibility_timeout": 60,
    "error_visibility_timeout": [10, 60],
    "client-config": {"tcp_keepalive": True},
    "queues": {"mail": {"max_running": 2}},
}
app.conf.broker_transport_options = options


def mistaken_options() -> list[TransportOptions]:
    return [
        {"visibility_timeut": 30},  # type: ignore[typeddict-unknown-key]
        {"visibility_timeout": "soon"},  # type: ignore[typeddict-item]
        {"queues": {"mail": {"weihgt": 2}}},  # type: ignore[typeddict-unknown-key]
    ]


def mistaken_task() -> None:
    @app.task(**TaskSettings(error_visibility_timout=30))  # type: ignore[typeddict-unknown-key]
    def task() -> None: ...


class ShopTask(VisibilityTask[P, R]):
    """A base of the project's own."""

    abstract = True
    error_visibility_timeout = [10, 60, 300]
    inactivity_timeout = 60
    when_lost = "terminate"


class Mistaken(VisibilityTask[P, R]):
    abstract = True
    when_lost = "stop"  # type: ignore[assignment]


class Reindex(VisibilityTask[[str], int]):
    name = "shop.reindex"
    max_retries = None

    def error_visibility_timeout(self, retries: int, exc: Exception) -> float:
        return 2.0**retries

    def run(self, bucket: str) -> int:
        return len(bucket)


reindex = app.register_task(Reindex())


@app.task
def ping() -> None: ...


@app.task(base=VisibilityTask[[str], int], error_visibility_timeout=ExponentialBackoff(base=2, maximum=600))
def count(bucket: str) -> int:
    return len(bucket)


@app.task(base=ShopTask, bind=True, max_retries=5, **TaskSettings(error_visibility_timeout=30))
def import_object(self: VisibilityTask[..., int], bucket: str, key: int) -> int:
    remember(self.request.sqs)
    if self.visibility.stopping or self.visibility.lost:
        self.visibility.release()
    if self.visibility.remaining() < 60:
        self.visibility.extend(600)
    for number in self.visibility.track(range(key)):
        if self.visibility.near_horizon:
            self.visibility.continue_later(key=key - number)
    if not key:
        raise self.retry(countdown=30)
    return key


def queue_of(task: VisibilityTask[..., int]) -> str:
    return task.request.sqs["queue"]  # type: ignore[index]  # None, off SQS


def remember(sqs: SQSDelivery | None) -> tuple[str, str, int, float, int | None] | None:
    if sqs is None:
        return None
    sqs["receive_cuont"]  # type: ignore[typeddict-item]
    receives = sqs["receive_count"], sqs["first_receive_time"], sqs["max_receive_count"]
    return sqs["queue"], sqs["message_id"], *receives


def publish(bucket: str) -> list[str]:
    ping.delay()
    reindex.delay_on_commit(bucket)
    reindex.delay_on_commit(1)  # type: ignore[arg-type]
    reindex.delay(bucket, 1)  # type: ignore[call-arg]
    length: int = count.delay(bucket).get()
    count.delay(length)  # type: ignore[arg-type]
    count(length)  # type: ignore[arg-type]
    publish_batch(count)  # type: ignore[arg-type]
    try:
        with publish_batch(app) as batch, batch.joined():
            import_object.delay(bucket, 1)
    except PublishError as error:
        return [describe(failure) for failure in error.failures] + [
            str(reason) for _, reason in error.failures
        ]
    return []


def describe(failure: PublishFailure) -> str:
    text: str = failure.reason
    error: Exception = failure.error
    str(failure.cause)  # type: ignore[attr-defined]
    return f"{failure.task_id or 'no task'}: {text} ({error!r})"


@message_lost.connect
def on_lost(sender: str, delivery: DeliveryFacts, reason: str, **_: object) -> None:
    logger.warning("%s[%s] may run twice: %s", sender, delivery.task_id, reason)


def on_event(event: DeliveryEvent) -> None:
    logger.info("%s", event.delivery.queue)


def on_hidden(event: Hidden) -> None:
    logger.info("%s", event.seconds)


def listen() -> None:
    unsubscribe = subscribe(on_event)
    unsubscribe()
    on_lost(1, "delivery", "lapsed")  # type: ignore[arg-type]
    subscribe(on_hidden, Hidden)
    subscribe(on_hidden)  # type: ignore[arg-type]

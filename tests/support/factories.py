"""Builders of what unit tests need, named for what they make."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from billiard.einfo import ExceptionInfo
from kombu.message import Message
from kombu.utils.json import dumps

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.model import Delivery, Hide
from celery_sqs_visibility.events import Facts
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.task.base import VisibilityTask
from celery_sqs_visibility.worker.request import DeliveryRequest
from celery_sqs_visibility.worker.visibility_request import VisibilityRequest
from celery_sqs_visibility.worker.worker_context import WorkerContext

# A worker's requests, without a worker

AFTER_AN_ERROR = Hide(77)


class FakeHolder:
    """Notes how its deliveries are settled, and settles each once."""

    def __init__(self, *, max_receive_count: int | None = None, given_up: bool = False, **options) -> None:
        policy = None if max_receive_count is None else SimpleNamespace(max_receive_count=max_receive_count)
        self.options = Options.parse(options)
        self.redrive = SimpleNamespace(peek=lambda _queue: policy)
        self.rejection = SimpleNamespace(
            after_an_error=lambda _delivery: AFTER_AN_ERROR,
            gave_up=lambda _delivery: given_up,
            give_up=lambda delivery, reason, _body, _on_exhausted, **attributes: self.settle(
                delivery, (reason, attributes)
            ),
        )
        self.settled: list[Any] = []
        self.calls: list[str] = []
        self.may_run = True

    def settle(self, delivery, settlement):
        self.settled.append(settlement)
        return len(self.settled) == 1

    def start(self, delivery):
        self.calls.append("start")
        delivery.began = 1.0 if self.may_run else None
        return self.may_run

    def dispatch(self, delivery):
        self.calls.append("dispatch")
        return self.may_run

    def ran(self, delivery):
        self.calls.append("ran")


class FakePool:
    """A pool that can end runs, and notes whose."""

    def __init__(self) -> None:
        self.killed: list[Any] = []

    def terminate_job(self, pid, signal):
        self.killed.append(pid)


class ReceivedMessage(Message):
    """A kombu message with a delivery, as a channel's."""

    delivery: Delivery

    def give_up(self, reason, on_exhausted=None, **attributes):
        self.delivery.give_up(reason, lambda: "", on_exhausted, **attributes)


def held_delivery(holder: FakeHolder, **facts) -> Delivery:
    """A delivery that is received just now; `facts` are those of `Facts`."""
    sqs = FakeSQS()
    queue = Queue("q", sqs.create_queue("q", {}, {}), sqs)
    known = {"message_id": "id", "receive_count": 1, "first_received": 0.0, **facts}
    now = SYSTEM_CLOCK.monotonic()
    return Delivery(queue, "handle", Facts("q", **known), now, now + 120, holder)


def request(task, delivery: Delivery, *, processes: bool = True, chord=None, **headers) -> Any:
    """A worker's request for a message of that task."""
    sent = task.app.amqp.as_task_v2("task-id", task.name, chord=chord, ignore_result=bool(task.ignore_result))
    message = ReceivedMessage(
        dumps(sent.body),
        headers={**sent.headers, **headers},
        properties={**sent.properties, "delivery_tag": "tag"},
        content_type="application/json",
        content_encoding="utf-8",
    )
    message.delivery = delivery
    base = VisibilityRequest if isinstance(task, VisibilityTask) else DeliveryRequest
    bound = type(base.__name__, (base,), {"worker": WorkerContext(FakePool(), has_processes=processes)})
    return bound(message, app=task.app, task=task)


def exc_info(exc: BaseException) -> ExceptionInfo:
    """As a run that raised it leaves."""
    try:
        raise exc
    except type(exc):
        return ExceptionInfo()

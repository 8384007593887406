"""Runs of tasks in a Lambda function's process, with the request classes and decisions of a worker."""

from __future__ import annotations

import logging
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from celery import Celery
from celery.app import trace
from celery.concurrency.base import apply_target
from celery.exceptions import TaskRevokedError
from celery.worker import request, strategy
from kombu.serialization import prepare_accept_content
from kombu.transport.virtual import Base64

from celery_sqs_visibility.core.delivery import Delivery
from celery_sqs_visibility.transport.broker_context import BrokerContext
from celery_sqs_visibility.transport.message import Message
from celery_sqs_visibility.worker.bound_tasks import bind_request_class
from celery_sqs_visibility.worker.exclusive_request import open_key_leases
from celery_sqs_visibility.worker.pool_patches import watch_runs
from celery_sqs_visibility.worker.validation import BadMessages
from celery_sqs_visibility.worker.worker_context import WorkerContext

logger = logging.getLogger(__name__)


class Runs:
    """Makes requests and runs them, as Celery's consumer does in a worker.

    Attributes:
        key_leases: of exclusive tasks; `None` if no task is exclusive.
    """

    def __init__(self, app: Celery[Any], context: BrokerContext) -> None:
        self._app = app
        self._context = context
        self._pool = SimpleNamespace(apply_async=_run_here)
        self._trace = partial(cast("Any", trace).trace_task_ret, app=app)
        self._accept = prepare_accept_content(app.conf.accept_content)
        self._worker = worker = WorkerContext(None, has_processes=False)
        worker.when_lost = context.options.when_lost
        watch_runs(self._pool, worker)
        # Not started in Lambda: a lease lasts as long as the invocation, and the run itself releases its key.
        self.key_leases = worker.key_leases = open_key_leases(context, app.tasks.values())
        # A stand-in for the parts of a consumer that check messages before Celery handles them.
        consumer = SimpleNamespace(strategies=app.tasks, create_task_handler=lambda: self._run)
        self._bad_messages = BadMessages(consumer)
        self._run_valid = consumer.create_task_handler()

    def run(self, delivery: Delivery, payload: dict[str, Any]) -> None:
        """Run the task of a message, which settles its delivery.

        Raises:
            SystemExit: of the task, or `WorkerShutdown` or `WorkerTerminate`: the delivery is not settled.
        """
        channel = SimpleNamespace(decode_body=_decode_body, context=self._context)
        message = Message(payload, channel, accept=self._accept, delivery=delivery)
        try:
            if message.errors:
                self._bad_messages.on_decode_error(message, message.errors[0][1])
            else:
                self._run_valid(message)
        except TaskRevokedError:
            pass  # it is settled
        except Exception:
            logger.exception("unexpected error with a message of %r; it comes back", delivery.queue.name)
            delivery.settle(delivery.after_an_error())

    def _run(self, message: Any) -> None:
        """Do what `create_task_handler` and `strategy.default` do in a worker, without ETAs and rates."""
        in_headers = "task" in message.headers
        body = None if in_headers else message.payload
        name = (message.headers if in_headers else body if isinstance(body, dict) else {}).get("task")
        if name is None:
            self._bad_messages.on_unknown_message(body, message)
            return
        if name not in self._app.tasks:
            self._bad_messages.on_unknown_task(body, message, KeyError(name))
            return
        self._request(self._app.tasks[name], message, body).execute_using_pool(self._pool)

    def _request(self, task: Any, message: Any, body: Any) -> Any:
        if body is not None:
            parts = cast("Any", strategy).proto1_to_proto2(message, body)
        elif "args" in message.payload:
            parts = cast("Any", strategy).hybrid_to_proto2(message, message.payload)
        else:
            parts = message.body, message.headers, False, self._app.uses_utc_timezone()
        content, headers, decoded, utc = parts
        bind_request_class(task, self._worker)  # late, because an import may register the task
        make = cast("Any", request).create_request_cls(
            task.Request, task, self._pool, self._context.worker_name, None, trace=self._trace, app=self._app
        )
        return make(
            message,
            app=self._app,
            hostname=self._context.worker_name,
            task=task,
            body=content,
            headers=headers,
            decoded=decoded,
            utc=utc,
        )


def _decode_body(body: Any, encoding: str | None = None) -> Any:
    """Do what `virtual.Channel.decode_body` does."""
    return Base64().decode(body) if encoding == "base64" else body


def _run_here(target: Any, args: Any = (), kwargs: Any = None, **options: Any) -> None:
    """An `apply_async` like that of Celery's solo pool: runs the task before it returns. No time limits."""
    apply_target(target, args, kwargs, options.get("callback"), options.get("accept_callback"))

"""Start of a worker, and of beat: one clear sentence if it is impossible, a wait if that may help.

After an error Celery reconnects at once, a few hundred times a minute, each time with a traceback
(celery/worker/consumer/consumer.py: `Consumer.start`). Its beat connects when the first task is due, and logs
a traceback for each task that it can't publish (celery/beat.py: `Scheduler.apply_entry`).

A worker that starts logs the URL of each queue, and where its dead letters go. Celery's banner only has
Celery's names of the queues (celery/app/amqp.py: `Queues.format`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NoReturn

from celery.exceptions import WorkerShutdown
from celery.platforms import EX_FAILURE
from celery.utils.log import get_logger
from celery.worker.state import maybe_shutdown
from kombu.transport.base import to_rabbitmq_queue_arguments  # type: ignore[attr-defined] # as in kombu's docs

from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.contacts.worker import connecting, replace_add_task_queue
from celery_sqs_visibility.delivery.outage import Outage
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    ClockSkewError,
    CredentialsRefusedError,
    OptionError,
    OverLimitError,
    QueueDoesNotExistError,
    RequestRefusedError,
    SQSError,
    SQSVisibilityError,
    StoreError,
    StoreUnavailableError,
    ThrottledError,
    TLSError,
    UnavailableError,
    UnrecognizedResponseError,
    UnroutableError,
)
from celery_sqs_visibility.events import log_safely
from celery_sqs_visibility.policy.backoff import pause
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, sleep
from celery_sqs_visibility.policy.options import Options, beyond_horizon
from celery_sqs_visibility.stores.port import ExclusiveStore
from celery_sqs_visibility.transport.broker_context import BrokerContext
from celery_sqs_visibility.transport.routing import refuse_type, use_here
from celery_sqs_visibility.transport.temporary_queues import is_of_a_broadcast, temporary
from celery_sqs_visibility.transport.transport import Transport

logger = get_logger(__name__)

#: Errors that pass without a change of settings or permissions, except TLS errors.
PASSING: Final = (UnavailableError, ThrottledError, OverLimitError, ClockSkewError)

#: What to do about an error that ends the process, unless its own message says so.
REMEDIES: Final[tuple[tuple[type[SQSError], str], ...]] = (
    (AccessDeniedError, "Grant the permission to the credentials that the worker uses."),
    (QueueDoesNotExistError, "Create the queue, or correct its name or URL."),
    (UnrecognizedResponseError, "Correct the endpoint: it does not answer as SQS does."),
)

#: The one permission that a worker can start without; the lack of another shows later, or ends the worker.
READ_POLICY: Final = "sqs:GetQueueAttributes"


def passes(error: SQSError) -> bool:
    """Returns whether the error may pass by itself."""
    return isinstance(error, PASSING) and not isinstance(error, TLSError)


def reason_and_remedy(error: SQSError) -> str:
    """The error's message, and what to do about it."""
    remedy = next((text for cls, text in REMEDIES if isinstance(error, cls)), "")
    if passes(error):
        remedy = "With broker_connection_retry_on_startup it would be waited for."
    return f"{str(error).rstrip('.')}. {remedy}".rstrip()


class QueuesFirst:
    """Lets a consumer connect only when its queues exist. Main thread."""

    def __init__(self, consumer: Any) -> None:
        self._app = consumer.app
        self._started = False
        connect = connecting(consumer)
        connect.before.append(self.wait)
        connect.after.append(mark_as_workers)

    def wait(self) -> None:
        """Wait for the queues.

        Raises:
            WorkerShutdown: the worker was told to stop; or a queue is bound to a type of exchange that SQS
                can't have; or, when the worker starts, a queue can't be used.
        """
        with self._app.connection_for_read() as connection:
            context: BrokerContext = connection.transport.context
            queues = list(self._app.amqp.queues.consume_from.values())
            self._refuse_exchanges(queues, supports_fanout=context.options.supports_fanout)
            try:
                for queue in queues:
                    self._await_queue(context, queue)
            except WorkerShutdown:
                context.end_broadcasts()
                raise
        self._started = True

    def _await_queue(self, context: BrokerContext, queue: Any) -> None:
        name = queue.name

        def find_dead_letter_queue() -> None:
            found = context.queues.find(name)
            context.redrive.get(found, SYSTEM_CLOCK.monotonic())
            context.redrive.find_dead_letter_queue(found)

        self._await("queue", name, partial(_find, context, queue))
        self._await("dead-letter queue of", name, find_dead_letter_queue)
        if not self._started:
            report(context.queues.find(name), context.redrive, context.options)
        if exchanges := _fanout_exchanges(queue):
            subscribe = context.fanout.subscribe
            self._await(
                "subscription of queue", name, lambda: subscribe(context.queues.find(name), exchanges)
            )

    @staticmethod
    def _refuse_exchanges(queues: list[Any], *, supports_fanout: bool) -> None:
        for queue in queues:
            for exchange in _exchanges(queue):
                try:
                    refuse_type(exchange.name, exchange.type, supports_fanout=supports_fanout)
                except UnroutableError as error:
                    logger.critical("cannot start, since queue %r cannot be consumed: %s.", queue.name, error)
                    raise WorkerShutdown(1) from error

    def _await(self, kind: str, name: str, find: Callable[[], object]) -> None:
        outage = Outage(logger, f"find the {kind}", name, SYSTEM_CLOCK)
        for failures in itertools.count(1):
            since = SYSTEM_CLOCK.monotonic()
            try:
                find()
            except SQSError as error:
                # A running worker waits for its queues to be repaired; one that never worked should fail
                # visibly.
                retry = self._app.conf.broker_connection_retry_on_startup is not False
                if not (self._started or (retry and passes(error))):
                    why = reason_and_remedy(error)
                    logger.critical("cannot start, since %s %r cannot be used: %s", kind, name, why)
                    raise WorkerShutdown(1) from None
                outage.failure(error)
                _sleep(pause(failures))
            else:
                outage.success(since)
                return


def mark_as_workers(connection: Any) -> None:
    """Mark the transport as that of a worker's consumer."""
    connection.transport.for_worker = True


def _sleep(seconds: float) -> None:
    until = SYSTEM_CLOCK.monotonic() + seconds
    while (left := until - SYSTEM_CLOCK.monotonic()) > 0:
        maybe_shutdown()
        sleep(min(left, 0.2))
    maybe_shutdown()


def _exchanges(queue: Any) -> list[Any]:
    return [queue.exchange, *(binding.exchange for binding in queue.bindings)]


def _fanout_exchanges(queue: Any) -> list[str]:
    kinds = {each.name: each.type for each in _exchanges(queue) if not use_here(each.name)}
    return [name for name, kind in kinds.items() if kind == "fanout"]


def _find(context: BrokerContext, queue: Any) -> None:
    """Make sure that a queue of the settings exists. A `Broadcast` queue is temporary."""
    if is_of_a_broadcast(queue.name) and _fanout_exchanges(queue):
        arguments = to_rabbitmq_queue_arguments(queue.queue_arguments or {}, expires=queue.expires)
        attributes = temporary(queue.name, auto_delete=queue.auto_delete, arguments=arguments)
        if attributes is not None:
            context.temporary_queues.declare(queue.name, attributes)
            context.temporary_queues.for_consumer(queue.name)
            return
    context.queues.ensure(queue.name)


def leave_out_refused_queues(consumer: Any) -> None:
    """Keep a worker running if it can't consume a queue added by `celery control add_consumer`. Main thread.

    Celery answers the command before its event loop adds the queue. An error there would end this worker, and
    every other one that got the command.
    """

    def add(queue: str, *args: Any, **options: Any) -> None:
        queues = consumer.app.amqp.queues
        known = queue in queues
        try:
            add_queue(queue, *args, **options)
        except Exception as error:
            consumer.cancel_task_queue(queue)  # otherwise the worker waits for it when it reconnects
            if not known:
                queues.pop(queue, None)  # otherwise the next command can't define it differently
            unknown = not isinstance(error, SQSVisibilityError)  # whose message says everything
            logger.error(  # noqa: TRY400 - see `unknown`
                "queue %r, which add_consumer names, is not consumed: %s. Send the command again once that "
                "is mended",
                queue,
                repr(error) if unknown else error,
                exc_info=unknown,
            )

    add_queue = replace_add_task_queue(consumer, add)


def warn_of_clamped(given: Mapping[str, Any]) -> None:
    """Log a warning if the transport options have a visibility timeout longer than SQS allows."""
    if beyond := beyond_horizon(given):
        told = ", ".join(f"{option}={value}" for option, value in beyond.items())
        logger.warning(
            "%s is longer than SQS hides a message, and 12 hours are used: a killed worker's message comes "
            "back after these. Set minutes; the heartbeat extends it for as long as a task runs",
            told,
        )


def ask_store(store: ExclusiveStore) -> None:
    """Log a warning if the store of exclusive keys refuses a key.

    In a thread of its own, so that the start does not wait. A store that does not answer is logged by its
    guard.
    """
    try:
        store.probe()
    except StoreUnavailableError:
        pass
    except StoreError as error:
        log_safely(
            logger.warning,
            "exclusive tasks do not run, and their messages come back, while the store of their keys "
            "refuses: %s",
            error,
        )


def report(queue: Queue, redrive: RedriveBook, options: Options) -> None:
    """Log a line about a queue that was found, with its facts in the record's `sqs`. Makes no request."""
    facts = describe(queue, redrive, options)
    name = repr(facts["sqs_name"])
    if queue.name != queue.sqs_name:
        name += f" (Celery's {queue.name!r})"
    log_safely(
        logger.info,
        "queue %s %s at %s (%s): %s; visibility timeout %d s%s",
        name,
        queue.origin,
        queue.url,
        ", ".join(f"{key} {facts[key]}" for key in ("region", "account") if facts[key]),
        _dead_letters(facts, redrive.why_unknown(queue)),
        facts["visibility_timeout"],
        _turns(facts, options),
        extra={"sqs": facts},
    )


def describe(queue: Queue, redrive: RedriveBook, options: Options) -> dict[str, Any]:
    """Describe a queue; `None` means unknown or none. Makes no request."""
    policy = redrive.peek(queue)
    # For a policy's dead-letter queue only the name is used: its URL would take a request.
    plain = redrive.dead_letter_queue(queue) if policy is None else None
    denied = isinstance(redrive.why_unknown(queue), AccessDeniedError)
    own = options.for_queue(queue.name)
    return {
        "queue": queue.name,
        "sqs_name": queue.sqs_name,
        "url": queue.url,
        "region": _region(queue),
        "account": queue.account,
        "origin": queue.origin,
        "dead_letter_queue": policy.name if policy else plain and plain.sqs_name,
        "max_receive_count": policy.max_receive_count if policy else None,
        "visibility_timeout": own.visibility_timeout,
        "weight": own.weight,
        "max_running": own.max_running,
        "not_allowed": [READ_POLICY] if denied else [],
    }


def _turns(facts: dict[str, Any], options: Options) -> str:
    """The queue's share of the worker, if an option sets it."""
    order, most = options.queue_order, facts["max_running"]
    said = {
        "strict": f"place {options.for_queue(facts['queue']).place + 1}",
        "weighted": f"weight {facts['weight']}",
    }
    turns = f"; {order} order, {said[order]}" if order in said else ""
    return turns + (f"; {most} at once at the most" if most else "")


def _region(queue: Queue) -> str | None:
    try:
        return queue.sqs.location().region
    except SQSError:  # the settings have gone bad since the queue was found
        return None


def _dead_letters(facts: dict[str, Any], error: SQSError | None) -> str:
    target, receives = facts["dead_letter_queue"], facts["max_receive_count"]
    if receives is not None:
        return f"dead letters go to {target!r} after {receives} receive{'' if receives == 1 else 's'}"
    policy = "no redrive policy"
    if error is not None:
        reason = f"{READ_POLICY} is not allowed" if facts["not_allowed"] else str(error).rstrip(".")
        policy = f"redrive policy not known, since {reason}"
    if target is not None:
        return f"{policy}; dead letters go to {target!r}, by the option dead_letter_queue"
    return policy if error is not None else f"{policy} and no dead_letter_queue"


def check_beat(app: Any) -> None:
    """Look up the default queue if the app is on our transport. beat's thread.

    Makes one request, which the first publication to that queue then need not make.

    Raises:
        SystemExit: SQS can't be used with these settings. Celery's signals swallow any other exception.
    """
    try:
        with app.connection_for_write() as connection:
            if isinstance(connection.transport, Transport):
                context = connection.transport.context
                queues = context.queues
                find = queues.ensure if context.options.predefined_queues else queues.find
                find(app.conf.task_default_queue)
    except OptionError as error:
        _end(str(error))
    except SQSError as error:
        if _is_about_settings(error):
            _end(reason_and_remedy(error))


def _is_about_settings(error: SQSError) -> bool:
    """Returns whether nothing can be published. A refusal by SQS itself concerns only one queue."""
    if isinstance(error, (CredentialsRefusedError, TLSError)):
        return not passes(error)
    return isinstance(error, RequestRefusedError) and not hasattr(error.__cause__, "response")


def _end(reason: str) -> NoReturn:
    logger.critical("beat cannot start: %s", reason)
    raise SystemExit(EX_FAILURE) from None

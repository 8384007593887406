"""Gathers the doctor's facts: the app's settings and tasks, its queues at SQS, this machine.

Permissions are probed with requests that SQS can't carry out, according to its API reference: an invalid
receipt handle, a batch without entries, a receive of more than ten messages. A refusal for lack of permission
is proof, and so is an answer about an entry. A refusal of the whole request proves nothing: Amazon does not
document whether SQS first checks the permission or the request.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from itertools import islice, takewhile
from typing import Any, Final

from celery import Celery, Task
from celery.exceptions import QueueNotFound

from celery_sqs_visibility.aws.client_settings import ClientSettings
from celery_sqs_visibility.aws.diagnostics import clock_offset, may_generate_data_key
from celery_sqs_visibility.aws.port import BatchResult, ReceiveOptions
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    OptionError,
    QueueDoesNotExistError,
    ReceiptHandleInvalidError,
    SQSError,
    StoreError,
)
from celery_sqs_visibility.operate.app_queues import (
    FoundQueue,
    dead_letter_queue,
    for_each,
    inspect_queue,
    named_queues,
    queue_names,
)
from celery_sqs_visibility.operate.aws_commands import create_table
from celery_sqs_visibility.operate.doctor.facts import Facts, Machine, ProbeResult, QueueFacts, TaskFacts
from celery_sqs_visibility.operate.invocation import own_command
from celery_sqs_visibility.operate.permission_table import (
    CHANGE_VISIBILITY,
    DECRYPT,
    DELETE,
    GENERATE_DATA_KEY,
    LIST_QUEUES,
    RECEIVE,
    SEND,
)
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.queue_names import key_in
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES
from celery_sqs_visibility.policy.retries import choose_delay
from celery_sqs_visibility.task.base import VisibilityTask
from celery_sqs_visibility.transport.broker_clients import settings_of_queue
from celery_sqs_visibility.transport.broker_context import BrokerContext
from celery_sqs_visibility.transport.routing import queue_of_task
from celery_sqs_visibility.transport.temporary_queues import is_of_a_broadcast
from celery_sqs_visibility.worker.drain import grace_period

#: Attributes with which a task's author chooses after which exceptions, and how often, it is retried.
OWN_CHOICE: Final = frozenset({"autoretry_for", "dont_autoretry_for", "max_retries"})

#: No receipt handle looks like this.
NO_HANDLE: Final = "no-receipt-handle"


def gather(app: Celery, broker: BrokerContext, chosen: Iterable[str] = ()) -> Facts:
    """Gather facts about the chosen queues, or all, and everything else. The requests change nothing."""
    options = broker.options
    tasks, unbound = tasks_of(app, options)
    names = list(dict.fromkeys(chosen)) or [
        name for name in queue_names(app, options) if not is_of_a_broadcast(name)
    ]
    queues = for_each(names, lambda name: _queue_facts(broker, name))
    return Facts(
        options=options,
        settings=settings_of(app),
        tasks=tasks,
        queues=tuple(queues if chosen else _without_letters(queues, named_queues(app, options))),
        machine=_machine(broker),
        unbound=unbound,
        scheduled=scheduled_tasks(app),
        task_names=frozenset(app.tasks),
        store_problem=(problem := _store_problem(broker)),
        # DynamoDB's code for a table that does not exist.
        store_remedy=_table_to_create(broker) if "ResourceNotFoundException" in problem else "",
        command=own_command(),
        control_permissions=_permissions_of_control(broker) if options.remote_control else {},
    )


def _store_problem(broker: BrokerContext) -> str:
    """Why the store of exclusive keys fails; empty if it works, or there is none."""
    try:
        if (store := broker.coordination_store) is not None:
            store.probe()
    except (OptionError, StoreError) as error:
        return str(error)
    return ""


def _table_to_create(broker: BrokerContext) -> str:
    """The commands that create the table of `coordination_store`."""
    address = broker.options.coordination_store
    if address is None:
        return ""
    region = address.region or next(iter(broker.queues.locations())).region
    return create_table(address.table, region)


def settings_of(app: Celery) -> dict[str, Any]:
    """The settings that the user gave, under Celery's current names."""
    given = app.conf
    return {name: given[name] for name in given if given.value_set_for(name)}


def tasks_of(app: Celery, options: Options) -> tuple[tuple[TaskFacts, ...], dict[str, str]]:
    """The app's own tasks, and Celery's error for each task that it refuses to route."""
    found, unbound = [], {}
    for name, task in sorted(app.tasks.items()):
        if name.startswith("celery."):
            continue
        if reason := _why_unroutable(app, task):
            unbound[name] = reason
        else:
            found.append(_task_facts(app, task, queue_of_task(app, task), options))
    return tuple(found), unbound


def scheduled_tasks(app: Celery) -> dict[str, str | None]:
    """The task of each entry of `beat_schedule`."""
    entries = dict(app.conf.beat_schedule or {}).items()
    return {
        str(name): entry.get("task") if isinstance(entry, Mapping) else getattr(entry, "task", None)
        for name, entry in entries
    }


def _without_letters(queues: Iterable[QueueFacts], named: Collection[str]) -> list[QueueFacts]:
    """The queues, less dead-letter queues that only `predefined_queues` names: no worker consumes these."""
    queues = list(queues)
    letters = [queue.letters for queue in queues if queue.letters is not None]
    return [each for each in queues if each.name in named or not any(map(each.is_same, letters))]


def _why_unroutable(app: Celery, task: Any) -> str | None:
    """Celery's error if the task's queue is not in `task_queues`; `None` otherwise."""
    try:
        app.amqp.router.route({}, task.name, args=(), kwargs={})
    except QueueNotFound as error:
        return str(error)
    except Exception:  # noqa: BLE001 - a user's router may need the arguments
        return None
    return None


def _task_facts(app: Celery, task: Any, queue: str, options: Options) -> TaskFacts:
    comes_back = isinstance(task, VisibilityTask)
    limit = task.retry_limit if comes_back else task.max_retries
    choices = _choices(task)
    is_ours_by_default = comes_back and issubclass(app.Task, VisibilityTask)
    return TaskFacts(
        name=task.name,
        queue=queue,
        comes_back=comes_back,
        chooses="autoretry_for" in choices,
        repeats_by_default=is_ours_by_default and bool(limit) and not choices,
        acks_late=bool(task.acks_late),
        max_retries=limit,
        delays=_delays(task, queue, options, limit) if comes_back else (),
        time_limit=task.time_limit or app.conf.task_time_limit,
        soft_time_limit=task.soft_time_limit or app.conf.task_soft_time_limit,
        priority=getattr(task, "priority", None),
    )


def _choices(task: Any) -> set[str]:
    """The names in `OWN_CHOICE` that the task's author has set."""
    own = takewhile(lambda each: each not in (VisibilityTask, Task), type(task).__mro__)
    return {name for each in own for name in OWN_CHOICE & vars(each).keys()}


def _delays(task: Any, queue: str, options: Options, limit: int | None) -> tuple[float, ...]:
    """The delays after failures, up to 1,000. A user's callable is called with a plain Exception."""
    rules, error = task.rules_in(queue), Exception()
    rest = options.for_queue(queue).visibility_timeout
    waits = (choose_delay(rules, retries, error, explicit=False) for retries in range(limit or 0))
    return tuple(rest if wait is None else wait for wait in islice(waits, 1000))


def _queue_facts(broker: BrokerContext, name: str) -> QueueFacts:
    options = broker.options
    predefined = options.predefined_queue(name)
    known = QueueFacts(
        name=name,
        options=options.for_queue(name),
        may_be_created=predefined is None and not options.predefined_queues and not options.queue_owner,
    )
    found = inspect_queue(lambda: broker.queues.find(name))
    known, queue = _as_found(known, found), found.queue
    if queue is None or known.exists is False:
        return known
    permissions = {**permissions_on(queue), **_permissions_on_key(broker, queue, known)}
    return replace(known, permissions=permissions, letters=_letters(broker, queue, known))


def _permissions_on_key(broker: BrokerContext, source: Queue, known: QueueFacts) -> dict[str, ProbeResult]:
    """Permissions for the key of `source` or its dead-letter queue, with the credentials for `source`."""
    settings = settings_of_queue(source.name, broker.client_settings, broker.options)
    return permissions_on_key(known.attributes or {}, settings, source.sqs.location().region)


def _as_found(known: QueueFacts, found: FoundQueue) -> QueueFacts:
    if found.queue is not None:
        known = replace(known, url=found.queue.url, location=found.queue.sqs.location())
    known = replace(known, attributes=found.attributes)
    return known if found.error is None else _not_found(known, found.error)


def _not_found(known: QueueFacts, error: SQSError) -> QueueFacts:
    exists = False if isinstance(error, QueueDoesNotExistError) else None
    denied = isinstance(error, AccessDeniedError)
    return replace(known, exists=exists, denied=denied, problem=str(error))


def _letters(broker: BrokerContext, queue: Queue, known: QueueFacts) -> QueueFacts | None:
    """The dead-letter queue."""
    name = known.redrive.name if known.redrive else known.options.dead_letter_queue
    if name is None:
        return None
    facts = QueueFacts(name=name)
    try:
        letters = dead_letter_queue(broker, queue)
    except SQSError as error:
        return _not_found(facts, error)
    if letters is None:
        return None
    facts = _as_found(facts, inspect_queue(lambda: letters))
    if facts.exists is False:
        return facts
    permissions = {**permissions_on_dead_letters(letters), **_permissions_on_key(broker, queue, facts)}
    return replace(facts, permissions=permissions)


def _machine(broker: BrokerContext) -> Machine:
    grace, reason = grace_period()
    endpoint = next(iter(broker.queues.locations())).endpoint
    return Machine(
        grace=grace,
        grace_reason=reason,
        kubernetes="KUBERNETES_SERVICE_HOST" in os.environ,
        remapped=os.environ.get("REMAP_SIGTERM") == "SIGQUIT",
        clock_offset=clock_offset(endpoint),
    )


def permissions_on(queue: Queue) -> dict[str, ProbeResult]:
    """The permissions of workers and producers on the queue."""
    sqs, url = queue.sqs, queue.url
    # If a server does not refuse this, it hands out messages, which are visible again at once.
    too_many, at_once = BATCH_ENTRIES + 1, ReceiveOptions(visibility_timeout=0)
    return {
        RECEIVE: _probe(lambda: bool(sqs.receive(url, too_many, 0, at_once))),
        DELETE: _probe(lambda: sqs.delete(url, [NO_HANDLE])),
        CHANGE_VISIBILITY: _probe(lambda: sqs.change_visibility(url, [(NO_HANDLE, 0)])),
        **permissions_on_dead_letters(queue),
    }


def permissions_on_dead_letters(queue: Queue) -> dict[str, ProbeResult]:
    """The permission of workers on a dead-letter queue."""
    return {SEND: _probe(lambda: queue.sqs.send_batch(queue.url, []))}


def _permissions_of_control(broker: BrokerContext) -> dict[str, ProbeResult]:
    """The permission to list queues, for remote control. Probing the others would create a queue."""
    sqs, prefix = broker.queues.sqs, broker.options.whole_control_prefix
    return {LIST_QUEUES: _probe(lambda: sqs.list_queues(prefix) is not None)}


def permissions_on_key(
    attributes: Mapping[str, str], settings: ClientSettings, region: str
) -> dict[str, ProbeResult]:
    """The permissions for the KMS key of an encrypted queue, unless the key is SQS's own."""
    if not (key := key_in(attributes)):
        return {}
    allowed = may_generate_data_key(settings, key, region)
    # A refusal may be due to a key policy that allows requests only through SQS.
    return {
        GENERATE_DATA_KEY: ProbeResult.ALLOWED if allowed else ProbeResult.NOT_KNOWN,
        DECRYPT: ProbeResult.NOT_KNOWN,
    }


def _probe(probe: Callable[[], BatchResult | bool]) -> ProbeResult:
    try:
        answer = probe()
    except AccessDeniedError:
        return ProbeResult.DENIED
    except SQSError:
        return ProbeResult.NOT_KNOWN
    if not isinstance(answer, BatchResult):
        return ProbeResult.ALLOWED
    errors = list(answer.failed.values())
    if any(isinstance(error, AccessDeniedError) for error in errors):
        return ProbeResult.DENIED
    looked_at_handle = any(isinstance(error, ReceiptHandleInvalidError) for error in errors)
    return ProbeResult.ALLOWED if looked_at_handle else ProbeResult.NOT_KNOWN

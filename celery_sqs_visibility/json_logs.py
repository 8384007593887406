"""Log records as JSON lines, with the ids of their message and task.

Works in any process and with any broker: fields that do not apply are left out. Any thread; no request.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

from celery import current_task, signals
from celery.app import trace
from celery.utils.log import get_multiprocessing_logger
from kombu.utils.encoding import safe_repr, safe_str

from celery_sqs_visibility.delivery.event_log import Fields, last_request, log_event
from celery_sqs_visibility.events import subscribed

#: The package's logger. At DEBUG it logs what happens to each message.
OURS: Final = "celery_sqs_visibility"

#: The end of log messages whose facts are fields of the line.
FACTS: Final = " (%s)"

#: Logged once in each life of a worker: in a container the next one has the same process id.
WORKER_STARTS: Final = "worker starts"

#: Attributes of every record, and those that are fields under other names. Celery's `data` has the task's
#: arguments, which may be secret.
KNOWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "sqs", "data", "taskName"}

#: This worker's node name, as `node`. A pool's forked processes inherit it.
_node: dict[str, str] = {}


@signals.celeryd_init.connect(dispatch_uid=__name__)
def _keep_node(sender: str, **_: Any) -> None:
    _node["node"] = sender


@signals.celeryd_after_setup.connect(dispatch_uid=__name__)
def _tell_start(**_: Any) -> None:
    logging.getLogger(OURS).info(WORKER_STARTS)


class JSONFormatter(logging.Formatter):
    """Formats a record as one line of JSON. Never raises."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "timestamp": _moment(record).isoformat(timespec="microseconds"),
            "level": record.levelname,
            "logger": record.name,
            "process": record.process,
            **_node,
        }
        for part in (_message, _ids, _extras, self._exception):
            try:
                line |= {name: value for name, value in part(record).items() if name not in line}
            except Exception as error:  # noqa: BLE001 - it becomes a field
                line["log_error"] = safe_repr(error)
        try:
            return json.dumps(line, default=safe_repr, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            return json.dumps({safe_str(name): _plain(value) for name, value in line.items()})

    def _exception(self, record: logging.LogRecord) -> dict[str, Any]:
        if not record.exc_info or record.exc_info[1] is None:
            return {}
        exc = record.exc_info[1]
        text = record.exc_text or self.formatException(record.exc_info)
        return {"exception_type": type(exc).__name__, "exception": safe_repr(exc), "traceback": text}


def _moment(record: logging.LogRecord) -> datetime:
    """The time of the record; the current time if that is invalid."""
    try:
        return datetime.fromtimestamp(record.created, UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        return datetime.now(UTC)


def log_json(*, life_cycle: bool = True) -> None:
    """Write JSON lines in Celery's workers and beat, once Celery sets up its logging. Idempotent.

    Args:
        life_cycle: also write each message's events, four lines or more, in place of Celery's own lines about
            a task's receipt and success.
    """

    def set_up(logger: logging.Logger, **_: Any) -> None:
        for handler in (*logger.handlers, *_handlers_of_processes()):
            handler.setFormatter(JSONFormatter())
            if life_cycle:
                handler.addFilter(_is_told_once)
        if life_cycle:
            logging.getLogger(OURS).setLevel(logging.DEBUG)

    for signal in (signals.after_setup_logger, signals.after_setup_task_logger):
        signal.disconnect(dispatch_uid=__name__)
        signal.connect(set_up, weak=False, dispatch_uid=__name__)


def _handlers_of_processes() -> list[logging.Handler]:
    """The handlers of the pool's processes, which celery/app/log.py sets up separately."""
    logger = get_multiprocessing_logger()
    return logger.handlers if logger is not None else []


def _is_told_once(record: logging.LogRecord) -> bool:
    """Returns whether to keep a record: our own lines replace some of Celery's."""
    sentence = record.msg if isinstance(record.msg, str) else None
    if sentence == trace.LOG_RECEIVED:  # a program may replace this sentence, and the next
        return not subscribed(log_event)
    return sentence != trace.LOG_SUCCESS or _of_running_task().get("message_id") is None


def _message(record: logging.LogRecord) -> dict[str, Any]:
    """The message, without the facts that are fields."""
    args: Any = record.args
    text = record.msg if isinstance(record.msg, str) else safe_str(record.msg)
    try:
        if not text.endswith(FACTS):
            text = record.getMessage()
        elif isinstance(args, Fields):
            text = text.removesuffix(FACTS)
        elif args and isinstance(args, tuple) and isinstance(args[-1], Fields):
            text = text.removesuffix(FACTS) % args[:-1]
        else:
            text = record.getMessage()
    except Exception:  # noqa: BLE001 - arguments that do not fit are shown
        text = f"{text} {safe_repr(args)}"
    return {"message": text}


def _ids(record: logging.LogRecord) -> dict[str, Any]:
    """Facts about a record's message and task. The record's own take precedence."""
    own = getattr(record, "sqs", None)
    facts = dict(own) if isinstance(own, Mapping) else {}
    if not facts.get("task_id") and not facts.get("message_id"):
        running = _of_running_task()
        named = [*_names(record)]
        other = {} if running.get("task_id") in named else _of_request(record, named)
        facts = {**(other or running), **facts}
    return {name: value for name, value in facts.items() if value is not None}


def _of_running_task() -> dict[str, Any]:
    """Facts about the task that runs in this thread or greenlet."""
    task: Any = current_task
    request = task.request if task else None
    if request is None or request.id is None:
        return {}
    sqs = getattr(request, "sqs", None) or {}
    told = {name: sqs.get(name) for name in ("queue", "message_id", "receive_count")}
    return {
        "task": request.shadow or task.name,
        "task_id": request.id,
        "attempt": request.retries + 1,
        "node": request.hostname,  # also in a spawned process of the pool
        **told,
    }


def _of_request(record: logging.LogRecord, named: list[str]) -> dict[str, Any]:
    """Facts about the request that a line of Celery's names, in a worker's main process.

    Celery logs that a request was received or discarded before `celery.worker.state` has it.
    """
    requests = getattr(sys.modules.get("celery.worker.state"), "requests", {})
    for request in (*map(requests.get, named), *(refer() for refer in tuple(last_request))):
        if request is not None and request.id in named:
            delivery = getattr(request, "delivery", None)
            told = {"task": request.name, "task_id": request.id}
            return told if delivery is None else {**told, **asdict(delivery.facts)}
    data = getattr(record, "data", None)
    if isinstance(data, Mapping):
        return {"task": data.get("name"), "task_id": data.get("id")}
    return {}


def _names(record: logging.LogRecord) -> Iterator[str]:
    values = record.args.values() if isinstance(record.args, Mapping) else record.args or ()
    yield from (value for value in values if isinstance(value, str))


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    """The `extra` of a program's own log calls."""
    return {name: value for name, value in vars(record).items() if name not in KNOWN}


def _plain(value: Any) -> Any:
    """The value if JSON can express it, otherwise its text."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return safe_repr(value)
    return value

"""Celery's settings that have no effect on SQS, or an unwelcome one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple


def _set(_value: Any) -> bool:
    return True


def _true(value: Any) -> bool:
    return bool(value)


def _false(value: Any) -> bool:
    return value is False


def _zero(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value == 0


def _positive(value: Any) -> bool:
    return isinstance(value, int) and value > 0


def _rpc(value: Any) -> bool:
    return str(value).startswith("rpc")


def _quorum(value: Any) -> bool:
    return bool(value == "quorum")


class SettingRule(NamedTuple):
    """What becomes of a setting.

    Attributes:
        applies: whether the value that the user gave is meant.
        harms: it does something that is not wanted, or promises what is not kept; else it only does nothing.
        follows: what it does here, as a sentence.
        remedy: what to write in its place.
    """

    name: str
    applies: Callable[[Any], bool]
    harms: bool
    follows: str
    remedy: str


_REMOVE: Final = "remove it"

SETTING_RULES: Final = (
    SettingRule(
        "result_backend",
        _rpc,
        True,
        "It makes a queue for each thread that publishes, which stays if its client is killed.",
        "take another result backend, such as Redis or a database",
    ),
    SettingRule(
        "worker_prefetch_multiplier",
        _zero,
        True,
        "A worker takes as many messages as there are, and holds those that other workers could run.",
        "worker_prefetch_multiplier = 4, Celery's default: here it is the most that is held, not what is",
    ),
    SettingRule(
        "task_queue_max_priority",
        _set,
        True,
        "SQS has no priorities: an urgent message waits behind all others.",
        "a queue for each priority, and the option queue_order='strict'",
    ),
    SettingRule(
        "task_default_priority",
        _positive,
        True,
        "SQS has no priorities: an urgent message waits behind all others.",
        "a queue for each priority, and the option queue_order='strict'",
    ),
    SettingRule(
        "task_inherit_parent_priority", _true, False, "SQS has no priorities, so it does nothing.", _REMOVE
    ),
    SettingRule(
        "task_acks_on_failure_or_timeout",
        _false,
        False,
        "It does nothing on a VisibilityTask, whose failed message comes back in any case.",
        _REMOVE,
    ),
    SettingRule(
        "task_reject_on_worker_lost",
        _true,
        False,
        "It does nothing on a VisibilityTask: a lost process is a failure, and counts as an attempt.",
        _REMOVE,
    ),
    SettingRule(
        "task_default_queue_type", _quorum, False, "SQS has no quorum queues, so it does nothing.", _REMOVE
    ),
    SettingRule(
        "task_default_delivery_mode", _set, False, "SQS keeps every message, so it does nothing.", _REMOVE
    ),
    SettingRule(
        "worker_disable_prefetch", _true, False, "It is for Redis, and does nothing.", "prefetch_seconds=0"
    ),
    SettingRule(
        "broker_heartbeat", _set, False, "There is no connection to keep alive, so it does nothing.", _REMOVE
    ),
    SettingRule(
        "broker_heartbeat_checkrate",
        _set,
        False,
        "There is no connection to keep alive, so it does nothing.",
        _REMOVE,
    ),
    SettingRule("broker_failover_strategy", _set, False, "SQS is one endpoint, so it does nothing.", _REMOVE),
    SettingRule(
        "broker_use_ssl",
        _true,
        False,
        "Requests to Amazon use TLS in any case, and it does nothing.",
        "the option is_secure, for an endpoint that broker_url names",
    ),
    SettingRule("broker_login_method", _set, False, "It is of AMQP, and does nothing.", _REMOVE),
)


def rules_that_apply(settings: Mapping[str, Any]) -> list[SettingRule]:
    """The rules that the settings, without Celery's defaults, call for."""
    return [
        rule
        for rule in SETTING_RULES
        if settings.get(rule.name) is not None and rule.applies(settings[rule.name])
    ]

"""Celery's settings that do nothing on SQS."""

from __future__ import annotations

from pathlib import Path

import pytest
from celery.app.defaults import NAMESPACES, flatten

from celery_sqs_visibility.operate.doctor.setting_checks import SETTING_RULES, rules_that_apply

PAGE = (Path(__file__).resolve().parents[4] / "docs/celery-settings.md").read_text()


@pytest.mark.parametrize("rule", SETTING_RULES, ids=lambda rule: rule.name)
def test_who_looks_for_a_setting_finds_it(rule):
    assert f"`{rule.name}" in PAGE
    assert rule.follows.endswith(".")
    # `worker_disable_prefetch` is new in Celery 5.6.
    assert rule.name in dict(flatten(NAMESPACES)) or rule.name == "worker_disable_prefetch"


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"result_backend": "rpc://"}, ["result_backend"]),
        ({"result_backend": "redis://host"}, []),
        ({"worker_prefetch_multiplier": 0}, ["worker_prefetch_multiplier"]),
        ({"worker_prefetch_multiplier": 1, "task_reject_on_worker_lost": False}, []),
        ({"task_acks_on_failure_or_timeout": False}, ["task_acks_on_failure_or_timeout"]),
        ({"task_acks_on_failure_or_timeout": True, "task_default_queue_type": "classic"}, []),
        ({"task_default_queue_type": "quorum", "task_default_priority": 3}, None),
        ({"broker_heartbeat": None, "task_default_priority": 0}, []),
    ],
)
def test_rules_apply_to_values(settings, names):
    found = {rule.name for rule in rules_that_apply(settings)}
    assert found == set(settings if names is None else names)

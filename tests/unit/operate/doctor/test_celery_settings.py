"""Celery's settings that do nothing on SQS."""

from __future__ import annotations

from pathlib import Path

import pytest
from celery.app.defaults import NAMESPACES, flatten

from celery_sqs_visibility.operate.doctor.facts import Facts, TaskFacts
from celery_sqs_visibility.operate.doctor.kombu_changes import facts_of_switch, findings_of_switch
from celery_sqs_visibility.operate.doctor.setting_checks import (
    SETTING_RULES,
    check_settings,
    rules_that_apply,
)

PAGE = (Path(__file__).resolve().parents[4] / "docs/coming-from-redis-and-rabbitmq.md").read_text()


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


OF_STOCK_TASKS = {"task_reject_on_worker_lost": True, "task_acks_on_failure_or_timeout": False}


def advice(*tasks):
    facts = Facts(settings=OF_STOCK_TASKS, tasks=tasks)
    return {(f.thing.removeprefix("setting "), f.remedy) for f in check_settings(facts)}


def test_a_setting_that_stock_tasks_need_is_removed_only_where_there_are_none():
    ours = TaskFacts(name="ours", queue="q")
    stock = TaskFacts(name="stock", queue="q", comes_back=False)
    keep = "leave it until all tasks are VisibilityTasks and no worker of kombu's transport is left"
    assert advice(ours) == {(name, "remove it") for name in OF_STOCK_TASKS}
    assert advice(ours, stock) == advice(stock) == {(name, keep) for name in OF_STOCK_TASKS}
    assert advice() == set()
    facts = Facts(settings=OF_STOCK_TASKS, tasks=(stock,))
    told = next(finding for finding in check_settings(facts) if "reject" in finding.thing)
    assert told.problem == "it is True, and no VisibilityTask is task 'stock'"
    switch = findings_of_switch(facts_of_switch(facts), {}, {})
    assert {f.remedy for f in switch if f.thing.removeprefix("setting ") in OF_STOCK_TASKS} == {keep}

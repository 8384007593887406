"""Tasks on a real server, with the fixtures of celery_sqs_visibility's plug-in for pytest."""

from __future__ import annotations

from celery_sqs_visibility.testing.account import Accounts
from celery_sqs_visibility.testing.server import Workers
from proj.celery import app
from proj.tasks import build_report


def test_a_report_is_built(sqs_worker: Workers, sqs_account: Accounts) -> None:
    sqs_worker(app)  # in a thread of this process; its queues are made, with redrive policies
    result = build_report.delay(2, 0.1)
    assert sqs_account.of(result).runs == 1


def test_another_worker_builds_it_after_a_deploy(sqs_worker: Workers, sqs_account: Accounts) -> None:
    old = sqs_worker.process("proj", app=app)  # celery -A proj worker
    result = build_report.delay(20, 0.1)
    sqs_account.wait(result, lambda account: account.runs == 1)
    old.stop()  # by SIGTERM: what runs may end
    assert sqs_account.of(result).runs == 1

"""Retries by visibility, and a lost machine: real workers, a real SQS endpoint."""

from __future__ import annotations

from pytest_celery import RESULT_TIMEOUT, CeleryTestSetup

from orders.tasks import charge, pack


def test_an_order_is_charged_when_the_bank_is_back(celery_setup: CeleryTestSetup) -> None:
    assert celery_setup.ready(ping=True)
    assert charge.delay("o1").get(timeout=RESULT_TIMEOUT) == "o1 at attempt 3"


def test_an_order_is_packed_though_its_machine_is_lost(celery_setup: CeleryTestSetup) -> None:
    assert celery_setup.ready(ping=True)
    result = pack.delay("o1")
    celery_setup.worker.wait_for_log("packing o1 in run 1")
    celery_setup.worker.kill()
    celery_setup.worker.restart()
    assert result.get(timeout=RESULT_TIMEOUT) == "o1 in run 2"

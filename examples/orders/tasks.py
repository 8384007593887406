"""Tasks that pytest-celery copies to its workers. Counters live in the result backend."""

from __future__ import annotations

import time
from typing import Any

from celery import shared_task
from celery.utils.log import get_task_logger

from celery_sqs_visibility import VisibilityTask

logger = get_task_logger(__name__)

BANK_IS_DOWN_AT_FIRST = 2


@shared_task(base=VisibilityTask, bind=True, error_visibility_timeout=1, max_retries=5)
def charge(self: Any, order: str) -> str:
    """Charge an order; the bank is down at the first two attempts."""
    attempt = self.backend.client.incr(f"charged-{order}")
    if attempt <= BANK_IS_DOWN_AT_FIRST:
        raise ConnectionError("the bank does not answer")
    return f"{order} at attempt {attempt}"


@shared_task(base=VisibilityTask, bind=True)
def pack(self: Any, order: str) -> str:
    """Pack an order; the first run takes ten minutes."""
    run = self.backend.client.incr(f"packed-{order}")
    logger.info("packing %s in run %s", order, run)
    if run == 1:
        time.sleep(600)
    return f"{order} in run {run}"

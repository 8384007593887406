"""What Amazon bills for requests to SQS."""

from __future__ import annotations

from typing import Final

from celery_sqs_visibility.policy.queue_names import FIFO_SUFFIX

#: Of us-east-1 in 2025, beyond the first million a month (https://aws.amazon.com/sqs/pricing/).
USD_A_MILLION_REQUESTS: Final = 0.40
USD_A_MILLION_FIFO_REQUESTS: Final = 0.50


def usd_of(requests: float, queue: str) -> float:
    """What that many requests to a queue of that name cost."""
    price = USD_A_MILLION_FIFO_REQUESTS if queue.endswith(FIFO_SUFFIX) else USD_A_MILLION_REQUESTS
    return requests * price / 1_000_000

"""How often a message may be tried, and how often it was."""

from __future__ import annotations


def attempts_made(receive_count: int, parks: int, published_retries: int) -> int:
    """How many attempts came before this one: Celery's `request.retries`.

    Every receive is taken for an attempt but those known to have been parks: a worker that was killed
    leaves no other trace. `published_retries` are those of the header, of Celery's own retries.
    """
    return published_retries + max(0, receive_count - 1 - parks)


def is_last_attempt(
    retries: int, max_retries: int | None, receive_count: int, max_receive_count: int | None
) -> bool:
    """Whether a failure now is for good.

    That is at the smaller of `max_retries + 1` attempts and the queue's `maxReceiveCount` receives, after
    which SQS itself moves the message to the dead-letter queue. `None` is no limit.
    """
    if max_retries is not None and retries >= max_retries:
        return True
    return max_receive_count is not None and receive_count >= max_receive_count

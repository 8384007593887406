"""What the workers of the pytest-celery tests run. pytest-celery copies this file to them.

Counters live in the result backend: workers may be containers, which share no files with the test.
"""

import time

from celery import shared_task

from celery_sqs_visibility import VisibilityTask

RETRYING = {"base": VisibilityTask, "bind": True, "error_visibility_timeout": 1, "max_retries": 5}


@shared_task(base=VisibilityTask)
def add(x, y):
    return x + y


@shared_task(base=VisibilityTask)
def total(numbers):
    return sum(numbers)


@shared_task(**RETRYING)
def add_at_third_attempt(self, x, y, key):
    """Fail twice; both failures come back through the queue."""
    attempt = self.backend.client.incr(key)
    if attempt < 3:
        raise ConnectionError(f"attempt {attempt}")
    return x + y


@shared_task(**RETRYING)
def survive(self, key):
    """The first run never ends, unless its worker does; the second says which attempt it is."""
    if self.backend.client.incr(key) == 1:
        time.sleep(600)
    return "survived"


@shared_task(base=VisibilityTask)
def whoami():
    """The name of the worker that runs this."""
    return whoami.request.hostname

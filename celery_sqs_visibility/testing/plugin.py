"""Pytest plug-in: an SQS, an app's queues, workers, accounts of messages, and turned time.

Pytest imports it wherever this package is installed, so it imports nothing else until a fixture is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery_sqs_visibility.testing.account import Accounts
    from celery_sqs_visibility.testing.server import AppQueues, LocalSQS, Workers
    from celery_sqs_visibility.testing.world import TurnedTime


@pytest.fixture(scope="session")
def sqs_server() -> Iterator[LocalSQS]:
    """An SQS server in another process, on 127.0.0.1, which boto3 finds by environment variables."""
    from celery_sqs_visibility.testing.server import LocalSQS  # noqa: PLC0415 - see above

    server = LocalSQS()
    server.start()
    with pytest.MonkeyPatch.context() as environment:
        for name, value in server.environment.items():
            environment.setenv(name, value)
        yield server
    server.stop()


@pytest.fixture
def sqs_queues(sqs_server: LocalSQS) -> Iterator[AppQueues]:  # noqa: ARG001 - it listens
    """Queues with redrive policies from an app's settings: `sqs_queues.create(app)`."""
    from celery_sqs_visibility.testing.server import AppQueues  # noqa: PLC0415 - see above

    queues = AppQueues()
    yield queues
    queues.delete()


@pytest.fixture
def sqs_worker(sqs_queues: AppQueues, tmp_path: Path) -> Iterator[Workers]:
    """Workers: `sqs_worker(app)` in this process, `sqs_worker.process("proj", app=app)` beside it."""
    from celery_sqs_visibility.testing.server import Workers  # noqa: PLC0415 - see above

    workers = Workers(sqs_queues, tmp_path)
    yield workers
    workers.stop()


@pytest.fixture
def sqs_account(sqs_worker: Workers) -> Iterator[Accounts]:
    """Accounts of messages: `sqs_account.of(result)` waits for the message's end."""
    from celery_sqs_visibility.testing.account import Accounts  # noqa: PLC0415 - see above

    accounts = Accounts(sqs_worker.read)
    accounts.start()
    yield accounts
    accounts.stop()


@pytest.fixture
def sqs_time() -> Iterator[TurnedTime]:
    """Turned time, in memory and without a server: `sqs_time.run(task.s())`."""
    from celery_sqs_visibility.testing.world import TurnedTime  # noqa: PLC0415 - see above

    with TurnedTime() as time:
        yield time

"""Points the tests of another package at this transport, on an emulator: `pytest -p others.point`.

Whatever broker such a test names, its URL is that of the environment, which for Celery takes precedence, and
its transport is ours by kombu's table of aliases.
"""

import os
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from kombu.transport import TRANSPORT_ALIASES
from support.sqs_servers import CREDENTIALS, MotoServer

STACK = pytest.StashKey[ExitStack]()


def pytest_configure(config):
    stack = config.stash[STACK] = ExitStack()
    os.environ.update(CREDENTIALS)
    directory = Path(stack.enter_context(TemporaryDirectory()))
    server = stack.enter_context(MotoServer(directory))
    os.environ |= {
        "AWS_ENDPOINT_URL_SQS": server.url,
        "AWS_ENDPOINT_URL_SNS": server.url,
        "CELERY_BROKER_URL": "sqs://",
        "CELERY_RESULT_BACKEND": "cache+memory://",
        # As kombu's tests ask for it.
        "SQS_HOST": "127.0.0.1",
        "SQS_PORT": str(server.port),
    }
    for name in ("sqs", "memory"):
        TRANSPORT_ALIASES[name] = "celery_sqs_visibility:Transport"


def pytest_unconfigure(config):
    config.stash[STACK].close()

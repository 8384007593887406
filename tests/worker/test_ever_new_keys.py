"""A process that connects with ever new keys: it keeps the sockets of the latest."""

import json
import subprocess
import sys

import pytest
from support.worker import environment

from celery_sqs_visibility.transport.broker_context import KEPT_CONTEXTS

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def visit(sqs, proxy, queue):
    """Runs the program in a process of its own: what it has seen."""
    sqs.create_queue(QueueName=queue)
    command = [sys.executable, "-W", "always::ResourceWarning", "-m", "visiting", queue]

    def run(*args):
        done = subprocess.run(
            [*command, *args], env=environment(), capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    return run


@pytest.mark.parametrize(
    ("way", "pairs", "sockets_of_each"),
    [
        ("open", 60, 1),
        ("publish", 60, 2),  # one looks the queue up
        ("consume", 16, 3),  # its end takes a second
    ],
)
def test_only_the_latest_keys_have_sockets(visit, way, pairs, sockets_of_each):
    sockets, contexts = visit(way, str(pairs))
    assert sockets <= sockets_of_each * KEPT_CONTEXTS
    assert contexts <= KEPT_CONTEXTS


def test_a_forked_child_closes_none_of_its_parents_sockets(visit):
    had_sockets, status, still_open = visit("fork")
    assert (had_sockets, status, still_open) == (True, 0, True)

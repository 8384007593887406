"""Commands whose reader has gone, as after `| head -1`, end without a traceback."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.app import CONFIG_VARIABLE, encode_config
from support.worker import IMPORT_PATHS

BIG = "x" * 300_000


def run_unread(site, *args, lines=0):
    """Run `celery sqs *args`, read so many lines of its output, and go; its standard error and status."""
    environment = {**os.environ, CONFIG_VARIABLE: encode_config(site.config), "PYTHONUNBUFFERED": ""}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, IMPORT_PATHS))
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "celery", "-A", "letters", "sqs", *args]
    with subprocess.Popen(
        command, stdout=writer, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        os.close(writer)
        with os.fdopen(reader) as output:
            for _ in range(lines):
                assert output.readline()
        return process.communicate(timeout=60)[1], process.returncode


@pytest.fixture
def site(make_site):
    site = make_site(wait_time_seconds=1)
    dead = site.create_queue_with_dead_letters(9)
    site.sqs.send_message(QueueUrl=dead, MessageBody=BIG)
    return site


@pytest.mark.parametrize("lines", [0, 1], ids=["nothing read", "a line read"])
@pytest.mark.parametrize(
    "command",
    [
        "dead-letters list QUEUE",
        "dead-letters list QUEUE --json",
        "status",
        "doctor",
        "permissions worker",
        "queues create",
        "message letters.once",
        "status --watch 1",
    ],
)
def test_a_command_whose_reader_has_gone_ends_without_a_traceback(site, command, lines):
    said, status = run_unread(site, *command.replace("QUEUE", site.queue).split(), lines=lines)
    assert "Traceback" not in said
    assert "BrokenPipeError" not in said
    assert status in {0, 1}


def test_a_large_letter_is_shown_to_a_reader_of_one_line(site):
    identity = site.sqs.receive_message(
        QueueUrl=site.sqs.get_queue_url(QueueName=f"{site.queue}-dead")["QueueUrl"], VisibilityTimeout=0
    )["Messages"][0]["MessageId"]
    said, status = run_unread(site, "dead-letters", "show", site.queue, identity, lines=1)
    assert (said, status) == ("", 1)

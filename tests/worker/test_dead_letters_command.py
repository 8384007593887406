"""`celery sqs dead-letters`, as a process, on the dead letters of a real worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from support.app import CONFIG_VARIABLE, encode_config
from support.commands import run_celery, run_json
from support.processes import SOON, wait_until
from support.worker import IMPORT_PATHS


@pytest.fixture
def site(make_site):
    return make_site(wait_time_seconds=1)


def sqs_command(site, *args, **options):
    return run_celery(site.config, "sqs", "dead-letters", *args, module="letters", **options)


def test_dead_letters_are_listed_shown_sent_back_and_deleted(site):
    dead = site.create_queue_with_dead_letters(9)
    worker = site.start("letters")
    for key in ("a", "b"):
        site.app.send_task("letters.once", [key], task_id=f"{key}-task-of-{key}")
    wait_until(lambda: site.counts(dead) == (2, 0), SOON, "two dead letters")
    letters = run_json(site.config, "dead-letters", "list", site.queue, "--task", "*.once", module="letters")
    assert {letter["task_id"] for letter in letters} == {"a-task-of-a", "b-task-of-b"}
    assert {letter["exception"] for letter in letters} == {"letters.Trouble: a", "letters.Trouble: b"}
    assert {(letter["source_queue"], letter["attempts"]) for letter in letters} == {(site.queue, 1)}

    shown = sqs_command(site, "show", site.queue, "a-task-o")
    assert shown.returncode == 0, shown.stderr
    assert 'args: ["a"]' in shown.stdout
    assert "traceback:\nTraceback" in shown.stdout
    planned = sqs_command(site, "retry", site.queue, "--task", "*.once", "--dry-run")
    assert "2 dead letters would be sent back" in planned.stdout
    assert site.counts(dead) == (2, 0)

    retried = run_json(site.config, "dead-letters", "retry", site.queue, "a-task-o", module="letters")
    assert (len(retried["done"]), retried["failed"]) == (1, {})
    site.diary.wait_for("started", key="a", count=2)
    assert {each["retries"] for each in site.diary.entries("started", key="a")} == {0}
    wait_until(lambda: site.counts(dead) == (2, 0), SOON, "its second failure")
    worker.stop()

    asked = sqs_command(site, "delete", site.queue, "--all")
    assert (asked.returncode, site.counts(dead)) == (1, (2, 0))
    assert "about 2" in asked.stderr
    deleted = sqs_command(site, "delete", site.queue, "--all", "--yes")
    assert (deleted.stdout, deleted.returncode) == ("2 dead letters were deleted.\n", 0)
    gone = sqs_command(site, "retry", site.queue, "a-task-o")
    assert (gone.returncode, "there is no dead letter 'a-task-o' in" in gone.stderr) == (1, True)
    none = sqs_command(site, "list", site.queue)
    assert none.returncode == 0
    assert none.stdout.startswith("No dead letters")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_retry_loses_nothing_and_hides_nothing(site, number):
    dead = site.create_queue_with_dead_letters(9)
    for _ in range(19):  # for ten seconds
        site.sqs.send_message(QueueUrl=dead, MessageBody="any")
    paths = os.pathsep.join([*map(str, IMPORT_PATHS), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, CONFIG_VARIABLE: encode_config(site.config), "PYTHONPATH": paths}
    command = [sys.executable, "-m", "celery", "-A", "letters", "sqs", "dead-letters"]
    command += ["retry", site.queue, "--all", "--rate", "2"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        wait_until(lambda: site.counts() != (0, 0), SOON, "the first batch")
        process.send_signal(number)
        _, errors = process.communicate(timeout=SOON)
    assert (process.returncode, b"interrupted" in errors) == (1, True)
    (sent, hidden), (left, held) = site.counts(), site.counts(dead)
    assert (sent + left, hidden, held) == (19, 0, 0)
    assert left


def test_a_queue_without_dead_letters_is_one_sentence(site):
    site.create_queue()
    refused = sqs_command(site, "retry", site.queue, "--all")
    assert (refused.returncode, "has no dead-letter queue" in refused.stderr) == (1, True)

"""`celery sqs dead-letters`, as a process, on the dead letters of a real worker."""

import json
import signal
import subprocess
import sys

import pytest
from support.commands import run_celery, run_json
from support.processes import SOON, wait_until
from support.worker import environment

from celery_sqs_visibility.delivery.settle.dead_letters import ATTRIBUTE


@pytest.fixture
def site(make_site):
    return make_site(wait_time_seconds=1)


def sqs_command(site, *args, **options):
    return run_celery(site.config, "sqs", "dead-letters", *args, module="letters", **options)


def retrying(site, *options):
    command = [sys.executable, "-m", "celery", "-A", "letters", "sqs", "dead-letters", "retry", site.queue]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*command, *options], env=environment(site.config), **pipes)


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
    with retrying(site, "--all", "--yes", "--rate", "2") as process:
        wait_until(lambda: site.counts() != (0, 0), SOON, "the first batch")
        process.send_signal(number)
        _, errors = process.communicate(timeout=SOON)
    assert (process.returncode, "interrupted" in errors) == (1, True)
    (sent, hidden), (left, held) = site.counts(), site.counts(dead)
    assert (sent + left, hidden, held) == (19, 0, 0)
    assert left


@pytest.mark.parametrize(("broken", "number"), [(0, signal.SIGINT), (2, signal.SIGTERM)])
def test_letters_of_one_exception_are_counted_sent_back_and_followed(site, broken, number):
    dead, letters = site.create_queue_with_dead_letters(9), 300
    forged_letter(site, dead, site.queue)  # of another exception
    worker = site.start("letters", env={"BROKEN_BELOW": str(letters)})
    sent = [site.app.send_task("letters.mended", [key]).id for key in range(letters)]
    wait_until(lambda: site.counts(dead) == (letters + 1, 0), SOON, "the dead letters")
    worker.stop()
    groups = run_json(
        site.config, "dead-letters", "list", site.queue, "--by", "exception,task", module="letters"
    )
    assert [(group["exception"], group["task"], group["count"]) for group in groups] == [
        ("letters.Trouble", "letters.mended", letters),
        (None, None, 1),
    ]

    mended = site.start("letters", env={"BROKEN_BELOW": str(broken)})
    with retrying(site, "--exception", "letters.Trouble", "--follow", "1h", "--json") as process:
        site.diary.wait_for("mended", count=letters - broken)
        wait_until(lambda: site.counts(dead) == (broken + 1, 0), SOON, "those that fail again")
        wait_until(lambda: site.counts() == (0, 0), SOON, "an empty queue")
        process.send_signal(number)
        out, errors = process.communicate(timeout=SOON)
    mended.stop()
    told = json.loads(out)
    assert sorted(told["task_ids"]) == sorted(sent)
    assert (len(told["done"]), told["failed"], told["interrupted"]) == (letters, {}, False)
    assert told["followed"]["came_back"] == sorted(sent[:broken])
    assert told["followed"]["in_queue"] == 0
    assert process.returncode == bool(broken)
    assert "Ctrl-C ends the wait" in errors
    assert ("2 tasks failed for good again: celery -A letters sqs dead-letters list" in errors) is bool(
        broken
    )
    assert site.counts(dead) == (broken + 1, 0)


def attributes(said):
    return {ATTRIBUTE: {"DataType": "String", "StringValue": json.dumps(said, ensure_ascii=False)}}


def forged_letter(site, dead, target):
    """A dead letter of nobody's, which names its own way back; its id."""
    said = {"reason": "failed", "source_queue": target}
    body = json.dumps({"body": "[]"})
    sent = site.sqs.send_message(QueueUrl=dead, MessageBody=body, MessageAttributes=attributes(said))
    return sent["MessageId"]


def test_a_letter_that_names_another_queue_is_sent_there_after_a_question_only(site):
    dead = site.create_queue_with_dead_letters(9)
    name = f"payroll-{site.queue}"[:60]
    payroll = site.sqs.create_queue(QueueName=name)["QueueUrl"]
    letter = forged_letter(site, dead, name)
    own = forged_letter(site, dead, site.queue)

    asked = sqs_command(site, "retry", site.queue, letter, own)
    assert asked.returncode == 1
    assert f"Send dead letters to queue '{name}' (http" in asked.stderr
    assert f"/{name}) instead of '{site.queue}'?" in asked.stderr
    assert asked.stdout == f"1 dead letter was sent back to '{site.queue}'.\n"
    assert (site.counts(), site.counts(payroll), site.counts(dead)) == ((1, 0), (0, 0), (1, 0))

    planned = sqs_command(site, "retry", site.queue, letter, "--dry-run")
    assert planned.stdout.endswith(f"1 dead letter would be sent back to '{name}'.\n")
    agreed = sqs_command(site, "retry", site.queue, letter, typed="y\n")
    assert (agreed.returncode, agreed.stdout.endswith(f" to '{name}'.\n")) == (0, True)
    assert (site.counts(payroll), site.counts(dead)) == ((1, 0), (0, 0))


ORDERS = "\x1b]0;owned\x07 \x9b31m \u202e"


def test_nothing_that_a_message_says_gives_a_terminal_orders(site):
    dead = site.create_queue_with_dead_letters(9)
    headers = {"task": f"task{ORDERS}", "id": "an-id-of-a-task", "argsrepr": ORDERS, "x\x9b": ORDERS}
    properties = {"body_encoding": "utf-8", "delivery_info": {}, "delivery_tag": "t"}
    content = {"content-type": "application/json", "content-encoding": "utf-8", "headers": headers}
    body = json.dumps({**content, "properties": properties, "body": json.dumps([[ORDERS], {}, {}])})
    said = dict.fromkeys(("reason", "exception", "worker"), "\x85 \u202e")
    site.sqs.send_message(QueueUrl=dead, MessageBody=body, MessageAttributes=attributes(said))
    for arguments in (["list"], ["list", "--json"], ["show"], ["show", "--json"]):
        command, *options = arguments
        ids = ["an-id-of-a-task"] if command == "show" else []
        done = sqs_command(site, command, site.queue, *ids, *options)
        assert done.returncode == 0, done.stderr
        assert "task" in done.stdout
        assert not set("\x1b\x07\x85\x9b\u202e") & set(done.stdout + done.stderr), arguments

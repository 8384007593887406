"""`celery sqs dead-letters`, as a process, on the dead letters of a real worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.app import CONFIG_VARIABLE, encode_config
from support.commands import run_celery, run_json
from support.processes import SOON, wait_until
from support.worker import IMPORT_PATHS

from celery_sqs_visibility.delivery.settle.dead_letters import ATTRIBUTE


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
    command += ["retry", site.queue, "--all", "--yes", "--rate", "2"]
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


def test_two_lists_at_once_show_all_or_say_how_many_the_other_has(site):
    dead = site.create_queue_with_dead_letters(9)
    for _ in range(20):
        site.sqs.send_message(QueueUrl=dead, MessageBody="any")
    both_hold = threading.Barrier(2)

    def wait_for_the_other(request, forward, removed):
        answer = forward(request)
        both_hold.wait(2 * SOON)
        return answer

    with (
        site.proxy.inject(wait_for_the_other, "ReceiveMessage", times=2),
        ThreadPoolExecutor(2) as threads,
    ):
        lists = list(threads.map(lambda _: sqs_command(site, "list", site.queue, "--json"), range(2)))
    shown = [len(json.loads(each.stdout)) for each in lists]
    said = ["Left out: 10 messages" in each.stderr and "another command" in each.stderr for each in lists]
    assert [each.returncode for each in lists] == [0, 0]
    assert all(
        (number, left_out) in {(10, True), (20, False)} for number, left_out in zip(shown, said, strict=True)
    ), shown
    assert any(said)
    assert site.counts(dead) == (20, 0)


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


def test_without_questions_each_letter_goes_where_it_says(site):
    dead = site.create_queue_with_dead_letters(9)
    name = f"other-{site.queue}"[:60]
    other = site.sqs.create_queue(QueueName=name)["QueueUrl"]
    forged_letter(site, dead, name)
    arguments = ["retry", site.queue, "--all", "--any-source", "--yes"]
    told = run_json(site.config, "dead-letters", *arguments, module="letters")
    assert told["sent_to"] == {name: 1}
    assert (site.counts(other), site.counts(dead)) == ((1, 0), (0, 0))


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


def test_nothing_that_a_message_says_gives_the_logs_terminal_orders(site):
    dead = site.create_queue_with_dead_letters(9)
    headers = {"task": f"unheard.of\x9b{ORDERS}", "id": "an-id", "lang": "py"}
    properties = {"body_encoding": "utf-8", "delivery_info": {}, "delivery_tag": "t"}
    content = {"content-type": "application/json", "content-encoding": "utf-8", "headers": headers}
    bodies = [
        json.dumps({**content, "properties": properties, "body": "nothing that can be read"}),
        json.dumps({"what": ORDERS, ORDERS: 1}),
        ORDERS.replace("\x1b", "").replace("\x07", ""),
    ]
    for body in bodies:
        site.sqs.send_message(QueueUrl=site.url, MessageBody=body)
    worker = site.start("letters", loglevel="DEBUG")
    wait_until(lambda: site.counts(dead) == (3, 0), SOON, lambda: worker.log)
    assert not set("\x1b\x07\x85\x9b\u202e") & set(worker.log)


def test_a_retry_of_letters_behind_others_of_their_fifo_group_says_what_to_do(make_fifo_site):
    site = make_fifo_site(wait_time_seconds=1)
    name = f"{site.queue.removesuffix('.fifo')}-dead.fifo"
    url = site.sqs.create_queue(QueueName=name, Attributes={"FifoQueue": "true"})["QueueUrl"]
    for number in range(12):
        body = json.dumps({"body": "[]", "headers": {"task": f"letters.t{number}", "id": f"id-{number}"}})
        site.sqs.send_message(
            QueueUrl=url, MessageBody=body, MessageGroupId="g", MessageDeduplicationId=str(number)
        )
    named = ["--dead-letter-queue", name, "--any-source"]
    done = sqs_command(site, "retry", site.queue, "--task", "letters.t11", *named)
    assert done.stdout == "No dead letters match, of those that SQS gives: none were sent back.\n"
    assert "Left out: 2 messages" in done.stderr
    assert "name their IDs, or say --all without filters" in done.stderr
    everything = sqs_command(site, "retry", site.queue, "--all", "--yes", *named)
    assert everything.stdout.startswith("12 dead letters were sent back")
    assert site.counts() == (12, 0)

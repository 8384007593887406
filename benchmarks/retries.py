"""Retries on time: from the expiry of a failed task's delay to the start of its next attempt."""

from __future__ import annotations

import json
import statistics

from contenders import OURS, VISIBILITY, Contender
from meter import Meter, metered
from queues import fill, new_name
from results import Result
from support.diary import DIARY_VARIABLE, Diary
from support.processes import wait_until
from tasks import DELAY

NAME = "retries"
DEADLINE = 120
CONTENDERS = (
    VISIBILITY,
    Contender(f"{OURS}, polling_interval=30", OURS, {"polling_interval": 30}),
)


def measure(arguments, servers):
    """Many tasks that fail once, as fast as two slots go, and come back five seconds later."""
    seconds = arguments.latency[0]
    for contender in CONTENDERS:
        result = Result(NAME, f"{arguments.failing} failing, {1000 * seconds:g} ms, prefork", contender.name)
        if arguments.only in contender.name:
            for _ in range(arguments.repeats):
                late = sorted(lateness(contender, arguments.failing, seconds, servers))
                result.add(
                    median_ms_late=1000 * statistics.median(late),
                    p99_ms_late=1000 * late[int(0.99 * (len(late) - 1))],
                    most_ms_late=1000 * late[-1],
                )
            yield result


def lateness(contender, tasks, seconds, servers):
    """Of each task, in seconds."""
    queue, meter = new_name(), Meter()
    diary = Diary(servers.directory / f"{queue}.jsonl")
    fill(servers.sqs, queue, "fail_once", tasks)
    with (
        metered(servers.sqs.url, seconds, meter) as proxy,
        contender.worker(
            proxy.port, queue, servers.directory, env={DIARY_VARIABLE: str(diary.path)}
        ) as worker,
    ):
        wait_until(
            lambda: diary.path.exists() and diary.path.read_bytes().count(b"\n") >= 2 * tasks,
            DEADLINE,
            lambda: worker.log[-2000:],
        )
    due = expiries(meter.passed)
    return [e["monotonic"] - due[e["message"]] for e in diary.entries("started") if e["attempt"]]


def expiries(passed):
    """By message id: when SQS shows it again, or a little earlier, for it counts from when it was asked."""
    messages, due = {}, {}
    for one in passed:
        if one.action == "ReceiveMessage":
            for message in json.loads(one.answer).get("Messages", []):
                messages[message["ReceiptHandle"]] = message["MessageId"]
        elif one.action.startswith("ChangeMessageVisibility"):
            for entry in one.parameters.get("Entries", [one.parameters]):
                if entry["VisibilityTimeout"] == DELAY:
                    due[messages[entry["ReceiptHandle"]]] = one.asked + DELAY
    return due

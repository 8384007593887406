"""What happened to a task, of workers' answers and of JSON logs."""

import json

from celery_sqs_visibility.operate.task_history import event_text, merged, of_answers, of_lines

STARTED = {
    "timestamp": "2026-11-29T02:00:05.500000+00:00",
    "node": "w1@host",
    "message": "task started",
    "task_id": "id",
    "message_id": "m",
    "receive_count": 1,
    "attempt": 1,
}


def line(**fields):
    return json.dumps({**STARTED, **fields})


def test_lines_of_the_task_are_read_and_others_are_passed_over():
    lines = [
        line(),
        line(task_id="another"),
        line(message="message extended"),  # too many to be of use
        line(message="sold", price=7),  # a program's own
        "Task t[id] received",
        '{"task_id": "id"}',
        '["id"]',
        line(timestamp="yesterday"),
    ]
    (event,) = of_lines(lines, "id")
    assert event == {"at": 1795917605.5, **STARTED}


def test_an_event_of_which_worker_and_log_tell_is_told_once_and_all_are_in_order():
    later = {**STARTED, "message": "task failed", "at": 20.0, "error": "Oops()"}
    answers = {"w1@host": {"history": [later, {**STARTED, "at": 10.0}]}, "w2@host": {"error": "old"}}
    log = [{**STARTED, "at": 10.001}, {**STARTED, "receive_count": 2, "at": 15.0}]
    found = merged(of_answers(answers), log)
    assert [(each["at"], each["message"]) for each in found] == [
        (10.0, "task started"),
        (15.0, "task started"),
        (20.0, "task failed"),
    ]


def test_an_event_is_a_line_for_people():
    event = {**STARTED, "at": 1795917605.5, "message": "message hidden", "seconds": 90.0}
    assert event_text(event) == "2026-11-29T02:00:05Z  w1@host  message hidden, attempt 1, for 1m30s"
    copied = {**event, "message": "message goes on waiting as a copy", "cause": "brake"}
    assert event_text(copied).endswith("waits as a copy, attempt 1, for 1m30s, cause brake")
    failed = {"at": 1795917605.5, "message": "task failed", "error": "Oops()"}
    assert event_text(failed) == "2026-11-29T02:00:05Z  -  task failed: Oops()"

"""`celery -A proj sqs find`: where a task is, by what the sources say."""

import json

import pytest
from support.app import close_app, make_app
from support.commands import invoke

from celery_sqs_visibility.errors import CommandNotSentError
from celery_sqs_visibility.operate import invocation
from celery_sqs_visibility.operate.find import Found, verdict

NOW = 1_000.0
HELD = {
    "worker": "w1@host",
    "state": "running",
    "waits_for": None,
    "received": 900.0,
    "began": 988.0,
    "attempt": 2,
    "lease_ends": 1_025.0,
    "lost": False,
}


def event(message, at=990.0, **fields):
    return {"at": at, "node": "w1@host", "message": message, **fields}


def after(*history, workers=("w1@host",)):
    return verdict(Found("id", workers=list(workers), history=list(history)), NOW)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "runs on w1@host for 12s, attempt 2; hidden for 25s more, and extended"),
        (
            {"state": "held", "began": None, "waits_for": "eta or rate"},
            "waits for its eta or rate on w1@host for 1m40s, attempt 2; hidden for 25s more, and extended",
        ),
        (
            {"lost": True},
            "lost on w1@host for 12s, attempt 2; its message is lost: another worker may run it",
        ),
        (
            {"lease_ends": None},
            "runs on w1@host for 12s, attempt 2; its message was deleted when the run began",
        ),
    ],
)
def test_a_worker_that_holds_it_is_named_first(changes, text):
    found = Found("id", workers=["w1@host"], held=[{**HELD, **changes}], history=[event("task failed")])
    assert verdict(found, NOW) == text


def test_two_workers_that_hold_it_are_both_named():
    held = [HELD, {**HELD, "worker": "w2@host"}]
    text = verdict(Found("id", workers=["w1@host", "w2@host"], held=held), NOW)
    assert "w1@host" in text
    assert "w2@host" in text


@pytest.mark.parametrize(
    ("last", "text"),
    [
        (event("message hidden", seconds=82), "hidden for its retry, comes back in 1m12s"),
        (
            event("message hidden", seconds=5),
            "was hidden for its retry, and has been due for 5s: it waits in SQS, or has succeeded",
        ),
        (
            event("message parked until it may run", seconds=70),
            "hidden until it may run, comes back in 1m",
        ),
        (
            event("message goes on waiting as a copy", seconds=70),
            "hidden until it may run, comes back in 1m",
        ),
        (
            event("message moved to the dead-letter queue", reason="out of attempts"),
            "a dead letter for 10s: out of attempts",
        ),
        (event("message deleted"), "finished 10s ago on w1@host"),
        (event("task skipped", reason="it was revoked"), "skipped 10s ago: it was revoked"),
        (event("task failed", error="Oops()"), "failed 10s ago: Oops()"),
        (
            event("message lost: another worker may run it too"),
            "last known 10s ago: message lost: another worker may run it too",
        ),
        (event("task started"), "last known 10s ago: task started"),
    ],
)
def test_else_its_last_event_says_where_it_is(last, text):
    assert after(event("task failed", 900.0, error="before"), last) == text


def test_a_worker_that_had_it_and_does_not_answer_may_be_gone():
    text = after(event("task started"), workers=["w2@host"])
    assert text.startswith("was begun 10s ago by w1@host, which does not answer")


def test_a_letter_says_more_than_the_events_and_an_end_in_the_backend_more_than_what_came_before():
    letter = {"dead_letter_queue": "dead", "exception": "Oops()", "reason": "spent", "age_seconds": 65}
    history = [event("message hidden", seconds=100)]
    assert (
        verdict(Found("id", letters=[letter], history=history), NOW)
        == "a dead letter in 'dead' for 1m5s: Oops()"
    )
    result = {"status": "SUCCESS", "date_done": "today"}
    assert (
        verdict(Found("id", history=history, result=result), NOW)
        == "SUCCESS in the result backend since today"
    )


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (
            Found("id", workers=["a", "b", "c"]),
            (
                "not held by any of 3 workers; no dead letter was looked for; it waits in SQS, or has "
                "succeeded, or never was"
            ),
        ),
        (
            Found("id", workers=[], letters=[]),
            "no worker answered; no dead letter; it waits in SQS, or has succeeded, or never was",
        ),
        (
            Found("id", result={"status": "STARTED"}),
            "last heard of as STARTED: it waits in SQS, or a worker that does not answer has it",
        ),
    ],
)
def test_what_nobody_can_know_is_said(found, text):
    assert verdict(found, NOW) == text
    assert not Found("id", result={"status": "PENDING"}).is_known


@pytest.fixture
def app():
    app = make_app("finding", broker_transport="celery_sqs_visibility")
    yield app
    close_app(app)


def run(app, *args):
    return invoke(app, "find", *args)


def test_sources_that_are_missing_are_named(app):
    result = run(app, "id")
    assert result.exit_code == 1
    assert "Not known: the workers are not asked: remote control is off here" in result.output
    assert "Not known: there is no result backend" in result.output


def test_sources_that_do_not_answer_are_named(app, monkeypatch):
    def ask(*_args, **_arguments):
        raise CommandNotSentError("SQS is away")

    monkeypatch.setattr(invocation, "is_controlled", lambda _: True)
    monkeypatch.setattr(invocation, "ask", ask)
    app.conf.result_backend = "file:///nowhere-at-all"
    result = run(app, "id", "--json")
    unknown = json.loads(result.stdout)["unknown"]
    assert unknown[0] == "the workers cannot be asked: SQS is away"
    assert unknown[1].startswith("the result backend does not answer")


def test_a_log_alone_is_enough_and_a_result_is_cut(app, monkeypatch, tmp_path):
    log = tmp_path / "log"
    line = {"timestamp": "2026-11-29T02:00:05+00:00", "node": "w", "message": "task failed"}
    line |= {"task_id": "id", "message_id": "m"}
    log.write_text(json.dumps(line) + "\n")
    app.conf.result_backend = "cache+memory://"
    meta = {"status": "FAILURE", "result": ValueError("x" * 1_000), "date_done": None}
    monkeypatch.setattr(type(app.backend), "get_task_meta", lambda *_: meta)
    result = run(app, "id", "--logs", str(log))
    assert result.exit_code == 0
    assert result.output.startswith(
        "id: FAILURE in the result backend\n  2026-11-29T02:00:05Z  w  task failed\n"
    )
    assert len(result.output) < 700

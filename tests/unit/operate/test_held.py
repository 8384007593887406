"""`celery -A proj sqs held`."""

import pytest

from celery_sqs_visibility.operate.held import lease_left, rows_of, state_text, summary

NOW = 1_000.0
MESSAGE = {
    "task_id": "one",
    "state": "running",
    "waits_for": None,
    "received": 900.0,
    "began": 940.0,
    "lease_ends": 1_020.0,
    "lost": False,
    "at_sigterm": "ends in time",
    "at_sigkill": "runs again",
}
WAITS = {**MESSAGE, "task_id": "two", "state": "held", "began": None, "at_sigterm": "given back"}
ANSWERS = {
    "w1@host": {"messages": 2, "held": [MESSAGE, WAITS], "runs_have": 25.0},
    "w2@host": {"error": "unknown command"},
}


def test_rows_have_their_worker_and_how_long_and_begin_with_the_longest():
    rows = rows_of(ANSWERS, NOW)
    assert [(row["worker"], row["task_id"], row["seconds"]) for row in rows] == [
        ("w1@host", "two", 100.0),
        ("w1@host", "one", 60.0),
    ]


def test_long_ones_are_runs():
    assert [row["task_id"] for row in rows_of(ANSWERS, NOW, 60)] == ["one"]
    assert rows_of(ANSWERS, NOW, 61) == []


def test_the_end_says_who_cannot_answer_and_what_signals_would_do():
    assert summary(ANSWERS, rows_of(ANSWERS, NOW)) == [
        "w2@host: unknown command",
        "SIGTERM now (runs have 25s): 1 ends in time, 1 is given back before it begins.",
        "SIGKILL now: 2 run again.",
    ]


def test_what_is_not_shown_is_counted_and_different_times_are_a_range():
    answers = {"w1": {**ANSWERS["w1@host"], "messages": 300}, "w2": {"held": [], "runs_have": 90.0}}
    sentences = summary(answers, rows_of(answers, NOW))
    assert sentences[0] == "2 of 300 are shown."
    assert "(runs have 25s to 1m30s)" in sentences[1]


def test_without_anything_held_it_says_who_was_asked():
    assert summary({"w1": {"messages": 0, "held": [], "runs_have": 25}}, []) == [
        "1 worker asked: nothing to show."
    ]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "runs"),
        ({"lost": True}, "lost"),
        ({"state": "copying"}, "is sent on"),
        ({"state": "held"}, "waits"),
        ({"state": "dispatched"}, "waits"),
        ({"state": "held", "waits_for": "payload"}, "waits for its payload"),
        ({"state": "held", "waits_for": "resume"}, "waits: its task is paused"),
        ({"state": "held", "waits_for": "brake 'bank'"}, "waits for its brake 'bank'"),
    ],
)
def test_states_are_words(changes, text):
    assert state_text({**MESSAGE, **changes}) == text


def test_a_lease_runs_down_to_nothing_and_a_deleted_message_has_none():
    assert [lease_left(MESSAGE, now) for now in (NOW, 1_021.0)] == [20.0, 0.0]
    assert lease_left({**MESSAGE, "lease_ends": None}, NOW) is None

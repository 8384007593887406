"""Answers of workers to `pause` and `resume`, as the commands tell them."""

from __future__ import annotations

import json

import pytest

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.operate import pause as module
from celery_sqs_visibility.operate.pause import pause, resume

OLD = {"w@h": {"error": "unknown command 'sqs_resume'"}}


@pytest.fixture
def resumed(run_on, monkeypatch):
    """Run `resume` where workers answer so."""

    def run(answers, *args):
        monkeypatch.setattr(module, "ask", lambda *_, **__: answers)
        options = {"remote_control": True}
        return run_on(FakeSQS(), resume, "mail", *args, broker_transport_options=options)

    return run


@pytest.mark.parametrize(("time", "words"), [("0s", "a duration of more than 0 s"), ("soon", "10m")])
def test_a_wrong_time_is_refused(run_on, time, words):
    done = run_on(FakeSQS(), pause, "mail", "--for", time)
    assert (done.exit_code, words in done.stderr) == (2, True)


@pytest.mark.parametrize("command", [pause, resume])
def test_without_remote_control_a_sentence_says_what_to_set(run_on, command):
    done = run_on(FakeSQS(), command, "mail")
    assert (done.exit_code, "'remote_control': True" in done.stderr) == (69, True)


def test_programs_get_the_workers_answers(resumed):
    answers = {"w@h": {"ok": {"was_paused": True}}}
    assert json.loads(resumed(answers, "--json").stdout) == {"queue": "mail", "workers": answers}


def test_a_worker_that_does_not_know_the_command_is_told_with_its_answer(resumed):
    done = resumed(OLD)
    assert (done.exit_code, done.stderr) == (1, "Error: w@h: unknown command 'sqs_resume'\n")

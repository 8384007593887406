"""Answers of workers to `pause` and `resume`, as the commands tell them."""

import json

import pytest

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.kept_pauses import PAUSE_TAG
from celery_sqs_visibility.errors import AccessDeniedError
from celery_sqs_visibility.operate import pause as module
from celery_sqs_visibility.operate.pause import pause, resume

ELSEWHERE = {"v@h": {"error": "consumes 'orders', and not 'mail'", "queues": ["orders"]}}
PAUSED = {"w@h": {"ok": {"seconds_left": None, "held": 3, "running": 1}}}


@pytest.fixture
def told(run_on, monkeypatch):
    """Run a command where workers answer so; `told.arguments` are those that they get."""

    def run(sqs, command, answers, *args):
        def ask(_app, command, _timeout, _nodes, **arguments):
            run.command, run.arguments = command, arguments
            return answers

        monkeypatch.setattr(module, "ask", ask)
        what = () if "--task" in args else ("mail",)
        return run_on(sqs, command, *what, *args, broker_transport_options={"remote_control": True})

    return run


@pytest.fixture
def sqs():
    sqs = FakeSQS()
    sqs.url = sqs.create_queue("mail", {}, {})
    return sqs


def test_a_kept_pause_is_a_tag_until_it_is_resumed(told, sqs):
    kept = told(sqs, pause, PAUSED, "--keep")
    assert kept.stdout == (
        "w@h: paused until it is resumed; 1 running, 2 given back\n"
        "Workers that start from now on are paused, too.\n"
    )
    assert told.arguments == {"queue": "mail", "seconds": None, "kept": True}
    assert sqs.queue_tags(sqs.url) == {PAUSE_TAG: "resumed"}
    resumed = told(sqs, resume, {"w@h": {"ok": {"was_paused": True}}})
    assert resumed.stdout == "w@h: resumed\nWorkers that start from now on are not paused.\n"
    assert sqs.queue_tags(sqs.url) == {}


def test_a_pause_is_kept_and_resumed_while_no_worker_consumes_the_queue(told, sqs):
    for answers in ({}, ELSEWHERE):
        kept = told(sqs, pause, answers, "--keep", "--for", "10m", "--json")
        assert (kept.exit_code, json.loads(kept.stdout)["kept"]) == (0, True)
        assert sqs.queue_tags(sqs.url)[PAUSE_TAG].endswith("Z")
        assert told(sqs, resume, answers).exit_code == 0
        assert told(sqs, resume, answers).exit_code == (1 if answers else 69), "there is no tag any more"


def test_workers_that_do_not_consume_the_queue_are_in_the_json_alone(told, sqs):
    done = told(sqs, pause, {**PAUSED, **ELSEWHERE})
    assert done.stdout == (
        "w@h: paused until it is resumed; 1 running, 2 given back\n"
        "Workers that start from now on are not paused: use --keep.\n"
    )
    assert set(json.loads(told(sqs, pause, {**PAUSED, **ELSEWHERE}, "--json").stdout)["workers"]) == {
        "v@h",
        "w@h",
    }
    failed = told(sqs, pause, {**PAUSED, "u@h": {"error": "no thread could be started"}})
    assert "u@h: not done: no thread could be started" in failed.stdout


def test_one_worker_is_resumed_while_the_tag_stays(told, sqs):
    told(sqs, pause, PAUSED, "--keep")
    assert told(sqs, resume, {"w@h": {"ok": {"was_paused": True}}}, "-d", "w@h").stdout == "w@h: resumed\n"
    assert PAUSE_TAG in sqs.queue_tags(sqs.url)
    refused = told(sqs, pause, PAUSED, "--keep", "-d", "w@h")
    assert (refused.exit_code, "pauses a queue for all workers" in refused.stderr) == (2, True)


def test_a_task_is_paused_without_a_tag_and_says_what_that_costs(told, sqs):
    answers = {"w@h": {"ok": {"seconds_left": 600.0, "running": 2}}, "v@h": {"error": "none", "task": "t"}}
    done = told(sqs, pause, answers, "--task", "t", "--for", "10m")
    assert done.stdout == (
        "w@h: paused for 10m; 2 running\n"
        "Its messages come back every 60 s to be checked: 1,000 of them cost USD 0.17 to 1.73 a day. "
        "Checks are not attempts.\n"
        "Workers that start from now on are not paused.\n"
    )
    assert (told.command, told.arguments) == ("sqs_pause_task", {"task": "t", "seconds": 600.0})
    resumed = told(sqs, resume, {"w@h": {"ok": {"was_paused": True}}}, "--task", "t")
    assert (resumed.stdout, told.command) == ("w@h: resumed\n", "sqs_resume_task")
    shown = json.loads(told(sqs, pause, answers, "--task", "t", "--json").stdout)
    assert shown == {"task": "t", "workers": answers}
    assert [action for action, _ in sqs.calls] == ["CreateQueue"]


def test_a_task_that_no_worker_has_is_an_error(told, sqs):
    done = told(sqs, pause, {"v@h": {"error": "has no task 't'", "task": "t"}}, "--task", "t")
    assert (done.exit_code, done.stderr) == (1, "Error: no worker that answered has task 't'\n")
    batched = told(sqs, pause, {"v@h": {"error": "pause its queue"}}, "--task", "t")
    assert (batched.exit_code, batched.stderr) == (1, "Error: v@h: pause its queue\n")


@pytest.mark.parametrize("command", [pause, resume])
@pytest.mark.parametrize("what", [(), ("mail", "--task", "t")])
def test_a_queue_or_a_task_is_named(run_on, sqs, command, what):
    done = run_on(sqs, command, *what)
    assert (done.exit_code, "name a queue, or a task with --task NAME" in done.stderr) == (2, True)
    assert run_on(sqs, pause, "--task", "t", "--keep").exit_code == 2


def test_without_permission_nothing_is_paused_and_workers_are_resumed(told, sqs):
    told.arguments = None
    sqs.fail_next("TagQueue", AccessDeniedError("not allowed: sqs:TagQueue"))
    done = told(sqs, pause, PAUSED, "--keep")
    assert (done.exit_code, done.stdout, told.arguments) == (77, "", None)
    for answers, shown in (({"w@h": {"ok": {"was_paused": True}}}, "w@h: resumed\n"), ({}, "")):
        sqs.fail_next("ListQueueTags", AccessDeniedError("not allowed: sqs:ListQueueTags"))
        done = told(sqs, resume, answers)
        assert (done.exit_code, done.stdout) == (77, shown)
        assert (
            "a pause of queue 'mail' that was kept goes on for workers that start: not allowed" in done.stderr
        )


@pytest.mark.parametrize(("time", "words"), [("0s", "a duration of more than 0 s"), ("soon", "10m")])
def test_a_wrong_time_is_refused(run_on, time, words):
    done = run_on(FakeSQS(), pause, "mail", "--for", time)
    assert (done.exit_code, words in done.stderr) == (2, True)


@pytest.mark.parametrize("command", [pause, resume])
def test_without_remote_control_a_sentence_says_what_to_set(run_on, command):
    done = run_on(FakeSQS(), command, "mail")
    assert (done.exit_code, "'remote_control': True" in done.stderr) == (69, True)


def test_a_worker_that_does_not_know_the_command_is_told_with_its_answer(told, sqs):
    done = told(sqs, resume, {"w@h": {"error": "unknown command 'sqs_resume'"}})
    assert (done.exit_code, done.stderr) == (1, "Error: w@h: unknown command 'sqs_resume'\n")

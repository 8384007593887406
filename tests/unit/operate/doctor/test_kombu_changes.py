"""What an app is told that leaves kombu's transport."""

import pytest

from celery_sqs_visibility.operate.doctor.command import show
from celery_sqs_visibility.operate.doctor.facts import Facts, QueueFacts, TaskFacts
from celery_sqs_visibility.operate.doctor.kombu_changes import (
    facts_of_switch,
    findings_of_switch,
    settings_to_paste,
    taken_options,
)

SECRET = {"predefined_queues": {"q": {"url": "https://sqs.test/q", "secret_access_key": "s3cret"}}}


def told(given, *tasks):
    """By thing; that which everybody is told left out."""
    taken, refused = taken_options(given)
    assert {**taken, **dict.fromkeys(refused)}.keys() == given.keys()
    facts = facts_of_switch(Facts(tasks=tasks))
    found = findings_of_switch(facts, given, refused)
    return {f.thing: f for f in found if f.thing not in {"countdown and eta", "fleet"}}


@pytest.mark.parametrize(
    ("given", "thing", "words"),
    [
        ({"port": 3}, "option port", "put the port into broker_url"),
        ({"wait_times": 3}, "option wait_times", "did you mean 'wait_time_seconds'?"),
        ({"external_id": "x"}, "option external_id", "expected sts_role_arn"),
        ({"visibility_timeout": 14_400}, "option visibility_timeout", "it is 4h"),
        ({}, "option visibility_timeout", "kombu's default is 1800, here it is 120"),
        ({}, "option wait_time_seconds", "kombu's default is 10, here it is 20"),
        ({}, "option polling_interval", "kombu's default is 1, here it is 0"),
        ({"region": "eu-west-1", "port": 3}, "options", "region is taken as before"),
        ({"region": "x", "visibility_timeout": 14_400}, "options", "region is taken as before"),
    ],
)
def test_of_each_option_it_is_told_what_becomes_of_it(given, thing, words):
    assert words in told(given)[thing].problem


def test_a_command_that_refuses_an_app_on_kombus_transport_is_for_after_the_switch():
    facts = Facts(queues=(QueueFacts(name="q", exists=False),), command="celery -A proj sqs")
    found = {f.thing: f.remedy for f in findings_of_switch(facts, {}, {})}
    assert found["queue 'q'"] == "after the switch: celery -A proj sqs queues create q"
    assert all(remedy.startswith("after the switch: ") for remedy in found.values() if "celery -A" in remedy)


def test_what_is_the_same_is_not_told():
    same = {"visibility_timeout": 300, "wait_time_seconds": 20, "polling_interval": 0}
    assert told(same).keys() == {"options"}


def test_an_option_may_come_before_another_that_it_needs():
    given = {"external_id": "x", "sts_role_arn": "arn:aws:iam::1:role/r"}
    assert taken_options(given) == (given, {})


def test_tasks_are_looked_at_as_they_will_be():
    early = TaskFacts(name="a", queue="q", acks_late=False, comes_back=False)
    once = TaskFacts(name="b", queue="q", max_retries=0, comes_back=False)
    found = told({}, early, once)
    assert "acks_late is False" in found["task 'a'"].problem or "every exception" in found["task 'a'"].problem
    assert "task 'b'" not in found
    assert all(task.comes_back for task in facts_of_switch(Facts(tasks=(early, once))).tasks)


def test_tasks_that_choose_their_errors_are_not_warned_of_and_the_others_are_all_named():
    choosing = TaskFacts(name="chooses", queue="q", chooses=True)
    others = [TaskFacts(name=f"t{number}", queue="q", acks_late=False) for number in range(5)]
    found = findings_of_switch(facts_of_switch(Facts(tasks=(choosing, *others))), {}, {})
    things = [f.thing for f in found if "exception" in f.problem or "acks_late is False" in f.problem]
    assert things == ["tasks 't0', 't1', 't2', 't3', 't4'"] * 2


@pytest.mark.parametrize(
    ("given", "gone"),
    [
        ({}, None),
        ({"port": 3}, "for name in ['port']:"),
        (SECRET, "for name in ['predefined_queues']:"),
        ({"visibility_timeout": 14_400}, "for name in ['visibility_timeout']:"),
        ({"port": 3, "visibility_timeout": 14_400}, "for name in ['port', 'visibility_timeout']:"),
    ],
)
def test_what_is_to_be_pasted_removes_the_options_that_must_go_and_no_others(given, gone):
    refused = taken_options(given)[1]
    lines = settings_to_paste(given, refused)
    compile(lines, "settings", "exec")
    found = findings_of_switch(Facts(), given, refused)
    assert "s3cret" not in lines + "".join(f.problem + f.remedy for f in found)
    first, *others = lines.splitlines()
    assert first == 'app.conf.broker_transport = "celery_sqs_visibility"'
    assert [line for line in others if line.startswith("for ")] == ([gone] if gone else [])
    assert len(others) == (3 if gone else 1)


def test_people_see_the_settings_to_paste_too(capsys):
    show([], Facts(), "first\nsecond")
    assert "To switch:\n\n    first\n    second\n\n" in capsys.readouterr().out

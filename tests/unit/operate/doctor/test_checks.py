"""Each check finds what it is for, and nothing where all is well."""

import dataclasses
import json
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.aws.port import Location
from celery_sqs_visibility.operate.doctor import checks, queue_checks
from celery_sqs_visibility.operate.doctor.checks import CHECKS, findings_of
from celery_sqs_visibility.operate.doctor.facts import (
    Facts,
    Machine,
    ProbeResult,
    QueueFacts,
    Severity,
    TaskFacts,
)
from celery_sqs_visibility.policy.options import Options

DAY = 86_400
ARN = "arn:aws:sqs:eu-west-1:123456789012:"
URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/"
AMAZONS = Location("eu-west-1", "https://sqs.eu-west-1.amazonaws.com")
ERROR, WARNING, NOTE = Severity


def letters(name="proj-dead", days=14, **attributes):
    attributes = {"MessageRetentionPeriod": str(int(days * DAY)), **attributes}
    return QueueFacts(name=name, url=URL + name, location=AMAZONS, attributes=attributes)


def queue(receives=7, days=4, options=None, name="proj", dead="proj-dead", **changes):
    """A queue with nothing wrong; no `receives`: without a redrive policy."""
    policy = {"deadLetterTargetArn": ARN + dead, "maxReceiveCount": receives}
    redrive = {"RedrivePolicy": json.dumps(policy)} if receives else {}
    attributes = {"QueueArn": ARN + name, "MessageRetentionPeriod": str(int(days * DAY)), **redrive}
    known = {
        "name": name,
        "url": URL + name,
        "location": AMAZONS,
        "attributes": attributes,
        "options": Options.parse(options or {}).for_queue(name),
        "letters": letters(dead) if receives else None,
    }
    return QueueFacts(**{**known, **changes})


def facts(one=None, options=None, task=None, **changes):
    known = {
        "options": Options.parse(options or {}),
        "queues": (one or queue(options=options),),
        "tasks": (TaskFacts(**{"name": "proj.add", "queue": "proj", **(task or {})}),),
        "machine": Machine(clock_offset=0.2),
    }
    return Facts(**{**known, **changes})


def with_attributes(**attributes):
    known = queue()
    return dataclasses.replace(known, attributes={**known.attributes, **attributes})


HIDDEN = "ApproximateNumberOfMessagesNotVisible"


FOUND = [
    (WARNING, facts(queue(name="-q", attributes=None, exists=False)), "sqs queues create -- -q"),
    (ERROR, facts(queue(0, name="-q")), "aws sqs create-queue --region eu-west-1 --queue-name=-q-dead"),
    (WARNING, facts(queue(days=300 / DAY)), "it keeps a message for 5m"),
    (WARNING, facts(queue(attributes=None, exists=False)), "sqs queues create"),
    (ERROR, facts(queue(attributes=None, exists=False, may_be_created=False)), "correct its name or URL"),
    (
        WARNING,
        facts(queue(attributes=None, exists=None, problem="AccessDenied", denied=True)),
        "allow sqs:GetQueueUrl and sqs:GetQueueAttributes",
    ),
    (
        ERROR,
        facts(queue(attributes=None, exists=None, problem="AccessDenied", denied=True, url="")),
        "Workers do not start",
    ),
    (
        ERROR,
        facts(queue(attributes=None, exists=None, problem="no AWS credentials were found; set AWS_PROFILE")),
        "do as the sentence says",
    ),
    (ERROR, facts(queue(0)), "aws sqs create-queue --region eu-west-1 --queue-name proj-dead"),
    (WARNING, facts(queue(0, options={"when_exhausted": "keep"})), "comes back every hour"),
    (
        ERROR,
        facts(queue(0, name="a.fifo"), task={"queue": "a.fifo"}),
        "a-dead.fifo --attributes MessageRetentionPeriod=1209600,FifoQueue=true",
    ),
    (ERROR, facts(task={"max_retries": 10}), "4 of its 11 attempts never run"),
    (WARNING, facts(queue(4)), "takes an attempt away."),
    (WARNING, facts(queue(6)), "takes an attempt away after 2."),
    (ERROR, facts(queue(1000), task={"max_retries": 1000}), "max_retries=996 or less"),
    (WARNING, facts(queue(2), task={"max_retries": None}), "never failed"),
    (WARNING, facts(queue(1), task={"comes_back": False}), "never failed"),
    (
        WARNING,
        facts(queue(name="a.fifo", letters=letters("a-dead.fifo", days=1)), task={"queue": "a.fifo"}),
        "it keeps a message for 1d",
    ),
    (
        WARNING,
        facts(queue(0, options={"dead_letter_queue": "d"}, letters=letters("d", days=1))),
        "it keeps a message for 1d",
    ),
    (
        ERROR,
        facts(task={"delays": (43_200.0,) * 10, "max_retries": 10}),
        "10 failures come to 5d, and queue 'proj' keeps a message for 4d",
    ),
    (WARNING, facts(task={"delays": (43_200.0,) * 5}), '\'{"MessageRetentionPeriod": "432000"}\''),
    (ERROR, facts(task={"delays": (43_200.0,) * 30}), "lower max_retries or error_visibility_timeout"),
    (ERROR, facts(queue(letters=letters(days=1))), "for 1d"),
    (WARNING, facts(queue(letters=letters(days=4))), "first sending"),
    (ERROR, facts(queue(letters=QueueFacts(name="proj-dead", exists=False))), "does not exist"),
    (
        WARNING,
        facts(
            queue(
                letters=dataclasses.replace(
                    queue(name="proj-dead"),
                    attributes={**queue(name="proj-dead").attributes, "MessageRetentionPeriod": "1209600"},
                )
            )
        ),
        "a redrive policy of its own",
    ),
    (WARNING, facts(queues=(queue(), letters())), "one of the app's own queues"),
    (NOTE, facts(queue(0, name="a.fifo", letters=letters())), "'dead_letter_queue': 'proj-dead.fifo'"),
    (WARNING, facts(queue(0), task={"max_retries": None}), "until the message's retention ends (4d)"),
    (NOTE, facts(with_attributes(DelaySeconds="60")), "DelaySeconds is 60"),
    (
        WARNING,
        facts(with_attributes(**{HIDDEN: "119500"})),
        "119,500 of its messages are in flight, of about 120,000 at the most",
    ),
    # runs
    (
        ERROR,
        facts(options={"heartbeat_interval": 0}),
        "visibility_timeout is 2m, and task 'proj.add' may run longer",
    ),
    (WARNING, facts(options={"visibility_timeout": 20}), "they run twice"),
    (WARNING, facts(options={"heartbeat_interval": 2}), "too late"),
    (
        WARNING,
        facts(options={"queues": {"p*": {"visibility_timeout": 14400}}}),
        "{'queues': {'p*': {'visibility_timeout': 120}}}",
    ),
    (ERROR, facts(task={"time_limit": 50000}), "longer than 12 h"),
    (ERROR, facts(task={"soft_time_limit": 50000}), "longer than 12 h"),
    (WARNING, facts(task={"delays": (86400.0,)}), "hides a message for 12 h"),
    (WARNING, facts(task={"acks_late": False}), "acks_late=False"),
    (
        WARNING,
        facts(
            options={"shutdown_timeout": 25},
            machine=Machine(grace=10, grace_reason="Docker kills 10 s after SIGTERM"),
        ),
        "it is 25s, but Docker kills 10 s after SIGTERM",
    ),
    (NOTE, facts(options={"shutdown_timeout": 100}), "of 102 or more"),
    (
        WARNING,
        facts(options={"shutdown_timeout": 100}, machine=Machine(kubernetes=True)),
        "Kubernetes kills 30 s after SIGTERM",
    ),
    (WARNING, facts(machine=Machine(remapped=True)), "cut off at once"),
    (
        WARNING,
        facts(machine=Machine(remapped=True, grace=30), settings={"worker_soft_shutdown_timeout": 60}),
        "worker_soft_shutdown_timeout is 1m",
    ),
    (WARNING, facts(machine=Machine(clock_offset=-30.0)), "30s behind SQS's"),
    (ERROR, facts(machine=Machine(clock_offset=600.0)), "10m ahead of SQS's"),
    # settings
    (
        ERROR,
        facts(queue(permissions={"sqs:DeleteMessage": ProbeResult.DENIED})),
        "sqs:DeleteMessage is not allowed",
    ),
    (WARNING, facts(queue(permissions={"sqs:SendMessage": ProbeResult.DENIED})), "Producers cannot publish"),
    (
        WARNING,
        facts(
            queue(letters=dataclasses.replace(letters(), permissions={"sqs:SendMessage": ProbeResult.DENIED}))
        ),
        "come without a reason",
    ),
    (
        NOTE,
        facts(queue(permissions={"sqs:ReceiveMessage": ProbeResult.NOT_KNOWN})),
        "not known whether these are allowed: sqs:ReceiveMessage",
    ),
    (ERROR, facts(unbound={"proj.add": "Queue 'x' missing from task_queues"}), "raises QueueNotFound"),
    (
        WARNING,
        facts(scheduled={"nightly": "proj.nosuch", "daily": "proj.add"}, task_names=frozenset({"proj.add"})),
        "its task is 'proj.nosuch'",
    ),
    (WARNING, facts(scheduled={"nightly": None}), "its task is None"),
    (
        ERROR,
        facts(store_problem="Redis: TimeoutError: it is down."),
        "it cannot be used from here: Redis: TimeoutError: it is down",
    ),
    (
        WARNING,
        facts(options={"remote_control": True}, settings={"worker_enable_remote_control": False}),
        "the setting worker_enable_remote_control is False",
    ),
    (NOTE, facts(task={"repeats_by_default": True}), "charges it 4 times"),
    (WARNING, facts(task={"priority": 9}), "SQS has no priorities"),
    (WARNING, facts(options={"wait_time_seconds": 0}), "86,400 requests a day"),
    (NOTE, facts(options={"wait_time_seconds": 5}), "17,280 requests a day"),
    (NOTE, facts(options={"polling_interval_max": 60}), "sleep up to 1m"),
    (
        NOTE,
        facts(settings={"worker_enable_remote_control": True}),
        "broker_transport_options = {'remote_control': True}",
    ),
    (NOTE, facts(settings={"worker_send_task_events": True}), "No monitor gets these events"),
    (
        WARNING,
        facts(options={"remote_control": True}, control_permissions={"sqs:ListQueues": ProbeResult.DENIED}),
        "sqs:ListQueues is not allowed",
    ),
]


@pytest.mark.parametrize(("severity", "known", "words"), FOUND)
def test_what_is_wrong_is_found_with_a_remedy(severity, known, words):
    found = {" | ".join(dataclasses.astuple(each)[1:]): each for each in findings_of(known)}
    (finding,) = (each for text, each in found.items() if words in text)
    assert finding.severity is severity
    assert all((finding.thing, finding.problem, finding.consequence, finding.remedy))
    assert finding.consequence.endswith(".")
    assert not finding.problem.endswith(".")
    commands = [part for part in finding.remedy.split(" && ") if part.startswith("aws ")]
    assert all(command.split()[3:5] == ["--region", "eu-west-1"] for command in commands)


def test_where_all_is_well_nothing_is_found():
    assert findings_of(facts()) == []
    assert [check for check in CHECKS if not any(list(check(known)) for _, known, _ in FOUND)] == []


WELL = [
    # SQS has no longer retention than that of the dead-letter queue, and a FIFO queue's ages begin anew.
    facts(queue(days=14), task={"delays": (43_200.0,) * 3}),
    facts(queue(name="a.fifo", letters=letters("a-dead.fifo", days=4)), task={"queue": "a.fifo"}),
    facts(queue(0, options={"dead_letter_queue": "d"}, letters=letters("d", days=4))),
    facts(queue(3), task={"comes_back": False}),
    facts(queue(996), task={"max_retries": 992}),
    facts(queue(attributes=None, exists=None)),  # and nothing is known of it
    facts(options={"heartbeat_interval": 0}, task={"time_limit": 100}),
    facts(task={"time_limit": 100, "soft_time_limit": 50_000}),
    facts(queue(), task={"comes_back": False, "max_retries": 30}),
    facts(queue(1), tasks=()),
    facts(machine=Machine(remapped=True, grace=60), settings={"worker_soft_shutdown_timeout": 30}),
    facts(options={"shutdown_timeout": 100}, machine=Machine(grace=120)),
    facts(settings={"worker_prefetch_multiplier": 1, "broker_use_ssl": None, "result_backend": "redis://"}),
    facts(queue(permissions={"sqs:DeleteMessage": ProbeResult.ALLOWED})),
    facts(options={"remote_control": True}, settings={"worker_enable_remote_control": True}),
]


@pytest.mark.parametrize("known", WELL)
def test_what_only_looks_wrong_is_let_through(known):
    assert findings_of(known) == []


def test_a_command_of_an_emulators_queue_names_its_endpoint():
    emulators = Location("us-east-1", "http://127.0.0.1:9324")
    (finding,) = queue_checks.check_dead_letters(facts(queue(0, location=emulators)))
    assert finding.remedy.count("--region us-east-1 --endpoint-url http://127.0.0.1:9324 ") == 2


def test_tasks_that_repeat_exceptions_are_listed_by_name():
    tasks = [TaskFacts(name=f"t{n}", queue="proj", repeats_by_default=n % 2 == 0) for n in range(50)]
    (few,) = checks.check_repeats(facts(tasks=tuple(tasks[:5])))
    (many,) = checks.check_repeats(facts(tasks=tuple(tasks)))
    assert few.thing == "tasks 't0', 't2', 't4'"
    assert few.problem.startswith("after each exception they run again, up to 3 times")
    assert many.thing.endswith("'t36', 't38' and 5 more")


def test_the_worst_comes_first():
    found = findings_of(
        facts(queue(0), settings={"worker_send_task_events": True}, machine=Machine(clock_offset=9))
    )
    assert [finding.severity for finding in found] == [ERROR, WARNING, NOTE]


@given(st.integers(1, 1000), st.integers(0, 900))
def test_who_pastes_the_remedy_has_enough_receives(receives, max_retries):
    task = {"max_retries": max_retries}
    for finding in queue_checks.check_receives(facts(queue(receives), task=task)):
        attributes = json.loads(shlex.split(finding.remedy)[-1])
        pasted = int(json.loads(attributes["RedrivePolicy"])["maxReceiveCount"])
        assert pasted > receives
        assert not list(queue_checks.check_receives(facts(queue(pasted), task=task)))


@given(st.lists(st.floats(0, 43_200), max_size=60), st.floats(0.01, 14))
def test_who_pastes_the_remedy_has_a_retention_that_outlasts_the_delays(delays, days):
    task = {"delays": tuple(delays)}
    for finding in queue_checks.check_retention(facts(queue(days=days), task=task)):
        if finding.remedy.startswith("aws"):
            seconds = int(json.loads(shlex.split(finding.remedy)[-1])["MessageRetentionPeriod"])
            assert seconds > sum(delays)
            again = facts(queue(days=seconds / DAY), task=task)
            assert not [f for f in queue_checks.check_retention(again) if f.severity is ERROR]


@pytest.mark.parametrize(
    ("check", "one", "task"),
    [
        (queue_checks.check_retention, queue(days=1), {"delays": (43_200.0,) * 5}),
        (queue_checks.check_endless_retries, queue(0), {"max_retries": None}),
        (checks.check_horizon, queue(), {"time_limit": 50_000}),
        (checks.check_long_delays, queue(), {"delays": (86_400.0,)}),
        (checks.check_priorities, queue(), {"priority": 3}),
    ],
)
def test_all_tasks_that_are_to_be_changed_are_named(check, one, task):
    known = facts(one, task=task)
    tasks = tuple(dataclasses.replace(known.tasks[0], name=f"t{number}") for number in range(5))
    (finding,) = check(dataclasses.replace(known, tasks=tasks))
    assert finding.thing == "tasks 't0', 't1', 't2', 't3', 't4'"

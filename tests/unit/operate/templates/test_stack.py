"""What templates share: references, types, names, alarms."""

import pytest

from celery_sqs_visibility.operate.templates.stack import alarms_of, labels, referring, typed
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.provisioning import QueuePlan, plan_queues


def test_strings_of_a_document_are_replaced_wherever_they_are():
    document = {"a": ["x", {"b": "x", "x": 1}], "c": "xx"}
    assert referring(document, {"x": {"Ref": "X"}}) == {
        "a": [{"Ref": "X"}, {"b": {"Ref": "X"}, "x": 1}],
        "c": "xx",
    }


def test_repeated_names_have_numbers():
    plans = [QueuePlan("", name, {}) for name in ("a", "b", "a.fifo", "a-b")]
    assert list(labels(plans, lambda name: name[0]).values()) == ["a", "b", "a2", "a3"]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("DelaySeconds", "5", 5),
        ("FifoQueue", "True", True),
        ("KmsMasterKeyId", "1234", "1234"),
        ("Policy", '{"a": 1}', {"a": 1}),
        ("DeduplicationScope", "queue", "queue"),
    ],
)
def test_values_have_types(name, value, expected):
    assert typed(name, value) == expected


MODES = {"Minimum": min, "Maximum": max, "Sum": sum}

VISIBLE, IN_FLIGHT = "ApproximateNumberOfMessagesVisible", "ApproximateNumberOfMessagesNotVisible"
DELETED = "NumberOfMessagesDeleted"


def of_queues(*queues, **options):
    plans = plan_queues(queues, Options.parse(options), {})
    return {plan.sqs_name: {alarm.kind: alarm for alarm in alarms_of(plan)} for plan in plans}


def is_raised(alarm, **minutes):
    """Whether metrics with these values, each minute of a period, count towards the alarm."""
    values = {own: MODES[statistic](minutes[metric]) for own, (metric, statistic) in alarm.metrics.items()}
    if not alarm.expression:
        return next(iter(values.values())) >= alarm.threshold
    expression = alarm.expression.replace(" AND ", " and ")  # and else in CloudWatch's words
    functions = {
        "IF": lambda condition, then, otherwise: then if condition else otherwise,
        "FILL": lambda value, _instead: value,
    }
    return eval(expression, functions, values) >= alarm.threshold


@pytest.mark.parametrize(
    ("waiting", "in_flight", "deleted", "expected"),
    [
        ([5] * 5, [0] * 5, [0] * 5, True),  # no worker
        ([5] * 5, [8] * 5, [0] * 5, False),  # long tasks take all slots for hours
        ([0] * 5, [8] * 5, [0] * 5, False),  # and nothing else waits
        ([5] * 5, [0] * 5, [0, 1, 0, 0, 0], False),  # short ones are done between two looks
        ([5, 5, 0, 5, 5], [0] * 5, [0] * 5, False),  # it was empty in between
        ([0] * 5, [0] * 5, [0] * 5, False),  # idle
        ([5] * 5, [0, 0, 1, 0, 0], [0] * 5, False),  # a task failed, and waits for its retry
    ],
)
def test_a_backlog_is_an_alarm_where_nobody_works(waiting, in_flight, deleted, expected):
    alarm = of_queues("q")["q"]["not-consumed"]
    metrics = {VISIBLE: waiting, IN_FLIGHT: in_flight, DELETED: deleted}
    assert is_raised(alarm, **metrics) is expected
    assert (alarm.periods, alarm.missing) == (3, "notBreaching")


@pytest.mark.parametrize(("in_flight", "expected"), [(95_999, False), (96_000, True)])
def test_four_fifths_of_the_quota_are_an_alarm(in_flight, expected):
    alarm = of_queues("q")["q"]["in-flight"]
    assert is_raised(alarm, **{IN_FLIGHT: [0, in_flight, 0]}) is expected


@pytest.mark.parametrize(("letters", "expected"), [([0, 0], False), ([0, 1], True)])
def test_one_dead_letter_is_an_alarm(letters, expected):
    alarm = of_queues("q")["q-dead"]["dead-letters"]
    assert is_raised(alarm, **{VISIBLE: letters}) is expected


def test_a_dead_letter_queue_waits_for_nobody():
    assert {name: list(alarms) for name, alarms in of_queues("q", "a-dead").items()} == {
        "q-dead": ["dead-letters"],
        "q": ["in-flight", "not-consumed"],
        "a-dead": ["dead-letters"],
    }
    assert list(of_queues("q", dead_letter_queue="letters")["letters"]) == ["dead-letters"]

"""Whether a failed run comes back, how often, and after how long."""

import pytest
from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded, WorkerLostError
from support.clock import FakeClock
from support.factories import running, sqs_facts

from celery_sqs_visibility import VisibilityTask
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON_SECONDS
from celery_sqs_visibility.policy.retries import CELERY_RETRY_DELAY_SECONDS
from celery_sqs_visibility.task import retries
from celery_sqs_visibility.task.retries import EVERY_EXCEPTION

ERROR = KeyError("no")


def nothing():
    pass


def make(app, **options):
    return app.task(nothing, name="task", shared=False, **options)


def delay(task, exc=ERROR, *, countdown=None, explicit=False, **request):
    with running(task, **request) as context:
        return task.delay_after(context, exc, countdown, explicit=explicit)


class Methodical(VisibilityTask):
    seconds = 5

    def error_visibility_timeout(self, retries, exc):
        return self.seconds + retries


class Static(VisibilityTask):
    error_visibility_timeout = staticmethod(lambda retries, exc: 6 + retries)


class OfTheClass(VisibilityTask):
    seconds = 7
    error_visibility_timeout = classmethod(lambda cls, retries, exc: cls.seconds + retries)


class AskingForLess(Exception):
    retry_after = 4


@pytest.mark.parametrize(
    ("options", "exc", "comes_back"),
    [
        ({}, ERROR, True),
        ({"dont_autoretry_for": (LookupError,)}, ERROR, False),
        ({"dont_autoretry_for": (LookupError,)}, OSError(), True),
        ({"autoretry_for": (OSError,)}, ERROR, False),
        ({"autoretry_for": (OSError,)}, ConnectionError(), True),
        ({"autoretry_for": (OSError,), "dont_autoretry_for": (ConnectionError,)}, ConnectionError(), False),
        ({"autoretry_for": ()}, ERROR, False),
        ({"throws": (KeyError,)}, ERROR, True),  # it is about what is logged
        ({"autoretry_for": ()}, SoftTimeLimitExceeded(), True),
        ({"autoretry_for": ()}, TimeLimitExceeded(), True),
        ({"autoretry_for": ()}, WorkerLostError(), True),
        ({"dont_autoretry_for": (TimeLimitExceeded,)}, TimeLimitExceeded(), False),
    ],
)
def test_an_exception_comes_back_unless_the_task_says_otherwise(app, options, exc, comes_back):
    assert make(app, **options).comes_back(exc) is comes_back


@pytest.mark.parametrize(
    ("options", "published_limit", "limit"),
    [
        ({}, None, 3),  # Celery's default
        ({"max_retries": None}, None, None),
        ({"max_retries": 7}, None, 7),
        ({"max_retries": 7, "retry_kwargs": {"max_retries": 2}}, None, 2),
        ({"max_retries": 7}, 9, 9),
        ({"max_retries": 7}, 0, 0),
    ],
)
def test_the_limit_is_the_messages_or_else_the_tasks(app, options, published_limit, limit):
    task = make(app, **options)
    with running(task, visibility_max_retries=published_limit) as request:
        assert task.limit_of(request) == limit


@pytest.mark.parametrize(
    ("options", "delays"),
    [
        ({"error_visibility_timeout": 60}, [60, 60, 60]),
        ({"error_visibility_timeout": [1, 5]}, [1, 5, 5]),
        ({"error_visibility_timeout": lambda retries, exc: 10 * 2**retries}, [10, 20, 40]),
        ({"base": Methodical}, [5, 6, 7]),
        ({"base": Static}, [6, 7, 8]),
        ({"base": OfTheClass}, [7, 8, 9]),
        ({"retry_backoff": 3, "retry_jitter": False}, [3, 6, 12]),
        ({"retry_backoff": True, "retry_jitter": False, "retry_backoff_max": 3}, [1, 2, 3]),
        ({"error_visibility_timeout": 60, "retry_backoff": True}, [60, 60, 60]),
        ({"default_retry_delay": 30}, [30, 30, 30]),
        ({"default_retry_delay": 30, "retry_backoff": 3, "retry_jitter": False}, [3, 6, 12]),
        ({}, [None, None, None]),
    ],
)
def test_the_delay_is_the_tasks_own_rule_of_the_attempt(app, options, delays):
    task = make(app, **options)
    assert [delay(task, retries=retries) for retries in range(3)] == delays


def test_a_countdown_goes_before_the_exceptions_wish_and_that_before_the_rules_and_those_before_celerys(app):
    task = make(app, error_visibility_timeout=60)
    assert delay(task, AskingForLess(), countdown=2) == 2
    assert delay(task, AskingForLess()) == 4
    assert delay(task, explicit=True) == 60
    assert delay(app.task(nothing, name="plain", shared=False), explicit=True) == CELERY_RETRY_DELAY_SECONDS


def test_a_rule_that_raises_leaves_the_delay_to_the_next_and_is_logged(app, caplog):
    task = make(app, error_visibility_timeout=lambda retries, exc: 1 / 0, default_retry_delay=30)
    assert delay(task) == 30
    assert "error_visibility_timeout of task task failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("option", [7, "7", [7, 9]], ids=["number", "text", "list"])
def test_the_transports_option_is_for_tasks_that_set_none(option):
    with Celery("test", task_cls=VisibilityTask, set_as_current=False) as app:
        app.conf.broker_transport = "celery_sqs_visibility"
        app.conf.broker_transport_options = {"error_visibility_timeout": option}
        assert delay(make(app)) == 7
        assert delay(app.task(nothing, name="other", shared=False, error_visibility_timeout=60)) == 60


@pytest.mark.parametrize("hours", [-30, 0, 30])
def test_no_delay_is_longer_than_what_is_left_of_the_12_hours_whatever_the_wall_clock_does(
    app, monkeypatch, hours
):
    clock = FakeClock()
    monkeypatch.setattr(retries, "SYSTEM_CLOCK", clock)
    task = make(app, error_visibility_timeout=600)
    sqs = {"queue": "q", "receive_count": 1, "horizon": clock.monotonic() + VISIBILITY_HORIZON_SECONDS}
    clock._wall += hours * 3600
    assert delay(task, sqs=sqs) == 600
    clock.advance(VISIBILITY_HORIZON_SECONDS - 300)
    assert 290 <= delay(task, sqs=sqs) <= 300
    clock.advance(305)
    assert delay(task, sqs=sqs) == 0


def test_the_last_rule_is_the_option_of_the_queue_that_the_message_came_from():
    queues = {"reports": {"error_visibility_timeout": [60, 600]}}
    with Celery("test", task_cls=VisibilityTask, set_as_current=False) as app:
        app.conf.broker_transport = "celery_sqs_visibility"
        app.conf.broker_transport_options = {"error_visibility_timeout": 5, "queues": queues}
        task = make(app)
        delays = [delay(task, sqs=sqs_facts(queue=queue), retries=1) for queue in ("reports", "other")]
        assert delays == [600, 5]


def test_the_default_of_autoretry_for_says_what_it_means():
    assert repr(EVERY_EXCEPTION) == "(Exception,)"


@pytest.mark.parametrize(
    ("options", "delays"),
    [
        ({}, [10, 20, 7]),
        ({"retry_backoff": 3, "retry_jitter": False}, [10, 20, 12]),
        ({"error_visibility_timeout": 60}, [60, 60, 60]),
    ],
)
def test_the_backoff_policy_of_its_queue_goes_before_celerys_rules_and_after_the_tasks_own(options, delays):
    url = "https://sqs.us-east-1.amazonaws.com/1/a-b"
    policy = {"url": url, "backoff_policy": {1: 10, 2: 20}, "backoff_tasks": ["task"]}
    with Celery("test", task_cls=VisibilityTask, set_as_current=False) as app:
        app.conf.broker_transport = "celery_sqs_visibility"
        app.conf.broker_transport_options = {
            "predefined_queues": {"a-b": policy},
            "error_visibility_timeout": 7,
        }
        task = make(app, **options)
        facts = [sqs_facts(receive_count=retries + 1, queue="a.b") for retries in range(3)]
        assert [delay(task, retries=n, sqs=sqs) for n, sqs in enumerate(facts)] == delays
        assert delay(task, sqs=sqs_facts(queue="another")) != 10

"""Settings of tasks, and options in Django's checks."""

from types import SimpleNamespace

import pytest
from celery import Celery, Task
from celery.exceptions import ImproperlyConfigured

from celery_sqs_visibility import VisibilityTask
from celery_sqs_visibility.task.settings import check_app, refuse_on_other_tasks, warn_of_another_broker


def run():
    pass


MISSPELT = {
    "error_visiblity_timeout": "error_visibility_timeout",
    "error_visibility_timeouts": "error_visibility_timeout",
    "when_exausted": "when_exhausted",
    "sqs_events": "sqs_event",
}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"acks_late": False}, "acks_late=False"),
        ({"error_visibility_timeout": -1}, "expected error_visibility_timeout to be between 0 and 43200"),
        ({"error_visibility_timeout": []}, "expected error_visibility_timeout to hold at least one"),
        ({"error_visibility_timeout": [1, "2"]}, r"error_visibility_timeout\[1\] to be seconds"),
        ({"error_visibility_timeout": lambda retries: 1}, "to take two arguments"),
        ({"when_exhausted": "kept"}, "expected when_exhausted to be 'delete' or 'keep', got 'kept'"),
        ({"when_lost": "end"}, "expected when_lost to be 'continue' or 'terminate', got 'end'"),
        ({"exclusive": "yes"}, "expected exclusive to be"),
        ({"exclusive": 1}, "expected exclusive to be"),
        ({"exclusive_ttl": -1}, "expected exclusive_ttl to be"),
        *(
            ({"inactivity_timeout": value}, r"expected inactivity_timeout to be .*, got")
            for value in (0, 0.9, 43_201, True, "soon", -5, float("nan"))
        ),
        ({"brake_on": "ConnectionError"}, r"expected brake_on to be exception classes, .*'ConnectionError'"),
        ({"brake_on": (OSError, 5)}, "expected brake_on to be exception classes"),
        ({"brake_on": (int,)}, "expected brake_on to be exception classes"),
        ({"brake_on": OSError, "brake": ""}, "expected brake to be a name, and brake_on beside it, got ''"),
        ({"brake_on": OSError, "brake": 5}, "expected brake to be a name"),
        ({"brake": "bank"}, "expected brake to be a name, and brake_on beside it, got 'bank'"),
        *(({name: 60}, f"{name!r}: did you mean {meant!r}") for name, meant in MISSPELT.items()),
    ],
    ids=lambda value: "" if isinstance(value, str) else str([*value.items()])[:50].partition(" at 0x")[0],
)
def test_a_wrong_or_misspelt_setting_is_refused_with_the_tasks_name(app, options, sentence):
    app.task(name="wrong", shared=False, **options)(run)
    with pytest.raises(ImproperlyConfigured, match=f"task 'wrong'.*{sentence}"):
        app.finalize()


@pytest.mark.parametrize(
    ("value", "seconds"), [(None, None), (1, 1), (2.5, 2.5), ("30", 30), (43_200, 43_200)]
)
def test_an_inactivity_timeout_may_be_text(app, value, seconds):
    task = app.task(name="watched", base=VisibilityTask, inactivity_timeout=value, shared=False)(run)
    app.finalize()
    assert task.inactivity_timeout == seconds


@pytest.mark.parametrize(
    ("given", "classes"),
    [
        ((), ()),
        (OSError, (OSError,)),
        ([OSError, KeyError], (OSError, KeyError)),
        ((TimeoutError,), (TimeoutError,)),
    ],
)
def test_a_brake_takes_exception_classes(app, given, classes):
    task = app.task(name="braked", base=VisibilityTask, brake_on=given, shared=False)(run)
    app.finalize()
    assert task.brake_on == classes


def test_a_misspelt_setting_of_a_base_class_is_refused(app):
    class Base(VisibilityTask):
        error_visibilty_timeout = 60

    app.task(name="wrong", base=Base, shared=False)(run)
    with pytest.raises(ImproperlyConfigured, match="'error_visibilty_timeout'"):
        app.finalize()


def test_members_of_the_users_own_are_let_be(app):
    class Base(VisibilityTask):
        _when_lost = "terminate"

        def on_exhaust(self):
            """A method."""

        @property
        def when_losts(self):
            """A property."""

    app.task(name="right", base=Base, shared=False)(run)
    app.finalize()


def test_names_of_the_users_own_are_let_be(app):
    app.task(
        shared=False, on_post="x", on_last=1, visibility=60, error_timeout=3, on_close=print, on_exhaust=print
    )(run)
    app.finalize()


@pytest.mark.parametrize(
    "options",
    [
        {"error_visibility_timeout": 60},
        {"when_lost": "terminate"},
        {"when_exhausted": "keep"},
        {"exclusive": True},
        {"exclusive": lambda args, kwargs: args[0]},
        {"exclusive_ttl": 60},
        {"sqs_event": "s3:*"},
        {"sqs_event_per": "message"},
        {"brake_on": (OSError,)},
    ],
    ids=lambda options: " ".join(f"{name} {type(value).__name__}" for name, value in options.items()),
)
def test_a_setting_of_a_task_that_is_no_visibility_task_is_refused(app, options):
    (name,) = options
    task = app.task(name="plain", base=Task, shared=False, **options)(run)
    with pytest.raises(ImproperlyConfigured, match=f"task 'plain' has {name}=.*give the task base=Visib"):
        refuse_on_other_tasks([task])


def test_tasks_of_ours_and_hooks_of_the_users_own_are_let_be(app):
    ours = app.task(name="ours", shared=False, error_visibility_timeout=60)(run)
    plain = app.task(name="plain", base=Task, shared=False, when_lost=print, exclusive=False)(run)
    refuse_on_other_tasks([ours, plain])


@pytest.mark.parametrize(
    ("broker", "base", "warnings"),
    [
        ("memory://", VisibilityTask, 1),
        ("memory://", Task, 0),
        ("celery-sqs-visibility://", VisibilityTask, 0),
    ],
)
def test_a_worker_on_another_broker_says_that_tasks_of_ours_are_plain_there(broker, base, warnings, caplog):
    with Celery("other", set_as_current=False, broker=broker) as app:
        tasks = {"work": app.task(name="work", base=base, shared=False, lazy=False)(run)}
        # Of its own alone: an app has the shared tasks of all modules that this process has imported, too.
        alone = SimpleNamespace(tasks=tasks, connection_for_read=app.connection_for_read)
        warn_of_another_broker(SimpleNamespace(app=alone))
    assert len(caplog.messages) == warnings
    for message in caplog.messages:
        assert "'work'" in message
        assert "'memory'" in message
        assert "set broker_transport = 'celery_sqs_visibility'" in message


@pytest.fixture
def django_app():
    with Celery("shop", task_cls=VisibilityTask, set_as_current=False) as app:
        app.conf.broker_transport = "celery_sqs_visibility"
        yield app


def found(app):
    return [error.msg for error in check_app(app)]


def test_good_options_are_no_error(django_app):
    django_app.conf.broker_transport_options = {"visibility_timeout": 30}
    django_app.task(name="good", shared=False, error_visibility_timeout=[1, 2])(run)
    assert found(django_app) == []


def test_each_wrong_option_is_an_error(django_app):
    django_app.conf.broker_transport_options = {"visibility_timeut": 30, "wait_time_seconds": 21}
    first, second = found(django_app)
    assert "did you mean 'visibility_timeout'?" in first
    assert "expected wait_time_seconds to be between 0 and 20 seconds" in second


def test_a_wrong_setting_of_a_task_is_an_error(django_app):
    django_app.task(name="bad", shared=False, error_visibility_timout=30)(run)
    (error,) = found(django_app)
    assert error.startswith("task 'bad': there is no setting 'error_visibility_timout'")


@pytest.mark.parametrize("url", ["sqs://", "memory://"])
def test_other_transports_options_are_not_looked_at(django_app, url):
    options = {"visibility_timeut": 30}
    django_app.conf.update(broker_transport=None, broker_url=url, broker_transport_options=options)
    assert found(django_app) == []

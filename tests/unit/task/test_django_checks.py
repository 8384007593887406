"""Wrong options are found by Django's `manage.py check`."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_sqs_visibility import VisibilityTask

checks = pytest.importorskip("celery_sqs_visibility.task.settings", exc_type=ImportError)


@pytest.fixture
def app():
    with Celery("shop", task_cls=VisibilityTask, set_as_current=False) as app:
        app.conf.broker_transport = "celery_sqs_visibility"
        yield app


def run():
    """A task."""


def found(app):
    return [error.msg for error in checks.check_app(app)]


def test_good_options_are_no_error(app):
    app.conf.broker_transport_options = {"visibility_timeout": 30}
    app.task(name="good", shared=False, error_visibility_timeout=[1, 2])(run)
    assert found(app) == []


def test_each_wrong_option_is_an_error(app):
    app.conf.broker_transport_options = {"visibility_timeut": 30, "wait_time_seconds": 21}
    first, second = found(app)
    assert "did you mean 'visibility_timeout'?" in first
    assert "expected wait_time_seconds to be between 0 and 20 seconds" in second


def test_a_wrong_setting_of_a_task_is_an_error(app):
    app.task(name="bad", shared=False, error_visibility_timout=30)(run)
    (error,) = found(app)
    assert error.startswith("task 'bad': there is no setting 'error_visibility_timout'")


@pytest.mark.parametrize("url", ["sqs://", "memory://"])
def test_other_transports_options_are_not_looked_at(app, url):
    app.conf.update(broker_transport=None, broker_url=url, broker_transport_options={"visibility_timeut": 30})
    assert found(app) == []

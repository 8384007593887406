"""The task base where there is no SQS, and its settings."""

from __future__ import annotations

import pytest
from celery import Celery
from celery.app.task import Context
from celery.exceptions import ImproperlyConfigured, Retry
from support.clock import FakeClock

from celery_sqs_visibility import VisibilityTask
from celery_sqs_visibility.policy.quotas import VISIBILITY_HORIZON
from celery_sqs_visibility.task import retries
from celery_sqs_visibility.task.retries import EVERY_EXCEPTION
from celery_sqs_visibility.task.tracing import VisibilityRetry


@pytest.fixture
def app():
    app = Celery(
        "test", task_cls=VisibilityTask, set_as_current=False, broker="memory://", backend="cache+memory://"
    )
    yield app
    app.close()


def failing():
    raise ValueError("no")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"acks_late": False}, "acks_late=False"),
        ({"error_visibility_timeout": -1}, "expected error_visibility_timeout to be between 0 and 43200"),
        ({"error_visibility_timeout": []}, "expected error_visibility_timeout to hold at least one number"),
        ({"error_visibility_timeout": [1, "2"]}, r"expected error_visibility_timeout\[1\] to be seconds"),
        ({"error_visibility_timeout": lambda retries: 1}, "to take two arguments"),
        ({"on_exhausted": "kept"}, "expected on_exhausted to be 'delete' or 'keep', got 'kept'"),
    ],
)
def test_bad_settings_are_refused_with_the_tasks_name(app, options, sentence):
    app.task(name="wrong", shared=False, **options)(failing)
    with pytest.raises(ImproperlyConfigured, match=f"task 'wrong'.*{sentence}"):
        app.finalize()


def test_called_directly_it_is_a_plain_function(app):
    task = app.task(failing, shared=False)
    with pytest.raises(ValueError, match="no"):
        task()


def test_eagerly_it_is_a_plain_task_and_fails_at_once(app):
    runs = []

    @app.task(shared=False, error_visibility_timeout=60)
    def eager():
        runs.append(1)
        raise ValueError("no")

    result = eager.apply()
    assert result.state == "FAILURE"
    assert len(runs) == 1


def test_eagerly_celerys_own_retries_are_celerys(app):
    runs = []

    @app.task(
        shared=False,
        bind=True,
        autoretry_for=(ValueError,),
        max_retries=2,
        retry_backoff=False,
        default_retry_delay=0,
    )
    def eager(self):
        runs.append(self.request.retries)
        raise ValueError("no")

    assert eager.apply().state == "FAILURE"
    assert runs == [0, 1, 2]


def test_there_is_no_sqs_in_its_request_elsewhere(app):
    @app.task(shared=False, bind=True)
    def look(self):
        return self.request.sqs

    assert look.apply().get() is None


def test_the_default_of_autoretry_for_says_what_it_means():
    assert repr(EVERY_EXCEPTION) == "(Exception,)"


def test_a_visibility_retry_survives_the_way_from_child_to_parent():
    retry = VisibilityRetry(None, ValueError("no"), 2.5)
    make, arguments = retry.__reduce__()[:2]
    again = make(*arguments)
    assert isinstance(again, Retry)
    assert again.delay == 2.5
    assert str(again) == "Retry in 2.5s: ValueError('no')"
    assert str(VisibilityRetry(None, ValueError("no"))) == (
        "Retry when its visibility timeout runs out: ValueError('no')"
    )


@pytest.mark.parametrize("hours", [-30, 0, 30])
def test_a_jump_of_the_wall_clock_changes_no_delay(app, monkeypatch, hours):
    clock = FakeClock()
    monkeypatch.setattr(retries, "SYSTEM_CLOCK", clock)
    task = app.task(failing, shared=False, error_visibility_timeout=600)
    # As `DeliveryRequest` describes a delivery, whatever the wall clock said then.
    sqs = {"receive_count": 1, "max_receive_count": None, "received": clock.wall()}
    request = Context(retries=0, sqs={**sqs, "horizon": clock.monotonic() + VISIBILITY_HORIZON})
    clock._wall += hours * 3600
    assert task.delay_after(request, ValueError("no")) == 600
    clock.advance(VISIBILITY_HORIZON - 300)
    assert 290 <= task.delay_after(request, ValueError("no")) <= 300


def test_a_task_class_can_be_run_without_an_app():
    class Adding(VisibilityTask):
        name = "adding"

        def run(self, x, y):
            return x + y

    assert Adding().run(1, 2) == 3

"""States that a run stores before it is over."""

import pytest
from celery import states

from celery_sqs_visibility import VisibilityTask
from celery_sqs_visibility.task.context import DeliveryContext
from celery_sqs_visibility.task.stored_state import store_retry, store_state


@pytest.fixture
def stored(app, monkeypatch):
    """The (id, state, result, traceback) that the result backend was given."""
    stored = []

    def store_result(task_id, result, state, traceback=None, **_options):
        stored.append((task_id, state, result, traceback))

    monkeypatch.setattr(app.backend, "store_result", store_result)
    return stored


def nothing():
    pass


def make_task(app, **options):
    return app.task(nothing, name="task", base=VisibilityTask, shared=False, **options)


@pytest.mark.parametrize("request_", [{}, {"ignore_result": True}], ids=repr)
@pytest.mark.parametrize("options", [{}, {"ignore_result": True}], ids=repr)
@pytest.mark.parametrize("kept", [True, False], ids=["errors are stored", "nothing is stored"])
@pytest.mark.parametrize("state", [states.RETRY, states.STARTED])
def test_of_an_ignored_result_is_stored_what_celery_would(app, stored, request_, options, kept, state):
    task = make_task(app, store_errors_even_if_ignored=kept, **options)
    store_state(task, DeliveryContext(id="a", **request_), 1, state)
    ignored = bool(request_ or options) and not (kept and state == states.RETRY)
    assert stored == ([] if ignored else [("a", state, 1, None)])


@pytest.mark.parametrize("exc", [None, "a reason", ValueError("no")], ids=repr)
def test_a_retrys_exception_is_stored_with_its_traceback(app, stored, exc):
    request = DeliveryContext(id="a")
    store_retry(make_task(app), request, exc)
    error, told = (exc, "ValueError: no\n") if isinstance(exc, ValueError) else (None, None)
    assert stored == [("a", states.RETRY, error, told)]
    assert request.visibility_retry_stored

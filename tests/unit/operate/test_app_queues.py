from __future__ import annotations

import pytest
from celery.exceptions import CDeprecationWarning
from support.app import close_app, make_app, without_shared_tasks

from celery_sqs_visibility import VisibilityTask
from celery_sqs_visibility.operate.app_queues import _routes
from celery_sqs_visibility.transport.task_queues import max_retries_by_queue, queue_of_task


@pytest.fixture
def app(monkeypatch):
    without_shared_tasks(monkeypatch)

    def by_arguments(name, args, kwargs, options, **_):
        return {"queue": "big"} if args[0] > 9 else None

    app = make_app("app", {"task_default_queue": "own"}, set_as_current=False)
    app.conf.task_routes = ({"routed": {"queue": "other"}}, by_arguments)
    yield app
    close_app(app)


def test_a_tasks_retries_count_in_the_queue_that_it_goes_to(app):
    def run(): ...

    for name, options in {"routed": {}, "plain": {"max_retries": 8}}.items():
        app.task(name=name, base=VisibilityTask, **options)(run)
    app.task(name="stock", max_retries=99)(run)
    app.finalize()
    assert max_retries_by_queue(app) == {"other": [3], "own": [8]}
    assert list(app.amqp.queues) == ["own"], "a worker without -Q consumes all of them"


def test_a_tasks_own_queue_and_routes_in_pairs_count_too(app):
    app.conf.task_routes = [[("routed.*", {"queue": "in pairs"}), ("broken",)]]

    @app.task(name="own", base=VisibilityTask, queue="of the task")
    def run(): ...

    with pytest.warns(CDeprecationWarning, match="'queue' task attribute"):
        app.finalize()
    assert queue_of_task(app, app.tasks["own"]) == "of the task"
    assert list(_routes(app.conf.task_routes)) == [{"queue": "in pairs"}]

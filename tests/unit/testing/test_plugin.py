"""The plug-in for pytest, in projects of their own: its fixtures, and its silence without them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

EXAMPLES = Path(__file__).parents[3] / "examples"

PROJECT = """
    from celery import Celery
    from celery_sqs_visibility import VisibilityTask

    app = Celery("shop", task_cls=VisibilityTask)
    app.conf.update(
        broker_transport="celery_sqs_visibility",
        broker_transport_options={"polling_interval": 0, "wait_time_seconds": 1},
        task_default_queue="orders",
    )

    @app.task(error_visibility_timeout=[1, 1], max_retries=2)
    def fails():
        raise ValueError("no")

    @app.task(error_visibility_timeout=[10, 60, 300], max_retries=3)
    def backs_off():
        raise ValueError("no")

    @app.task
    def add(a, b):
        return a + b
"""

STRICT = """
    [pytest]
    filterwarnings = error
    addopts = -p no:xdist -p no:timeout
"""


@pytest.fixture
def project(pytester, monkeypatch):
    """A project and its tests, run in a process of its own."""
    for variable in ("AWS_ENDPOINT_URL_SQS", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(variable, raising=False)
    pytester.makepyfile(shop=PROJECT)
    pytester.makeini(STRICT)
    monkeypatch.setenv("PYTHONPATH", str(pytester.path), prepend=os.pathsep)

    def run(code):
        pytester.makepyfile(test_shop=code)
        return pytester.runpytest_subprocess("-q", timeout=120)

    return run


def test_it_imports_nothing_and_warns_of_nothing_before_a_fixture_is_used(project):
    result = project(
        """
        import sys

        def test_quiet():
            names = [name for name in sys.modules if name.startswith("celery_sqs_visibility")]
            assert set(names) <= {
                "celery_sqs_visibility",
                "celery_sqs_visibility.alias",
                "celery_sqs_visibility.testing",
                "celery_sqs_visibility.testing.plugin",
            }
            assert not {"boto3", "botocore", "moto"} & set(sys.modules)
        """
    )
    result.assert_outcomes(passed=1, warnings=0)


def test_turned_time_is_a_fixture(project):
    result = project(
        """
        from shop import backs_off

        def test_backoff(sqs_time):
            account = sqs_time.run(backs_off.s())
            assert (account.runs, account.hidden) == (4, [10, 60, 300])
        """
    )
    result.assert_outcomes(passed=1)


@pytest.mark.slow("it starts a server and workers")
def test_a_worker_in_the_tests_process_and_one_beside_it_are_accounted_for(project):
    result = project(
        """
        import pytest
        from shop import add, app, fails

        def check(account):
            assert account.runs == 3
            assert account.hidden == [1, 1]
            assert account.dead_letter.reason == "failed at its last attempt"

        def test_embedded(sqs_worker, sqs_account):
            sqs_worker(app)
            result = fails.delay()
            check(sqs_account.of(result))

        def test_process(sqs_worker, sqs_account):
            worker = sqs_worker.process("shop", app=app)
            first, second = fails.delay(), add.delay(2, 3)
            check(sqs_account.of(first))
            assert sqs_account.of(second).runs == 1
            assert "ready" in worker.log

        def test_a_worker_that_cannot_start_tells_why(sqs_worker):
            with pytest.raises(RuntimeError, match="no_such_project"):
                sqs_worker.process("no_such_project", app=app)

        def test_waiting_is_bounded(sqs_queues, sqs_account):
            sqs_queues.create(app)
            with pytest.raises(TimeoutError, match="nothing happened to it so far"):
                sqs_account.of(add.delay(1, 1), timeout=0.2)

        def test_queues_of_a_test_are_gone_in_the_next(sqs_server, sqs_queues):
            import boto3

            queues = boto3.client("sqs")
            assert "QueueUrls" not in queues.list_queues()
            (queue,) = sqs_queues.create(app)
            assert queue.url.startswith(sqs_server.url)
            attributes = queues.get_queue_attributes(QueueUrl=queue.url, AttributeNames=["RedrivePolicy"])
            assert "orders-dead" in attributes["Attributes"]["RedrivePolicy"]
        """
    )
    result.assert_outcomes(passed=5)


@pytest.mark.slow("it starts a server and workers")
def test_the_example_projects_own_tests_pass(project, pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES), prepend=os.pathsep)
    pytester.makepyfile(test_workers=(EXAMPLES / "proj/tests/test_workers.py").read_text())
    pytester.runpytest_subprocess("-q", "test_workers.py", timeout=120).assert_outcomes(passed=2)


@pytest.mark.slow("it starts a server and workers")
def test_a_worker_survives_the_death_of_another(project):
    result = project(
        """
        from shop import add, app

        def test_killed(sqs_worker, sqs_account):
            first = sqs_worker.process("shop", app=app)
            first.kill()
            sqs_worker.process("shop", app=app)
            assert sqs_account.of(add.delay(1, 2)).deleted
        """
    )
    result.assert_outcomes(passed=1)


def test_this_process_has_the_entry_point(pytestconfig):
    assert pytestconfig.pluginmanager.hasplugin("celery_sqs_visibility")
    assert "celery_sqs_visibility.testing.plugin" in sys.modules

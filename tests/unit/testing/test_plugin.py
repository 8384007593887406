"""The plug-in for pytest, in projects of their own: its fixtures, and its silence without them."""

import os
import sys
from pathlib import Path

import pytest
from support.processes import is_alive, wait_until

from celery_sqs_visibility.testing import server

pytest_plugins = ["pytester"]

EXAMPLES = Path(__file__).parents[3] / "examples"

PROJECT = """
    from celery import Celery
    from celery_sqs_visibility import VisibilityTask

    app = Celery("shop", task_cls=VisibilityTask)
    app.conf.update(
        broker_transport="celery_sqs_visibility",
        broker_transport_options={"polling_interval": 0, "wait_time_seconds": 1, "visibility_timeout": 10},
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
            # Its last poll is still open, and may get the message.
            assert sqs_account.of(add.delay(1, 2)).deleted
        """
    )
    result.assert_outcomes(passed=1)


@pytest.mark.slow("it starts a server")
def test_other_endpoints_and_proxies_do_not_count_and_queues_that_were_there_stay(project, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    result = project(
        """
        from celery_sqs_visibility.testing.server import AppQueues
        from shop import app

        def test_queues(sqs_server):
            first, second = AppQueues(), AppQueues()
            (queue,) = first.create(app)
            assert queue.url.startswith(sqs_server.url)
            second.create(app)
            second.delete()
            assert len(queue.sqs.list_queues("")) == 2
            first.delete()
            assert queue.sqs.list_queues("") == []
        """
    )
    result.assert_outcomes(passed=1)


@pytest.mark.slow("it starts a server")
def test_workers_that_would_hang_or_test_nothing_are_refused(project):
    result = project(
        """
        import pytest
        from celery.exceptions import ImproperlyConfigured
        from celery.worker import state
        from shop import app

        def test_turned(sqs_worker, sqs_time):
            for start in (lambda: sqs_worker(app), lambda: sqs_worker.process("shop", app=app)):
                with pytest.raises(RuntimeError, match="not in one test with turned time"):
                    start()

        def test_pool(sqs_worker):
            with pytest.raises(ValueError, match="got 'prefork': use sqs_worker.process"):
                sqs_worker(app, pool="prefork")

        def test_after_a_worker_that_hangs(sqs_worker, monkeypatch):
            monkeypatch.setattr(state, "should_terminate", 0)  # as Celery leaves it
            with pytest.raises(RuntimeError, match="a worker of an earlier test"):
                sqs_worker(app)

        def test_eager(sqs_queues):
            app.conf.task_always_eager = True
            with pytest.raises(ImproperlyConfigured, match="task_always_eager of app 'shop'"):
                sqs_queues.create(app)
        """
    )
    result.assert_outcomes(passed=4)


@pytest.mark.slow("it starts a server and a worker")
def test_server_and_workers_end_with_the_tests_process(project, pytester):
    """As where a time limit of CI kills it."""
    project(
        """
        import os, pathlib, signal
        from shop import app

        def test_killed(sqs_server, sqs_worker):
            worker = sqs_worker.process("shop", app=app)
            pathlib.Path("pids").write_text(f"{sqs_server._process.pid} {worker._process.pid}")
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    for pid in map(int, (pytester.path / "pids").read_text().split()):
        wait_until(lambda pid=pid: not is_alive(pid), 60, f"the end of {pid}")


@pytest.mark.parametrize(
    ("hosts", "spared"), [(None, "127.0.0.1"), ("", "127.0.0.1"), ("*", "*"), ("a,.b", "a,.b,127.0.0.1")]
)
def test_the_servers_host_needs_no_proxy_and_other_hosts_go_as_before(hosts, spared):
    assert server._with_host(hosts, "http://127.0.0.1:9324") == spared


def test_this_process_has_the_entry_point(pytestconfig):
    assert pytestconfig.pluginmanager.hasplugin("celery_sqs_visibility")
    assert "celery_sqs_visibility.testing.plugin" in sys.modules

"""The whole of it by pytest-celery's set-up: stock worker command, real pool, result backend, canvas."""

import uuid
from contextlib import contextmanager

import pytest
from celery import chain, chord, group
from e2e.tasks import add, add_at_third_attempt, survive, total, whoami
from pytest_celery import CeleryWorkerCluster
from support.app import close_app
from support.processes import wait_until

from celery_sqs_visibility.testing.pytest_celery import SQSTestSetup

RESULT_SECONDS = 60


@pytest.fixture
def key(celery_setup):
    """A counter in the result backend that no other test has; the set-up is ready."""
    assert celery_setup.ready(ping=True)
    return f"attempts-{uuid.uuid4().hex}"


def attempts(setup, key):
    return int(setup.app.backend.client.get(key) or 0)


def wait_for_attempt(setup, key, number=1):
    wait_until(lambda: attempts(setup, key) == number, RESULT_SECONDS, f"attempt {number} to begin")


@contextmanager
def frozen(worker):
    """The worker's processes stopped, as by a hypervisor; containers can do that as well."""
    raw = worker.container._container
    raw.pause()
    try:
        yield
    finally:
        raw.unpause()


def test_the_worker_answers_a_ping_and_returns_results(celery_setup):
    assert celery_setup.ready(ping=True)
    assert add.delay(2, 3).get(timeout=RESULT_SECONDS) == 5


def test_a_chain_waits_for_the_member_that_fails_twice(celery_setup, key):
    workflow = chain(add.s(1, 2), add_at_third_attempt.s(10, key), add.s(100))
    assert workflow.delay().get(timeout=RESULT_SECONDS) == 113
    assert attempts(celery_setup, key) == 3


def test_a_group_and_its_chord_complete_with_a_member_that_fails_twice(celery_setup, key):
    grouped = group(add.s(1, 1), add_at_third_attempt.s(2, 2, f"{key}-group"), add.s(3, 3)).delay()
    body = chord([add.s(1, 1), add_at_third_attempt.s(2, 2, f"{key}-chord"), add.s(3, 3)], total.s()).delay()
    assert grouped.get(timeout=RESULT_SECONDS) == [2, 4, 6]
    assert body.get(timeout=RESULT_SECONDS) == 12
    assert attempts(celery_setup, f"{key}-chord") == 3


def test_a_group_of_a_thousand_completes(celery_setup, key):
    grouped = group(add.s(number, number) for number in range(1000)).delay()
    assert grouped.get(timeout=2 * RESULT_SECONDS) == [2 * number for number in range(1000)]


def test_a_task_whose_worker_was_killed_runs_again(celery_setup, key):
    result = survive.delay(key)
    wait_for_attempt(celery_setup, key)
    celery_setup.worker.kill()
    celery_setup.worker.restart()
    assert result.get(timeout=RESULT_SECONDS) == "survived"
    assert attempts(celery_setup, key) == 2


class TestTwoWorkers:
    @pytest.fixture
    def celery_worker_cluster(self, celery_worker, make_worker):
        cluster = CeleryWorkerCluster(celery_worker, make_worker("other-worker"))
        yield cluster
        cluster.teardown()

    @staticmethod
    def its_worker_and_the_other(setup, result):
        """The worker that runs the task, and the one that does not."""
        (its,) = (worker for worker in setup.worker_cluster if result.id in worker.logs())
        (other,) = (worker for worker in setup.worker_cluster if worker is not its)
        return its, other

    def test_the_message_of_a_frozen_worker_goes_to_the_other(self, celery_setup, key):
        result = survive.delay(key)
        wait_for_attempt(celery_setup, key)
        its, other = self.its_worker_and_the_other(celery_setup, result)
        with frozen(its):
            assert result.get(timeout=RESULT_SECONDS) == "survived"
            assert whoami.delay().get(timeout=RESULT_SECONDS) == other.hostname()

    def test_the_message_of_a_killed_worker_goes_to_the_other(self, celery_setup, key):
        result = survive.delay(key)
        wait_for_attempt(celery_setup, key)
        its, other = self.its_worker_and_the_other(celery_setup, result)
        its.kill()
        assert result.get(timeout=RESULT_SECONDS) == "survived"
        assert whoami.delay().get(timeout=RESULT_SECONDS) == other.hostname()


class TestMixedFleet:
    """Beside our worker one with kombu's own transport, and a producer with it."""

    @pytest.fixture
    def celery_worker_cluster(self, celery_worker, make_worker, stock_content):
        cluster = CeleryWorkerCluster(celery_worker, make_worker("stock-worker", stock_content))
        yield cluster
        cluster.teardown()

    @pytest.fixture
    def stock_app(self, celery_setup_config, default_worker_app):
        app = SQSTestSetup.create_setup_app(celery_setup_config, "stock-producer")
        app.conf.broker_transport = "sqs"
        yield app
        close_app(app)

    def test_both_transports_send_and_both_run(self, celery_setup, stock_app, key):
        ours, stock = celery_setup.worker_cluster
        for apps in (celery_setup.app, stock_app):
            results = [apps.send_task(whoami.name) for _ in range(20)]
            ran = {result.get(timeout=RESULT_SECONDS) for result in results}
            assert ran <= {ours.hostname(), stock.hostname()}
        with frozen(ours):
            assert stock_app.send_task(whoami.name).get(timeout=RESULT_SECONDS) == stock.hostname()
        with frozen(stock):
            assert stock_app.send_task(add.name, (1, 2)).get(timeout=RESULT_SECONDS) == 3

"""The whole of it by pytest-celery's set-up: stock worker command, real pool, result backend, canvas."""

from __future__ import annotations

import uuid
from contextlib import contextmanager

import pytest
from celery import chain, chord, group
from e2e.tasks import add, add_at_third_attempt, survive, total, whoami
from pytest_celery import CeleryWorkerCluster
from support.processes import wait_until

RESULT_SECONDS = 60


@pytest.fixture
def key(celery_setup):
    """A counter in the result backend that no other test has; the set-up is ready."""
    assert celery_setup.ready(ping=True)
    return f"attempts-{uuid.uuid4().hex}"


def attempts(setup, key):
    return int(setup.app.backend.client.get(key) or 0)


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


def test_a_task_whose_worker_was_killed_runs_again(celery_setup, key):
    result = survive.delay(key)
    wait_until(lambda: attempts(celery_setup, key) == 1, RESULT_SECONDS, "the task to start")
    celery_setup.worker.kill()
    celery_setup.worker.restart()
    assert result.get(timeout=RESULT_SECONDS) == "survived"
    assert attempts(celery_setup, key) == 2


class TestTwoWorkers:
    @pytest.fixture
    def celery_worker_cluster(self, celery_worker, other_worker):
        cluster = CeleryWorkerCluster(celery_worker, other_worker)
        yield cluster
        cluster.teardown()

    def test_the_message_of_a_frozen_worker_goes_to_the_other(self, celery_setup, key):
        result = survive.delay(key)
        wait_until(lambda: attempts(celery_setup, key) == 1, RESULT_SECONDS, "the task to start")
        worker_of_it = next(worker for worker in celery_setup.worker_cluster if result.id in worker.logs())
        (the_other,) = (worker for worker in celery_setup.worker_cluster if worker is not worker_of_it)
        with frozen(worker_of_it):
            assert result.get(timeout=RESULT_SECONDS) == "survived"
            assert whoami.delay().get(timeout=RESULT_SECONDS) == the_other.hostname()

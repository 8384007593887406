"""A run has to show life from its beginning to the end of the task's own code."""

from __future__ import annotations

import os

import pytest
from celery.exceptions import ImproperlyConfigured
from support.factories import trace

from celery_sqs_visibility import InactivityError
from celery_sqs_visibility.delivery import lease_table
from celery_sqs_visibility.delivery.lease_table import INACTIVE, UNWATCHED, LeaseTable
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.task.tracing import VisibilityRetry


def noop():
    """A task."""


@pytest.fixture
def lease(monkeypatch):
    table = LeaseTable()
    monkeypatch.setattr(lease_table, "lease_table", lambda: table)
    yield table.take(SYSTEM_CLOCK.monotonic() + 60, pytest.fail)
    for end in table._pipe:
        os.close(end)


@pytest.fixture
def signs(lease):
    """The last sign of life, as it was when the task noted it."""
    return []


@pytest.fixture
def make(app, lease, signs):
    def make(error=None, **options):
        def on_success(self, *_):
            signs.append(lease.last_sign)

        def before_start(self, *_):
            signs.append(lease.last_sign)

        @app.task(shared=False, on_success=on_success, before_start=before_start, **options)
        def noting():
            signs.append(lease.last_sign)
            if error:
                raise error

        return noting

    return make


def test_it_is_watched_until_its_code_has_ended(make, lease, signs):
    began = SYSTEM_CLOCK.monotonic()
    trace(make(inactivity_timeout=30), visibility_lease=lease.key)
    before, within, after = signs
    assert began <= before <= within <= SYSTEM_CLOCK.monotonic()
    assert after == UNWATCHED


def test_a_failure_ends_the_watch_too(make, lease):
    trace(make(ValueError("no"), inactivity_timeout=30), visibility_lease=lease.key)
    assert lease.last_sign == UNWATCHED


def test_a_task_that_declares_nothing_is_not_watched(make, lease, signs):
    trace(make(), visibility_lease=lease.key)
    assert signs == [UNWATCHED] * 3


def test_without_a_lease_nothing_happens(make):
    assert trace(make(inactivity_timeout=30)).info is None


def test_a_run_that_could_not_be_ended_fails_at_its_next_sign_and_comes_back_whatever_it_retries(app, lease):
    @app.task(
        shared=False,
        bind=True,
        inactivity_timeout="30",
        autoretry_for=(OSError,),
        error_visibility_timeout=60,
    )
    def silent(self):
        lease.last_sign = INACTIVE  # as the main process says
        self.visibility.alive()

    retry = trace(silent, visibility_lease=lease.key).info.retval
    assert isinstance(retry, VisibilityRetry)
    assert isinstance(retry.exc, InactivityError)
    assert "no sign of life for 30 s" in str(retry)


def test_a_bad_limit_is_refused_with_the_tasks_name(app):
    app.task(name="wrong", shared=False, inactivity_timeout=0)(noop)
    with pytest.raises(ImproperlyConfigured, match=r"task 'wrong'.*expected inactivity_timeout to be"):
        app.finalize()

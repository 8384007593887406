"""A request ends its run with whatever `Request.cancel` the installed Celery has."""

from __future__ import annotations

import importlib.util

import pytest
from celery import Celery
from celery.worker.request import Request
from kombu.message import Message
from kombu.utils.json import dumps


class Pool:
    """Has a way to end a run, of which Celery's own `cancel` makes use."""

    def terminate_job(self, pid, signal):
        pytest.fail("it is not ours to call")


#: How Celery's own `cancel` was called: with the pool, the signal and, where there is one, `emit_retry`.
asked = []


def of_celery_5_5(self, pool, signal=None):
    asked.append((pool, signal))


def of_newer_ones(self, pool, signal=None, emit_retry=True):
    asked.append((pool, signal, emit_retry))


def noop():
    """A task."""


@pytest.fixture
def make(monkeypatch):
    """Make a request that runs, of a class that is defined anew on top of that `cancel`."""
    asked.clear()

    def make(cancel):
        monkeypatch.setattr(Request, "cancel", cancel)
        spec = importlib.util.find_spec("celery_sqs_visibility.request")
        module = importlib.util.module_from_spec(spec)  # beside the one that everybody uses
        spec.loader.exec_module(module)
        with Celery("test", set_as_current=False, broker="memory://") as app:
            task = app.task(noop, name="task", shared=False)
            message = app.amqp.as_task_v2("id-1", "task")
            received = Message(
                dumps(message.body),
                headers=message.headers,
                properties={**message.properties, "delivery_tag": "tag"},
                content_type="application/json",
                content_encoding="utf-8",
            )
            request = module.DeliveryRequest(received, app=app, task=task)
        request.pool = Pool()
        request.time_start = 1.0
        return request

    return make


def test_a_lost_run_is_ended_without_storing_a_retry(make):
    request = make(of_newer_ones)
    request.end_lost_run()
    assert asked == [(request.pool, None, False)]


def test_with_celery_5_5_it_is_ended_too(make):
    request = make(of_celery_5_5)
    request.end_lost_run()
    assert asked == [(request.pool, None)]


def test_what_does_not_run_is_not_ended(make):
    request = make(of_newer_ones)
    request.time_start = None
    request.end_lost_run()
    assert asked == []


@pytest.mark.parametrize(
    ("cancel", "options", "passed_on"),
    [
        (of_celery_5_5, {}, ()),
        (of_newer_ones, {}, (True,)),
        (of_newer_ones, {"emit_retry": False}, (False,)),
    ],
)
def test_celerys_own_cancelling_gets_what_it_was_called_with(make, cancel, options, passed_on):
    request = make(cancel)
    request.cancel(request.pool, "TERM", **options)
    assert asked == [(request.pool, "TERM", *passed_on)]


def test_what_cannot_be_called_revoked_comes_back_and_raises_nothing(make, monkeypatch):
    def fail(self):
        raise ConnectionError("the result backend is down")

    request = make(of_newer_ones)
    came_back = []
    monkeypatch.setattr(request, "come_back_later", lambda: came_back.append(True))
    monkeypatch.setattr(Request, "revoked", fail)
    assert request.revoked()
    assert came_back

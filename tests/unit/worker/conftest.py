from __future__ import annotations

import pytest
from celery import Celery
from celery.worker import state


@pytest.fixture
def app():
    with Celery("unit", set_as_current=False, broker="memory://", backend="cache+memory://") as app:
        yield app


@pytest.fixture(autouse=True)
def _no_state_of_a_worker(monkeypatch):
    for flag in ("should_stop", "should_terminate"):
        monkeypatch.setattr(state, flag, None)
    requests = (state.active_requests, state.reserved_requests)
    for left_by_neighbours in requests:
        left_by_neighbours.clear()
    yield
    for left in requests:
        left.clear()

import pytest
from celery import Celery
from celery.worker import state
from support.factories import PID, FakeHolder, held_delivery, noop, request


@pytest.fixture
def app():
    with Celery("unit", set_as_current=False, broker="memory://", backend="cache+memory://") as app:
        yield app


@pytest.fixture(autouse=True)
def _no_state_of_a_worker(monkeypatch):
    for flag in ("should_stop", "should_terminate"):
        monkeypatch.setattr(state, flag, None)
    kept = (state.active_requests, state.reserved_requests, state.revoked)
    for left_by_neighbours in kept:
        left_by_neighbours.clear()
    yield
    for left in kept:
        left.clear()


@pytest.fixture
def holder():
    return FakeHolder()


@pytest.fixture
def make(app, holder):
    """`make(receive_count=2, acks_late=False, ...)`: a request, and `running=True` one that runs."""

    def make(*, running=False, processes=True, facts=None, held_by=holder, **options):
        task = app.task(noop, name="task", shared=False, **{"acks_late": True, **options})
        made = request(task, held_delivery(held_by, **(facts or {})), processes=processes)
        if running:
            made.time_start, made.worker_pid = 1.0, PID
            state.active_requests.add(made)
        return made

    return make

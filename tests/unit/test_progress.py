"""Progress is stored as a state of Celery's, where somebody may read it."""

import itertools
import math
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.app.task import Context
from hypothesis import given
from hypothesis import strategies as st
from support.clock import FakeClock
from support.factories import running, sqs_facts

from celery_sqs_visibility import VisibilityTask, visibility
from celery_sqs_visibility.delivery import lease_table
from celery_sqs_visibility.visibility import Progress


@pytest.fixture
def clock(monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(visibility, "SYSTEM_CLOCK", clock)
    return clock


@pytest.fixture
def task():
    with Celery("test", set_as_current=False, broker="memory://", backend="cache+memory://") as app:

        @app.task(base=VisibilityTask, bind=True, shared=False)
        def task(self, count):
            return list(self.visibility.track(range(count)))

        yield task


@pytest.fixture
def stored(task, monkeypatch):
    stored = []
    monkeypatch.setattr(task, "update_state", lambda state, meta: stored.append((state, meta)))
    return stored


def told(*numbers, total):
    return [("PROGRESS", {"current": number, "total": total}) for number in numbers]


@pytest.mark.parametrize(
    ("items", "given", "total"),
    [([1, 2, 3], None, 3), (iter([1, 2, 3]), None, None), (iter([1, 2, 3]), 9, 9)],
)
def test_the_first_the_last_and_one_a_second_is_stored(task, stored, clock, items, given, total):
    with running(task):
        for item in task.visibility.track(items, given):
            clock.advance(2 if item == 1 else 0.1)
    assert stored == told(0, 1, 3, total=total)


@given(st.lists(st.floats(0, 5), max_size=300), st.none() | st.integers(0, 1000))
def test_it_is_stored_at_once_then_at_most_once_a_second_and_once_a_percent(steps, total):
    clock, stored = FakeClock(), []
    task = SimpleNamespace(
        ignore_result=False,
        update_state=lambda state, meta: stored.append((clock.monotonic(), meta["current"])),
    )
    request = Context(called_directly=False, is_eager=False, ignore_result=False)
    begun = clock.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(visibility, "SYSTEM_CLOCK", clock)
        progress = Progress(task, request, total)
        for current, step in enumerate(steps):
            progress.show(current)
            clock.advance(step)
    assert [at for at, _ in stored[:1]] == ([begun] if steps else [])
    assert all(after - before >= 1 for (before, _), (after, _) in itertools.pairwise(stored))
    if total:
        percents = [100 * current // total for _, current in stored]
        assert len(set(percents)) == len(percents)


@pytest.mark.parametrize(("total", "numbers"), [(None, range(11)), (1000, (0, 10))])
def test_an_unknown_total_has_no_percents(task, stored, clock, total, numbers):
    with running(task):
        progress = Progress(task, task.request, total)
        for current in range(11):
            progress.show(current)
            clock.advance(1)
    assert stored == told(*numbers, total=total)


def test_a_run_that_has_lost_its_message_leaves_the_state_to_another(
    task, stored, clock, leases, monkeypatch
):
    monkeypatch.setattr(lease_table, "lease_table", lambda: leases)
    lease = leases.take(clock.monotonic() + 1, print, math.inf)
    with running(task, visibility_lease=lease.key):
        for _ in task.visibility.track(range(3)):
            clock.advance(2)
    assert stored == told(0, total=3)


def test_an_empty_list_is_all_done(task, stored):
    with running(task):
        assert list(task.visibility.track([])) == []
    assert stored == told(0, total=0)


def test_the_state_can_be_read(task):
    with running(task, id="read"):  # the backend is shared by all tests of a process
        Progress(task, task.request, 9).show(4)
    result = task.AsyncResult("read")
    assert (result.state, result.info) == ("PROGRESS", {"current": 4, "total": 9})


@pytest.mark.parametrize(
    "request_of_run",
    [{"ignore_result": True}, {"is_eager": True}, {"retries": 9, "sqs": sqs_facts(10)}],
    ids=["the result is ignored", "eager", "beyond the last attempt"],
)
def test_what_nobody_reads_or_would_hide_what_matters_is_not_stored(task, stored, request_of_run):
    with running(task, **request_of_run):
        assert list(task.visibility.track([1])) == [1]
    assert stored == []


def test_called_directly_or_eagerly_the_items_come_and_nothing_else(task, stored):
    assert task(3) == task.apply((3,)).get() == [0, 1, 2]
    assert stored == []


def test_what_cannot_be_stored_is_logged_once_and_ends_nothing(task, clock, monkeypatch, caplog):
    monkeypatch.setattr(task, "update_state", lambda **_: 1 // 0)
    with running(task):
        for _ in task.visibility.track(range(3)):
            clock.advance(2)
    (line,) = caplog.records
    assert line.getMessage().startswith("progress of task")
    assert line.exc_info

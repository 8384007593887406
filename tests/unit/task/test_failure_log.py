"""The line of an attempt that comes back: the facts, the traceback, and what error trackers hear."""

import logging

import pytest
from celery import signals
from celery.exceptions import Retry
from support.factories import sqs_facts, trace

OURS, CELERYS = "celery_sqs_visibility.task.failure_log", "celery.app.trace"


class Trouble(Exception):
    """What the tasks fail with."""


class Unpicklable(Exception):
    def __init__(self, one, two):
        super().__init__("cannot be pickled")


@pytest.fixture(autouse=True)
def _level(caplog):
    caplog.set_level(logging.INFO)


@pytest.fixture
def retried():
    """What `task_retry` was sent with."""
    seen = []

    def hear(sender, **facts):
        seen.append(facts)

    signals.task_retry.connect(hear)
    yield seen
    signals.task_retry.disconnect(hear)


def succeed():
    """A task."""


def fail(app, exc, **options):
    """A task that raises that."""

    def failing():
        raise exc

    return app.task(failing, name="failing", shared=False, **{"error_visibility_timeout": 2.5, **options})


@pytest.mark.parametrize("exc", [Trouble("no"), Unpicklable(1, 2)])
def test_the_first_failure_shows_its_traceback_in_one_warning(app, caplog, retried, exc):
    trace(fail(app, exc), id="id-1")
    (line,) = caplog.records
    assert (line.name, line.levelname) == (OURS, "WARNING")
    assert line.getMessage() == f"Task failing[id-1] failed at attempt 1 of 4 and comes back in 3 s: {exc!r}"
    kind, shown, traceback = line.exc_info
    assert (kind, shown) == (type(exc), exc)
    assert traceback.tb_frame.f_code.co_name == "failing", "it begins with the task's own code"
    facts = {"queue": "celery", "receive_count": 1, "task": "failing", "task_id": "id-1", "attempt": 1}
    assert line.sqs.items() >= facts.items()
    (told,) = retried
    assert told["request"].id == "id-1"
    assert "in failing\n" in told["einfo"].traceback


def test_the_last_attempt_is_celerys_error_and_no_line_of_ours(app, caplog, retried):
    trace(fail(app, Trouble("no")), retries=3)
    (line,) = caplog.records
    assert (line.name, line.levelname) == (CELERYS, "ERROR")
    assert line.exc_info[1].args == ("no",)
    assert retried == []


@pytest.mark.parametrize(
    ("retries", "limit", "sqs", "told"),
    [
        (1, 5, {}, "2 of 6"),
        (1, None, {}, "2"),
        (1, None, {"receive_count": 2, "max_receive_count": 4}, "2 of 4"),
        (0, 9, {"receive_count": 2, "max_receive_count": 4}, "1 of 3"),  # a receive was a park
    ],
)
def test_it_tells_how_many_attempts_there_are(app, caplog, retries, limit, sqs, told):
    trace(fail(app, Trouble(), max_retries=limit), retries=retries, sqs=sqs_facts(**sqs))
    assert f"at attempt {told} and" in caplog.records[0].getMessage()


def test_the_limit_of_the_run_counts_and_so_does_its_delay(app, caplog):
    @app.task(bind=True, shared=False)
    def retrying(self):
        try:
            succeed(1)
        except TypeError:
            raise self.retry(countdown=7, max_retries=9) from None

    trace(retrying)
    (line,) = caplog.records
    assert line.getMessage().endswith(f"at attempt 1 of 10 and comes back in 7 s: {line.exc_info[1]!r}")
    assert line.exc_info[0] is TypeError


def test_without_a_delay_it_tells_of_the_visibility_timeout(app, caplog):
    trace(fail(app, Trouble(), error_visibility_timeout=None))
    assert "comes back when its visibility timeout runs out: " in caplog.records[0].getMessage()


def test_a_retry_that_is_published_shows_its_traceback_too(app, caplog, published):
    @app.task(bind=True, shared=False)
    def moving(self):
        raise self.retry(exc=Trouble("full"), countdown=7, queue="other")

    trace(moving)
    assert published
    (line,) = caplog.records
    assert (line.name, line.levelname) == (OURS, "WARNING")
    assert "comes back in 7s: Trouble('full')" in line.getMessage()


def test_a_task_that_polls_has_celerys_line_without_a_traceback(app, caplog, retried):
    @app.task(bind=True, shared=False)
    def polling(self):
        raise self.retry(countdown=7)

    trace(polling)
    (line,) = caplog.records
    assert (line.name, line.levelname, line.exc_info) == (CELERYS, "INFO", None)
    assert line.getMessage().endswith("retry: Retry in 7 s")
    assert len(retried) == 1


@pytest.mark.parametrize("throws", [(Trouble,), Trouble], ids=["a tuple", "one class"])
def test_an_exception_that_the_task_throws_is_expected(app, caplog, throws):
    trace(fail(app, Trouble("no"), throws=throws))
    (line,) = caplog.records
    assert (line.name, line.levelname, line.exc_info) == (OURS, "INFO", None)


def test_a_long_exception_is_cut_in_the_line(app, caplog):
    trace(fail(app, Trouble("x" * 10_000)))
    assert len(caplog.records[0].getMessage()) < 300


def test_a_failure_of_celerys_own_is_told_with_its_traceback(app, caplog, monkeypatch):
    def down(*_args, **_options):
        raise ConnectionError("the backend is down")

    monkeypatch.setattr(app.backend, "mark_as_done", down)
    with pytest.warns(RuntimeWarning, match="outside body"):
        trace(app.task(succeed, shared=False, error_visibility_timeout=60))
    assert [(line.name, line.exc_info[0]) for line in caplog.records] == [(OURS, ConnectionError)]


def test_error_trackers_find_their_tracer_in_use_though_it_came_late(app, monkeypatch):
    from celery.app import trace as celery_trace  # noqa: PLC0415

    built = []
    build = celery_trace.build_tracer

    def build_tracer(name, *args, **options):
        built.append((name, options))
        return build(name, *args, **options)

    monkeypatch.setattr(celery_trace, "build_tracer", build_tracer)
    assert isinstance(trace(fail(app, Trouble())).info.retval, Retry)
    assert [name for name, _ in built] == ["failing"]

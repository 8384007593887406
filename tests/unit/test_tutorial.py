"""docs/quickstart.md, and the box that it shares with other pages: tasks do what these say."""

import re
from pathlib import Path

import pytest
from celery import Celery, _state
from support.app import without_shared_tasks

from celery_sqs_visibility import VisibilityTask
from celery_sqs_visibility.testing import turned_time
from celery_sqs_visibility.worker import drain

PAGE = (Path(__file__).resolve().parents[2] / "docs/quickstart.md").read_text()


@pytest.fixture(autouse=True)
def no_other_app(monkeypatch):
    monkeypatch.setattr(_state._tls, "current_app", None)
    without_shared_tasks(monkeypatch)


@pytest.fixture
def app():
    app = Celery("box", task_cls=VisibilityTask)
    app.conf.broker_transport = "celery_sqs_visibility"
    yield app
    app.close()


def test_the_tutorials_task_fails_twice_and_comes_back_as_its_log_says():
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
    names = {"__name__": "tutorial"}
    exec(compile(block, "quickstart.md", "exec"), names)
    with turned_time() as time:
        account = time.run(names["fetch"].s("https://example.com"))
        assert time.run(names["add"].s(2, 3)).runs == 1
    told = re.findall(r"failed at attempt (\d) of (\d) and comes back in (\d) s", PAGE)
    attempts = names["fetch"].max_retries + 1
    hidden = [int(seconds) for seconds in account.hidden]
    assert told == [(str(run), str(attempts), str(delay)) for run, delay in enumerate(hidden, 1)]
    assert account.runs == len(hidden) + 1
    assert f'"maxReceiveCount": {attempts + 3}' in PAGE
    names["app"].close()


def test_a_worker_that_is_stopped_in_a_run_logs_what_the_tutorial_shows():
    shown = re.findall(r"^shutdown: (?:\d+ messages )?([a-z ,;]+)", PAGE, flags=re.MULTILINE)
    source = Path(drain.__file__).read_text()
    assert len(shown) == 3
    assert [line for line in shown if line.strip() not in source] == []


@pytest.mark.parametrize(
    ("options", "runs"),
    [
        ({}, 4),
        ({"max_retries": 0}, 1),
        ({"autoretry_for": (KeyError,)}, 1),
        ({"autoretry_for": (OSError,)}, 4),
    ],
    ids=["by default", "max_retries=0", "another exception", "the exception"],
)
def test_an_exception_repeats_a_task_as_the_box_says(app, options, runs):
    @app.task(**options)
    def charge():
        raise OSError("the bank does not answer")

    with turned_time() as time:
        account = time.run(charge.s())
    assert account.runs == runs
    assert account.dead_letter.reason.startswith("failed")


def test_an_exception_in_a_map_fails_all_of_it(app):
    @app.task
    def charge(order):
        raise OSError(f"{order}: the bank does not answer")

    with turned_time() as time:
        account = time.run(charge.map(["o1", "o2"]))
    assert account.runs == 1

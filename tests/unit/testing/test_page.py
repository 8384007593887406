"""docs/testing.md: the failure that it shows is the one that its example makes."""

from __future__ import annotations

import re
from pathlib import Path

from celery import _state
from support.app import without_shared_tasks

PAGE = Path(__file__).parents[3] / "docs/testing.md"


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)


def test_the_failure_on_the_page_is_that_of_its_example(monkeypatch):
    monkeypatch.setattr(_state._tls, "current_app", None)
    without_shared_tasks(monkeypatch)
    shown = []
    (example,) = [block for block in blocks("python") if "SimulationFailedError" in block]
    told = example.replace("as failure:\n", "as failure:\n    shown.append(str(failure))\n")
    names = {"__name__": "testing_1", "shown": shown}
    exec(compile(told, PAGE.name, "exec"), names)
    assert blocks("text") == [f"{shown[0]}\n"]
    names["app"].close()

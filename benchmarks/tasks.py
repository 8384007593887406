"""The task everybody runs: nothing."""

from __future__ import annotations

from support.app import make_app

app = make_app("tasks")


@app.task(acks_late=True, ignore_result=True)
def nothing() -> None:
    """Do nothing."""

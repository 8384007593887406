"""Tasks with large arguments."""

from pathlib import Path

from support.app import make_app
from support.diary import note

from celery_sqs_visibility import VisibilityTask

app = make_app("large", task_cls=VisibilityTask)


@app.task
def length(key, text=""):
    note("started", key=key, length=len(text))
    return len(text)


@app.task
def echo(text):
    return text


@app.task
def total(lengths, text):
    return sum(lengths) + len(text)


@app.task(max_retries=0)
def failing_once(key, text, path):
    if not Path(path).exists():
        Path(path).touch()
        raise ValueError(key)
    note("started", key=key, length=len(text))

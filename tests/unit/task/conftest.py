import pytest
from celery import Celery

from celery_sqs_visibility import VisibilityTask


@pytest.fixture
def app():
    """An app without SQS, whose published messages `published` counts."""
    app = Celery(
        "test",
        task_cls=VisibilityTask,
        set_as_current=False,
        broker="memory://localhost",
        backend="cache+memory://",
    )
    yield app
    app.close()


@pytest.fixture
def published(app, monkeypatch):
    """What `app` has published: (task, args, kwargs, options)."""
    sent, publish = [], app.send_task

    def send_task(name, args=None, kwargs=None, **options):
        sent.append((name, args, kwargs, options))
        return publish(name, args, kwargs, **options)

    monkeypatch.setattr(app, "send_task", send_task)
    return sent

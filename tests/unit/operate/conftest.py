"""Commands in this process, on an app whose SQS is in memory."""

from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from support.app import close_app, make_app, without_shared_tasks

from celery_sqs_visibility.transport import broker_clients, broker_context


@pytest.fixture
def run_on(monkeypatch):
    """`run_on(sqs, command, *args, typed=..., color=..., **settings)`: what click's runner has of it."""
    without_shared_tasks(monkeypatch)
    apps = []

    def run(sqs, command, *args, typed=None, color=False, **settings):
        monkeypatch.setattr(broker_clients, "shared_sqs", lambda _settings: sqs)
        monkeypatch.setattr(broker_context, "_contexts", {})
        apps.append(make_app("app", settings, set_as_current=False))
        given = SimpleNamespace(app=apps[-1])
        return CliRunner().invoke(command, args, input=typed, color=color, obj=given)

    yield run
    for app in apps:
        close_app(app)

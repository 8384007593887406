"""Celery apps whose settings come from the test, on both sides of the queue.

A task module says `app = make_app("tasks")`; `WorkerProcess(config=...)` hands the settings to it by
environment, and the test makes its own producer app from the same settings.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import kombu.pools
from celery import Celery, _state
from celery.backends.filesystem import FilesystemBackend
from kombu.utils.encoding import ensure_bytes
from support.audits import write_events
from support.diary import note

if TYPE_CHECKING:
    from collections.abc import Mapping

CONFIG_VARIABLE = "CELERY_TEST_CONFIG"

#: A setting that gives constants of the package other values in a worker's process: by dotted path.
CONSTANTS = "constants_of_the_package"

#: Of the broker the README's one setting, and nothing else: a URL would have every worker import the
#: transport as soon as its app makes a connection.
DEFAULTS: dict[str, Any] = {
    "broker_transport": "celery_sqs_visibility",
    "broker_connection_retry_on_startup": True,
    "task_acks_late": True,
}


def write_at_once(self: FilesystemBackend, key: bytes, value: str | bytes) -> None:
    """As `FilesystemBackend.set`, whose files are found empty, or half full, while it writes them."""
    path = Path(os.fsdecode(self._filename(key)))
    new = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    new.write_bytes(ensure_bytes(value))
    new.replace(path)


FilesystemBackend.set = write_at_once


def without_shared_tasks(monkeypatch: Any) -> None:
    """Apps made in this test have no tasks of the other modules that this process has imported."""
    celerys = {each for each in _state._on_app_finalizers if each.__module__ == "celery.app.builtins"}
    monkeypatch.setattr(_state, "_on_app_finalizers", celerys)


def encode_config(config: Mapping[str, Any]) -> str:
    """Settings as text; only JSON values travel."""
    return json.dumps(dict(config))


def make_app(name: str, config: Mapping[str, Any] | None = None, **options: Any) -> Celery:
    """An app with the test's settings: `config`, or what the environment of this worker process says."""
    settings = json.loads(os.environ.get(CONFIG_VARIABLE, "{}")) if config is None else config
    if config is None:
        for path, value in settings.pop(CONSTANTS, {}).items():
            module, _, constant = path.rpartition(".")
            imported = importlib.import_module(module)
            getattr(imported, constant)  # it may have moved
            setattr(imported, constant, value)
        write_events()
    app = Celery(name, **options)
    app.conf.update({**DEFAULTS, **settings})
    return app


def note_start(task, key, *_, **__):
    note("started", key=key, id=task.request.id, retries=task.request.retries)


def noting_of(app, begins=note_start, ended=lambda *_, **__: None):
    """Decorates a bound task: calls `begins(task, ...)` before a run, `ended(task, result, ...)` after it."""

    def make(body=None, **options):
        if body is None:
            return functools.partial(make, **options)

        @app.task(bind=True, **options)
        @functools.wraps(body)
        def run(self, *args, **kwargs):
            begins(self, *args, **kwargs)
            result = body(self, *args, **kwargs)
            ended(self, result, *args, **kwargs)
            return result

        return run

    return make


def behind(endpoint: str, config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The settings with that SQS endpoint, `http://host:port`, in the broker URL: for the test's own process.

    It keeps and shares its SQS clients by what the settings say, so with AWS_ENDPOINT_URL_SQS the next test's
    would be this one's. Worker processes get the endpoint by environment, and no URL.
    """
    given = dict(config or {})
    options = {"is_secure": False, **given.pop("broker_transport_options", {})}
    return {"broker_url": f"sqs://{urlsplit(endpoint).netloc}", "broker_transport_options": options, **given}


def close_app(app: Celery) -> None:
    """Close an app of this process, and its connections, which live in pools of the process.

    Celery closes none of a result backend; Redis' sockets would be found open when garbage is collected.
    """
    from celery.backends.redis import RedisBackend  # noqa: PLC0415 - not in each worker process

    backend = getattr(app, "_backend", None) or getattr(getattr(app, "_local", None), "backend", None)
    app.close()
    kombu.pools.reset()
    if isinstance(backend, RedisBackend) and (client := vars(backend).get("client")):
        backend.result_consumer.stop()
        backend.result_consumer._pubsub = None  # or a collected result connects anew
        client.connection_pool.disconnect()

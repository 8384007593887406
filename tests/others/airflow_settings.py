"""Print the settings of Airflow's Celery app, and its options as our transport reads them; a JSON line."""

import json
from collections.abc import Mapping

from airflow.providers.celery.executors.celery_executor_utils import app

from celery_sqs_visibility.policy.options import Options

NAMES = [
    "result_backend",
    "task_acks_late",
    "task_default_queue",
    "worker_concurrency",
    "worker_enable_remote_control",
    "worker_prefetch_multiplier",
]


def as_json(value):
    return dict(value) if isinstance(value, Mapping) else repr(value)


given = app.conf.broker_transport_options
read = Options.parse(given)
options = {name.replace("-", "_"): getattr(read, name.replace("-", "_")) for name in given}
settings = {name: app.conf[name] for name in NAMES}
transport = app.connection_for_write().get_transport_cls().__module__
print(json.dumps({"options": options, "settings": settings, "transport": transport}, default=as_json))  # noqa: T201

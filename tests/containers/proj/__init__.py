"""The project whose workers run in containers: `celery -A proj worker`."""

import json
import os

from celery import Celery

from celery_sqs_visibility import VisibilityTask, log_json

app = Celery("proj", task_cls=VisibilityTask, include=["proj.tasks"])
log_json()
app.conf.update(json.loads(os.environ["PROJ_SETTINGS"]))

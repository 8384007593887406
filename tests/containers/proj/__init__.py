"""The project whose workers run in containers: `celery -A proj worker`."""

from __future__ import annotations

import json
import os

from celery import Celery

from celery_sqs_visibility import VisibilityTask

app = Celery("proj", task_cls=VisibilityTask, include=["proj.tasks"])
app.conf.update(json.loads(os.environ["PROJ_SETTINGS"]))

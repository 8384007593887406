import os

from celery import Celery

from celery_sqs_visibility import VisibilityTask

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")

app = Celery("shop", task_cls=VisibilityTask)
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()

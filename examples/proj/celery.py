from celery import Celery

from celery_sqs_visibility import VisibilityTask

app = Celery("proj", task_cls=VisibilityTask, include=["proj.tasks"])
app.config_from_object("proj.settings")

if __name__ == "__main__":
    app.start()

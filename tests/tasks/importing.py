"""Tasks that run for events of AWS; the tests read the diary."""

from support.app import make_app
from support.diary import note

from celery_sqs_visibility import VisibilityTask, s3_object

app = make_app("importing", task_cls=VisibilityTask)


@app.task(
    bind=True, name="imports", sqs_event="s3:ObjectCreated:*", error_visibility_timeout=1, max_retries=1
)
def imports(self, record):
    key = s3_object(record).key
    note("started", key=key, id=self.request.id, retries=self.request.retries)
    if key == "bad" or (key == "shaky" and not self.request.retries):
        raise ValueError(key)
    note("done", key=key)


@app.task(bind=True, name="audits", sqs_event="s3:ObjectRemoved:*", sqs_event_per="message")
def audits(self, notification):
    note("done", key="audit", records=len(notification["Records"]))


@app.task(name="orders", bind=True, max_retries=0)
def orders(self, body, attributes=None):
    note("done", key=body, attributes=attributes)
    if body == "order in vain":
        raise ValueError(body)


def adapt(body, attributes):
    if body.startswith("raise"):
        raise KeyError(body)
    return ("orders", [body, attributes], {}) if body.startswith("order") else None

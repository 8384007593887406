"""Tasks that hang, that tell how far they are, and that go on with another message."""

import time

from support.app import make_app, noting_of
from support.diary import note

from celery_sqs_visibility import VisibilityTask

app = make_app("long_runs", task_cls=VisibilityTask)


noting = noting_of(app)
LIMIT_SECONDS = 1.5


@noting(inactivity_timeout=LIMIT_SECONDS, error_visibility_timeout=1)
def hanging(self, key):
    """Hang, at the first attempt."""
    if self.request.retries == 0:
        self.visibility.alive()
        note("silent", key=key)
        time.sleep(5)
        self.visibility.alive()
    note("done", key=key)


@noting(inactivity_timeout=LIMIT_SECONDS)
def tracked(self, key, count):
    for _ in self.visibility.track(range(count)):
        time.sleep(0.5)
    note("done", key=key)


@noting(error_visibility_timeout=1)
def parts(self, key, start=0, last=2):
    """Each part in a message of its own."""
    note("part", key=key, start=start, retries=self.request.retries)
    if start < last:
        self.visibility.continue_later(start=start + 1)
    return start


@app.task
def following(result, key):
    note("following", key=key, result=result)

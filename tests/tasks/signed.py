"""A task whose messages are signed: Celery's serializer `auth`."""

from pathlib import Path

from support.app import make_app, noting_of

from celery_sqs_visibility import VisibilityTask

app = make_app("signed", task_cls=VisibilityTask)
app.setup_security()


noting = noting_of(app)


@noting(error_visibility_timeout=1, max_retries=2)
def once(self, key, marker):
    """Fails at its first run, and comes back as it was signed."""
    if not Path(marker).exists():
        Path(marker).touch()
        raise ValueError(key)

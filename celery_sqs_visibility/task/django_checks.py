"""A check for Django's `manage.py`: it finds wrong options before the first `delay()`.

`celery_sqs_visibility.alias` registers it if Django is imported before kombu, as by `manage.py`.
"""

from __future__ import annotations

from typing import Final

from celery import Celery, current_app
from celery.exceptions import ImproperlyConfigured
from django.core.checks import CheckMessage, Error

from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.policy.options import Options

ERROR_ID: Final = "celery_sqs_visibility.E001"


def check_current_app() -> list[CheckMessage]:
    """Errors in the options of the current app, and in the settings of its tasks that are imported."""
    return check_app(current_app)


def check_app(app: Celery) -> list[CheckMessage]:
    """The same of an app; none where its broker is another one. Makes no request."""
    with app.connection_for_write() as connection:
        if not str(connection.transport_cls).replace("-", "_").startswith("celery_sqs_visibility"):
            return []
    found: list[CheckMessage] = []
    try:
        Options.parse(app.conf.broker_transport_options)
    except OptionError as error:
        found += [Error(sentence, id=ERROR_ID) for sentence in error.sentences or (str(error),)]
    try:
        app.finalize(auto=True)  # each task gets its app, and is checked
    except ImproperlyConfigured as error:
        found.append(Error(str(error), id=ERROR_ID))
    return found

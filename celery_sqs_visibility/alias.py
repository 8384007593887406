"""Alias of the transport, for `broker_transport = "celery_sqs_visibility"` wherever kombu is imported.

kombu has no entry-point group for transports, and looks a bare name up in `TRANSPORT_ALIASES`. But it loads
the group `kombu.serializers` on import (kombu/serialization.py), in every process that publishes or consumes;
so this module is registered there. It adds the alias, and provides a JSON codec that is never used. It must
stay tiny and must not fail: an error here would break `import kombu`.

A URL's scheme may have dashes but no underscores: kombu reads an empty scheme from `celery_sqs_visibility://`
(kombu/connection.py: `Connection.__init__`), and looks up the empty name.
"""

import json
import os
import sys
from contextlib import suppress
from typing import Any

#: What kombu registers as a serializer: encoder, decoder, content type, content encoding.
codec = (json.dumps, json.loads, "application/x-celery-sqs-visibility", "utf-8")


def refuse_url_without_scheme() -> str:
    """Raise an error for the empty name, which kombu/transport/__init__.py: `resolve_transport` looks up."""
    from celery_sqs_visibility.command_line import shown_in_one_line  # noqa: PLC0415 - an alias stays cheap
    from celery_sqs_visibility.errors import OptionError  # noqa: PLC0415

    raise shown_in_one_line(
        OptionError(
            "the broker URL has no scheme that can be read, since schemes have no underscores: if it begins "
            "with celery_sqs_visibility://, write celery-sqs-visibility://, or sqs:// together with "
            "broker_transport = 'celery_sqs_visibility'"
        )
    )


with suppress(Exception):
    from kombu.transport import TRANSPORT_ALIASES

    aliases: Any = TRANSPORT_ALIASES
    aliases.setdefault("celery_sqs_visibility", "celery_sqs_visibility:Transport")
    aliases.setdefault("celery-sqs-visibility", "celery_sqs_visibility:Transport")
    aliases.setdefault("", refuse_url_without_scheme)


def check_options(**_: Any) -> list[Any]:
    """Called by Django's `manage.py check`."""
    from celery_sqs_visibility.task.settings import check_current_app  # noqa: PLC0415 - celery imports kombu

    return check_current_app()


if "django" in sys.modules and "DJANGO_SETTINGS_MODULE" in os.environ:  # as Celery's own fixup asks
    with suppress(Exception):
        from django.core.checks import register

        register(check_options)

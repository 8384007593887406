"""Makes `broker_transport = "celery_sqs_visibility"` work wherever kombu is imported.

kombu has no entry-point group for transports, and looks a bare name up in `TRANSPORT_ALIASES`. It does
load the group `kombu.serializers` on import (kombu/serialization.py), in every process that publishes or
consumes; so this module is registered there. It adds the alias, and provides a JSON codec that nobody
uses. It must stay tiny and must not fail: an error here would break `import kombu`.
"""

import json
from contextlib import suppress

#: What kombu registers as a serializer: encoder, decoder, content type, content encoding.
codec = (json.dumps, json.loads, "application/x-celery-sqs-visibility", "utf-8")

with suppress(Exception):
    from kombu.transport import TRANSPORT_ALIASES

    TRANSPORT_ALIASES.setdefault("celery_sqs_visibility", "celery_sqs_visibility:Transport")

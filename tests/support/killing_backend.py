"""A Redis backend whose process dies at a moment of the test's choice: `killed` among a task's arguments.

"stored": the result is stored, and its chord not told. "publishing": the chord's body is being published.
"""

from __future__ import annotations

import os
import signal

from celery.backends.redis import RedisBackend


def kill_if(request, moment):
    if ((request and request.kwargs) or {}).get("killed") == moment and request.retries < 1:
        os.kill(os.getpid(), signal.SIGKILL)


class KillingBackend(RedisBackend):
    """`result_backend = "support.killing_backend:KillingBackend+redis://..."`."""

    def on_chord_part_return(self, request, state, result, **kwargs):
        kill_if(request, "stored")
        self._request = request
        return super().on_chord_part_return(request, state, result, **kwargs)

    def _unpack_chord_result(self, *args, **kwargs):
        # The claim on the body is held by now, where there is one.
        kill_if(self._request, "publishing")
        return super()._unpack_chord_result(*args, **kwargs)

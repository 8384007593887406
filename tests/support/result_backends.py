"""Result backends that refuse, take their time, or end their process."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from celery.backends.filesystem import FilesystemBackend
from celery.backends.redis import RedisBackend


class FailingBackend(FilesystemBackend):
    """`result_backend = "support.result_backends:FailingBackend+file:///directory"`."""

    def _store_result(self, task_id, result, state, traceback=None, request=None, **kwargs):
        wanted = ((request and request.kwargs) or {}).get("refused", ())
        if state in wanted and request.retries < 1:
            raise ConnectionError(f"the backend refuses {state}")
        return super()._store_result(task_id, result, state, traceback=traceback, request=request, **kwargs)


SECONDS = 1.0


class SlowBackend(FilesystemBackend):
    """`result_backend = "support.result_backends:SlowBackend+file:///..."`: each write takes a second."""

    def set(self, key: bytes, value: Any) -> None:
        time.sleep(SECONDS)
        super().set(key, value)


def kill_if(request, moment):
    if ((request and request.kwargs) or {}).get("killed") == moment and request.retries < 1:
        os.kill(os.getpid(), signal.SIGKILL)


class KillingBackend(RedisBackend):
    """`result_backend = "support.result_backends:KillingBackend+redis://..."`."""

    def on_chord_part_return(self, request, state, result, **kwargs):
        kill_if(request, "stored")
        self._request = request
        return super().on_chord_part_return(request, state, result, **kwargs)

    def _unpack_chord_result(self, *args, **kwargs):
        # The claim on the body is held by now, where there is one.
        kill_if(self._request, "publishing")
        return super()._unpack_chord_result(*args, **kwargs)

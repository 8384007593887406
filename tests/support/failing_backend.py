"""A result backend that refuses to store what a task's argument `refused` names, at its first attempt."""

from __future__ import annotations

from celery.backends.filesystem import FilesystemBackend


class FailingBackend(FilesystemBackend):
    """`result_backend = "support.failing_backend:FailingBackend+file:///directory"`."""

    def _store_result(self, task_id, result, state, traceback=None, request=None, **kwargs):
        wanted = ((request and request.kwargs) or {}).get("refused", ())
        if state in wanted and request.retries < 1:
            raise ConnectionError(f"the backend refuses {state}")
        return super()._store_result(task_id, result, state, traceback=traceback, request=request, **kwargs)

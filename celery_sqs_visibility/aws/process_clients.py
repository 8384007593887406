"""A client of boto3's for each process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Generic, TypeVar

from celery_sqs_visibility.aws.process_lock import SESSIONS

if TYPE_CHECKING:
    from collections.abc import Callable

C = TypeVar("C")


class ProcessClients(Generic[C]):
    """Makes a client when one is first needed. Usable from any thread, and in forked children."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        # By process id. Written under SESSIONS; read without, a dict's look-up being one step.
        self._clients: dict[int, C] = {}

    def get(self) -> C:
        """This process's client.

        Raises:
            Exception: boto3's, about the settings.
        """
        pid = os.getpid()
        client = self._clients.get(pid)
        if client is None:
            with SESSIONS:
                client = self._clients.get(pid) or self._make()
                self._clients[pid] = client
        return client

    def discard(self) -> C | None:
        """Have the next client made anew, with credentials as they are by then; return this process's."""
        with SESSIONS:
            return self._clients.pop(os.getpid(), None)

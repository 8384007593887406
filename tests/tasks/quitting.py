"""The tasks of `work`, in a worker that gets SIGQUIT when the first run is partly sent to a pool process."""

import signal

from billiard.connection import Connection
from work import app

__all__ = ["app"]

HEADER = 4

send = Connection.send_offset
headers = []


def send_and_be_told_to_quit(self, buffer, offset):
    sent = send(self, buffer, offset)
    if len(buffer) == HEADER and not headers:
        headers.append(buffer)
        signal.raise_signal(signal.SIGQUIT)
    return sent


Connection.send_offset = send_and_be_told_to_quit

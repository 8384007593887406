"""A TCP relay that has each piece of a client's request wait, for servers that do not speak HTTP."""

from __future__ import annotations

import contextlib
import socket
import threading
import time


@contextlib.contextmanager
def delayed(port, seconds):
    """The port of a relay to that port of this machine, which passes what clients send on after `seconds`."""
    if not seconds:
        yield port
        return
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, port, seconds), daemon=True).start()
        yield listener.getsockname()[1]


def _accept(listener, port, seconds):
    with contextlib.suppress(OSError):  # closed: the measurement is over
        while True:
            client, _ = listener.accept()
            server = socket.create_connection(("127.0.0.1", port))
            for one, other, wait in ((client, server, seconds), (server, client, 0)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=_pass_on, args=(one, other, wait), daemon=True).start()


def _pass_on(one, other, seconds):
    with contextlib.suppress(OSError):
        while data := one.recv(65536):
            time.sleep(seconds)
            other.sendall(data)
    for each in (one, other):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)

"""A process that connects to SQS with ever new keys: `python -m visiting QUEUE open|publish|consume PAIRS`.

Or it leaves connections to a child: `python -m visiting QUEUE fork`.
"""

import gc
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from weakref import ref

from kombu import Connection

import celery_sqs_visibility.alias  # noqa: F401 - makes the name of the transport known


def connect(key):
    """A connection with keys of its own, and a weak reference to what connections with these keys share."""
    connection = Connection(
        f"sqs://visitor{key}:secret@", transport="celery_sqs_visibility", transport_options=OPTIONS
    )
    return connection, ref(connection.transport.context)


def use(connection, way):
    """Open the connection, publish through it, or publish and consume."""
    connection.connect()
    if way == "open":
        return
    with connection.SimpleQueue(QUEUE) as queue:
        queue.put("message")
        if way == "consume":
            queue.get(timeout=20).ack()


def sockets():
    """The inodes of the open sockets."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing
            found.add(str(descriptor.readlink()))
    return {each for each in found if each.startswith("socket:")}


def visit(keys, way):
    """Connect with each key; how many sockets are open afterwards, and how many shared parts there are."""
    shared = []
    for key in keys:
        connection, context = connect(key)
        with connection:
            use(connection, way)
        shared.append(context)
    del connection
    if way == "consume":
        gc.collect()
    open_sockets = len(sockets())
    gc.collect()
    return open_sockets, sum(context() is not None for context in shared)


def fork():
    """Whether there were sockets, the status of a child that has lost none, and whether they still serve."""
    connection, _ = connect("parent")
    use(connection, "publish")
    inherited = sockets()
    if not (pid := os.fork()):
        connection.close()
        del connection
        visit(range(20), "publish")
        gc.collect()
        os._exit(0 if inherited <= sockets() else 1)
    _, status = os.waitpid(pid, 0)
    use(connection, "publish")
    return bool(inherited), status, inherited == sockets()


if __name__ == "__main__":
    QUEUE, WAY, *PAIRS = sys.argv[1:]
    OPTIONS = {"region": "us-east-1", "wait_time_seconds": 1}
    if PAIRS:
        gc.disable()  # sockets do not wait for it
    sys.stdout.write(json.dumps(visit(range(int(PAIRS[0])), WAY) if PAIRS else fork()))

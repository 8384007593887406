"""A broker that costs nothing: Celery's own share of a task is what a task costs on it."""

from __future__ import annotations

import os
from collections import defaultdict, deque
from typing import ClassVar

from kombu.transport import virtual


class FreeQoS(virtual.QoS):
    restore_at_shutdown = False

    def append(self, message, delivery_tag):
        pass


class FreeChannel(virtual.Channel):
    """Its queues are in memory, and acknowledgements do nothing."""

    QoS = FreeQoS
    do_restore = False
    queues: ClassVar = defaultdict(deque)

    def _put(self, queue, message, **_):
        self.queues[queue].append(message)

    def _size(self, queue):
        return len(self.queues[queue])

    def basic_ack(self, delivery_tag, multiple=False):  # noqa: FBT002 - kombu's
        pass


class FreeBroker(virtual.Transport):
    """Celery's own share of a task is what it costs here."""

    Channel = FreeChannel
    driver_type = driver_name = "free"
    implements = virtual.Transport.implements.extend(asynchronous=True)
    waiting = FreeChannel.queues

    def register_with_event_loop(self, _connection, loop):
        readable, self._written = os.pipe()
        os.write(self._written, b"\0")
        loop.add_reader(readable, self._deliver_ten)

    def _deliver_ten(self):
        for queue, messages in self.waiting.items():
            for _ in range(min(10, len(messages))):
                self._deliver(messages.popleft(), queue)

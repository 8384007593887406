"""kombu's pools of connections and producers, wide enough for all threads that publish.

Celery's `broker_pool_limit`, 10 by default, keeps the sockets to a broker few: an eleventh thread waits until
one of ten has published. A connection to SQS has no socket of its own, and threads that publish at the same
time share requests, so this default only costs time. Any other limit is the user's, and stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kombu import pools

if TYPE_CHECKING:
    from kombu.transport.base import Transport

#: Celery's default (celery/app/defaults.py), and kombu's.
CELERYS_LIMIT: Final = 10

#: As many as there are sockets to SQS: see `aws.client_factory.POOL_CONNECTIONS`.
LIMIT: Final = 64


def raise_default_limit(transport: type[Transport]) -> None:
    """Raise the limit of the pools of that transport's connections. Any thread, any number of times."""
    for producers in tuple(pools.producers.values()):
        connections = producers.connections
        ours = connections.connection.get_transport_cls() is transport
        if ours and connections.limit == producers.limit == CELERYS_LIMIT:
            connections.limit = producers.limit = LIMIT

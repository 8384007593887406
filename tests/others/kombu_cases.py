"""kombu's own cases for any transport, and two of those for SQS, on ours.

They are subclassed, as kombu's transports do; only the connections are of this module. Left out are the
classes for priorities and a time to live, which SQS does not have.
"""

import os
import uuid

import kombu
import pytest
from t.integration import test_sqs as of_sqs
from t.integration.common import (
    BaseEventLoop,
    BaseExchangeTypes,
    BaseFailover,
    BaseMessage,
    BasicFunctionality,
)

REFUSED_PORT = 1


def connect(port, prefix=""):
    """As `get_connection` of kombu's tests for SQS, which also passes the transport a hub."""
    options = {
        "supports_fanout": True,
        "is_secure": False,
        "region": "us-east-1",
        "queue_name_prefix": prefix,
        "wait_time_seconds": 0,
    }
    return kombu.Connection(
        f"sqs://127.0.0.1:{port}", userid="user", password="secret", transport_options=options
    )


@pytest.fixture
def test_queue_prefix():
    return f"{uuid.uuid4().hex[:8]}_"


@pytest.fixture
def connection(test_queue_prefix):
    return connect(os.environ["SQS_PORT"], test_queue_prefix)


@pytest.fixture
def invalid_connection(test_queue_prefix):
    return connect(REFUSED_PORT, test_queue_prefix)


@pytest.fixture
def failover_connection(test_queue_prefix):
    live = os.environ["SQS_PORT"]
    options = connect(live, test_queue_prefix).transport_options
    urls = [f"sqs://user:secret@127.0.0.1:{port}" for port in (REFUSED_PORT, live)]
    return kombu.Connection(urls, transport_options=options)


class TestBasicFunctionality(BasicFunctionality):
    pass


class TestExchangeTypes(BaseExchangeTypes):
    test_fanout = of_sqs.test_SQSBaseExchangeTypes.test_fanout


class TestMessage(BaseMessage):
    pass


class TestEventLoop(BaseEventLoop):
    pass


class TestFailover(BaseFailover):
    pass


test_reject_no_requeue_is_not_redelivered = of_sqs.test_reject_no_requeue_is_not_redelivered

"""Where tests of exclusive tasks keep their keys."""

import signal
import uuid
from contextlib import contextmanager

import boto3
import redis
from support.faults import black_hole
from support.proxy import FaultProxy
from support.redis_server import RedisServer

from celery_sqs_visibility.stores.memory import MemoryStore


def create_table(**client):
    """Make a DynamoDB table as docs/exclusive-tasks.md says; its name."""
    name = f"exclusive-{uuid.uuid4().hex[:8]}"
    dynamodb = boto3.client("dynamodb", region_name="us-east-1", **client)
    dynamodb.create_table(
        TableName=name,
        AttributeDefinitions=[{"AttributeName": "key", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "key", "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
    )
    dynamodb.close()
    return name


class Refusing(MemoryStore):
    """Answers a release with that error."""

    def __init__(self, error):
        super().__init__()
        self._error = error

    def release(self, key, owner):
        raise self._error


class HangingRedis:
    """A Redis that may be stopped."""

    def __init__(self, _emulator, _monkeypatch, directory):
        self._server = RedisServer(directory)
        self.url = self._server.url

    @contextmanager
    def hang(self):
        """It accepts connections, and answers nothing in the block."""
        self._server.signal_main(signal.SIGSTOP)
        try:
            yield
        finally:
            self._server.signal_main(signal.SIGCONT)

    def asked(self):
        """How often a key was asked for, or changed."""
        with redis.Redis.from_url(self.url) as client:
            return client.info("commandstats")["cmdstat_evalsha"]["calls"]

    def __enter__(self):
        self._server.start()
        return self

    def __exit__(self, *_):
        self._server.stop()


class HangingDynamoDB:
    """A table behind a proxy of its own, `way`, which writes down what is asked."""

    def __init__(self, emulator, monkeypatch, _directory):
        self.way = FaultProxy(emulator.url)
        self.url = f"dynamodb://{create_table(endpoint_url=emulator.url)}"
        monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", self.way.url)

    @contextmanager
    def hang(self):
        """It takes requests, and answers nothing in the block."""
        with self.way.inject(black_hole()):
            yield

    def asked(self):
        """How often a key was asked for, or changed."""
        return len(self.way.calls() + self.way.in_flight())

    def __enter__(self):
        self.way.__enter__()
        return self

    def __exit__(self, *exc_info):
        self.way.__exit__(*exc_info)


HANGING_STORES = {"redis": HangingRedis, "dynamodb": HangingDynamoDB}

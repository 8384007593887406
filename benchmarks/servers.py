"""What the contenders talk to: an emulator of SQS, a fast one where ministack is found, and a Redis."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from dataclasses import dataclass

import boto3
from paths import ROOT
from support.processes import GuardedProcess, free_port, wait_until
from support.redis_server import RedisServer, redis_program
from support.sqs_servers import MotoServer

#: Names the interpreter that has ministack, which pins botocore and so wants an environment of its own.
INTERPRETER_VARIABLE = "MINISTACK_PYTHON"
OWN_ENVIRONMENT = ROOT / "benchmarks/.venv/bin/python"

START_SECONDS = 60
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "made-up",
    "AWS_SECRET_ACCESS_KEY": "made-up",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@dataclass(frozen=True)
class Server:
    """Something that listens on 127.0.0.1: its name, and its main process."""

    name: str
    url: str
    pid: int


def ministack_python():
    """The interpreter that has ministack, or `None`."""
    named = os.environ.get(INTERPRETER_VARIABLE)
    if named:
        return named
    if OWN_ENVIRONMENT.exists():
        return str(OWN_ENVIRONMENT)
    return sys.executable if importlib.util.find_spec("ministack") else None


@contextlib.contextmanager
def sqs_server(directory):
    """Ministack, else moto, whose receive is linear in the backlog."""
    python = ministack_python()
    if python is None:
        with MotoServer(directory) as moto:
            yield Server("moto", moto.url, moto.pid)
        return
    port = free_port()
    environment = {**os.environ, "BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port), "IOT_MTLS_PORT": "0"}
    process = GuardedProcess([python, "-m", "ministack"], directory / "ministack.log", environment)
    process.start()
    url = f"http://127.0.0.1:{port}"
    client = boto3.client("sqs", endpoint_url=url)

    def answers():
        with contextlib.suppress(Exception):
            return client.list_queues()
        return None

    try:
        wait_until(answers, START_SECONDS, lambda: process.log)
        yield Server("ministack", url, process.pid)
    finally:
        process.stop()


@contextlib.contextmanager
def redis_server(directory):
    """A Redis that keeps nothing on disk; `None` where there is no `redis-server`."""
    if redis_program() is None:
        yield None
        return
    with RedisServer(directory) as redis:
        yield Server("redis", redis.url, redis.pid)


@contextlib.contextmanager
def emulator(directory):
    """The URL of an SQS."""
    with sqs_server(directory) as server:
        yield server.url

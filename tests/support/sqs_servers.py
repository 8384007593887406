"""Servers that speak SQS, as processes of their own on 127.0.0.1. Which one a test gets is decided here.

The emulators have SNS and S3, too; the fake, served, has SQS alone, once for each of its switches.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING

from support.processes import GuardedProcess, free_port, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Self

#: What every program of a test finds, and nothing of the developer's own account, nor of the machine's role.
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "made-up",
    "AWS_SECRET_ACCESS_KEY": "made-up",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}

MOTO_SECONDS = 60  # importing moto takes seconds on a busy machine


class MotoServer(GuardedProcess):
    """An SQS endpoint on 127.0.0.1. `start()` returns when it listens."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "celery_sqs_visibility.contacts.moto_server"]
        command += ["-H", "127.0.0.1", "-p", str(self.port)]
        super().__init__(command, directory / f"moto-{self.port}.log")

    def start(self) -> Self:
        return super().start().wait_for_log("Running on", MOTO_SECONDS)


SUPPORT = Path(__file__).parent
ROOT = SUPPORT.parents[1]
START_SECONDS = 120

#: The interpreters of emulators that have environments of their own, and what installs them.
INTERPRETERS = {
    "ministack": ROOT / "benchmarks/.venv/bin/python",
    "localstack": ROOT / ".venvs/localstack/bin/python",
}
INSTALLED_BY = "make behaviours"

EMULATORS = ("moto", "ministack", "localstack")

#: The switches of `FakeSQS`, by the name of the server that has them.
FAKES: Mapping[str, Mapping[str, object]] = {
    "fake": {},
    "fake:late_change=hides": {"late_change": "HIDES"},
    "fake:late_change=is_refused": {"late_change": "IS_REFUSED"},
    "fake:late_fifo_change=does_nothing": {"late_fifo_change": "DOES_NOTHING"},
    "fake:late_fifo_change=hides": {"late_fifo_change": "HIDES"},
    "fake:old_handle_deletes": {"old_handle_deletes": True},
    "fake:names_rest=no": {"names_rest": False},
}

SERVERS = (*EMULATORS, *FAKES)


@dataclass(frozen=True)
class SQSServer:
    """One that runs. `implementation` is its name in the rows of behaviours.jsonl."""

    name: str
    port: int

    @property
    def url(self) -> str:
        """The endpoint."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def implementation(self) -> str:
        """Its name in the rows of behaviours.jsonl."""
        return implementation(self.name)


def implementation(name: str) -> str:
    """The server's name in the rows of behaviours.jsonl: a fake is the fake, whatever its switches."""
    return name.partition(":")[0]


def is_installed(name: str) -> bool:
    """Whether that server can be started here; moto and the fake always can, since the tests need them."""
    return name not in INTERPRETERS or INTERPRETERS[name].exists()


@contextmanager
def sqs_server(name: str, directory: Path) -> Iterator[SQSServer]:
    """That server, started for this."""
    if name == "moto":
        with MotoServer(directory) as moto:
            yield SQSServer(name, moto.port)
        return
    port = free_port()
    environment: dict[str, str] = {}
    match implementation(name):
        case "fake":
            switches = json.dumps(FAKES[name])
            command = [sys.executable, str(SUPPORT / "fake_server.py"), str(port), switches]
            environment = {"PYTHONPATH": str(ROOT)}
        case "ministack":
            command = [str(INTERPRETERS[name]), "-m", "ministack"]
            environment = {"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port), "IOT_MTLS_PORT": "0"}
        case "localstack":
            command = [str(INTERPRETERS[name]), str(SUPPORT / "localstack_server.py")]
            environment = _localstack(port, directory)
        case _:
            raise ValueError(f"expected one of {', '.join(SERVERS)}, got {name!r}")
    with _started(command, port, environment, directory):
        yield SQSServer(name, port)


def _localstack(port: int, directory: Path) -> dict[str, str]:
    return {
        "SERVICES": "sqs,sns,s3",
        "EAGER_SERVICE_LOADING": "0",
        "SKIP_SSL_CERT_DOWNLOAD": "1",
        "DISABLE_EVENTS": "1",
        "DNS_ADDRESS": "0",
        "SQS_ENDPOINT_STRATEGY": "dynamic",
        "GATEWAY_LISTEN": f"127.0.0.1:{port}",
        "LOCALSTACK_VOLUME_DIR": str(directory),
    }


@contextmanager
def _started(
    command: Sequence[str], port: int, environment: Mapping[str, str], directory: Path
) -> Iterator[None]:
    log = directory / f"{port}.log"
    with GuardedProcess(command, log, {**os.environ, **environment}, directory) as process:
        wait_until(lambda: _lists_queues(port) or not process.running, START_SECONDS, lambda: process.log)
        if not process.running:
            raise RuntimeError(f"exited with {process.returncode}. Its log:\n{process.log}")
        yield


def _lists_queues(port: int) -> bool:
    """Whether it answers, with SQS in place."""
    credential = "Credential=made-up/20260101/us-east-1/sqs/aws4_request"
    headers = {
        "Content-Type": "application/x-amz-json-1.0",
        "X-Amz-Target": "AmazonSQS.ListQueues",
        "Authorization": f"AWS4-HMAC-SHA256 {credential}, SignedHeaders=host, Signature=0",
    }
    with closing(HTTPConnection("127.0.0.1", port, timeout=START_SECONDS)) as connection, suppress(OSError):
        connection.request("POST", "/", "{}", headers)
        return connection.getresponse().status == 200
    return False

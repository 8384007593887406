"""Servers that rows are replayed on: emulators as processes of their own on 127.0.0.1, and AWS."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from support.behaviours.targets import BotoTarget
from support.emulator import MotoServer
from support.processes import GuardedProcess, free_port, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).parents[3]
START_SECONDS = 120

#: The interpreters of emulators that have environments of their own, and what installs them.
INTERPRETERS = {
    "ministack": ROOT / "benchmarks/.venv/bin/python",
    "localstack": ROOT / ".venvs/localstack/bin/python",
}
INSTALLED_BY = "make behaviours"

#: Asks AWS, too, with the credentials of the environment.
AWS_VARIABLE = "AWS_CONFORMANCE"

#: Seconds of a unit: AWS takes a part of a second for a request, and two seconds for an empty answer.
AWS_UNIT = 10.0

#: LocalStack looks once a second whether a message is visible again.
LOCALSTACK_UNIT = 2.0


def is_installed(name: str) -> bool:
    """Whether that server can be started here; moto always can, since the tests need it."""
    return name not in INTERPRETERS or INTERPRETERS[name].exists()


def asks_aws() -> bool:
    """Whether AWS is to be asked."""
    return os.environ.get(AWS_VARIABLE) == "1"


@contextmanager
def server(name: str, directory: Path) -> Iterator[BotoTarget]:
    """That server, started for this."""
    match name:
        case "moto":
            with MotoServer(directory) as moto:
                yield from _target(moto.url)
        case "ministack":
            port = free_port()
            environment = {"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port), "IOT_MTLS_PORT": "0"}
            with _started(name, ["-m", "ministack"], port, environment, directory) as url:
                yield from _target(url)
        case "localstack":
            port = free_port()
            script = str(ROOT / "tests/support/localstack_server.py")
            with _started(name, [script], port, _localstack(port, directory), directory) as url:
                yield from _target(url, LOCALSTACK_UNIT)
        case "aws":
            if not asks_aws():
                raise ValueError(f"AWS is asked with {AWS_VARIABLE}=1 only")
            yield from _target(None, AWS_UNIT)


def _target(url: str | None, unit: float = 1.0) -> Iterator[BotoTarget]:
    target = BotoTarget(url, unit=unit, is_sampled=url is None)
    try:
        yield target
    finally:
        target.close()


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
    name: str, arguments: list[str], port: int, environment: Mapping[str, str], directory: Path
) -> Iterator[str]:
    command = [str(INTERPRETERS[name]), *arguments]
    process = GuardedProcess(command, directory / f"{name}.log", {**os.environ, **environment}, directory)
    url = f"http://127.0.0.1:{port}"
    target = BotoTarget(url)

    def answers() -> bool:
        with suppress(Exception):
            target.list("no-such-queue")
            return True
        return False

    process.start()
    try:
        wait_until(answers, START_SECONDS, lambda: process.log)
        yield url
    finally:
        target.close()
        process.stop()

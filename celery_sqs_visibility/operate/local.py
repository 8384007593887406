"""`celery sqs local`: moto's server in this process, as an SQS for development on this machine."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Final

import click

from celery_sqs_visibility.operate.invocation import (
    CommandError,
    end_with_parent,
    json_option,
    stop_on_signals,
)

HOST: Final = "127.0.0.1"

#: Seconds until the server must answer: moto imports a service when it is first asked for.
START_SECONDS: Final = 30

#: Settings besides the endpoint; moto accepts any credentials.
ENVIRONMENT: Final = {
    "AWS_ACCESS_KEY_ID": "local",
    "AWS_SECRET_ACCESS_KEY": "local",
    "AWS_DEFAULT_REGION": "us-east-1",
}

#: The kernel may hand a signal to another thread. Python runs its handler once the main thread wakes.
SIGNAL_SECONDS: Final = 1.0


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9324,  # ElasticMQ's, which its users have in their settings
    show_default=True,
    help="0 picks a free port.",
)
@click.option("--with-parent", type=int, hidden=True, help="End after this parent process.")
@json_option
def local(port: int, with_parent: int | None, as_json: bool) -> None:  # noqa: FBT001 - click's
    """Serve an SQS for development on 127.0.0.1, until Ctrl-C.

    It prints the line to paste where workers and producers start. It needs no AWS account, keeps everything
    in memory, and has S3, SNS and DynamoDB, too.
    """
    with _listening(port) as listener, _serving(listener) as url, stop_on_signals() as stop:
        _show(url, as_json=as_json)
        if with_parent is not None:
            end_with_parent(with_parent, stop.set)
        while not stop.wait(SIGNAL_SECONDS):
            pass


def _show(url: str, *, as_json: bool) -> None:
    environment = {"AWS_ENDPOINT_URL": url, **ENVIRONMENT}
    if as_json:
        click.echo(json.dumps({"endpoint": url, "environment": environment}))
    else:
        click.echo(f"SQS listens at {url} until Ctrl-C, and forgets everything then. In other terminals:\n")
        click.echo("export " + " ".join(f"{name}={value}" for name, value in environment.items()))
        click.echo("\nWorkers that used an earlier one need new queues: celery -A ... sqs queues create")


@contextmanager
def _listening(port: int) -> Iterator[socket.socket]:
    try:
        listener = socket.create_server((HOST, port))
    except OSError as error:
        raise CommandError(f"cannot listen at {HOST}:{port}: {error.strerror}. Name another --port") from None
    with closing(listener):
        yield listener


@contextmanager
def _serving(listener: socket.socket) -> Iterator[str]:
    """Serve in a thread. Yields the URL once SQS answers there."""
    try:
        from moto.moto_server.werkzeug_app import (  # noqa: PLC0415 - an extra
            DomainDispatcherApplication,
            MotoRequestHandler,
            create_backend_app,
        )
        from werkzeug.serving import make_server  # noqa: PLC0415

        from celery_sqs_visibility.contacts.moto_server import mend  # noqa: PLC0415
    except ImportError:
        raise CommandError(
            "the SQS for development is moto, which is missing: pip install 'celery_sqs_visibility[local]'"
        ) from None

    class Quiet(MotoRequestHandler):
        """A handler without a log of requests."""

        def log_request(self, *_: object) -> None:
            pass

    mend()
    host, port = listener.getsockname()
    app = DomainDispatcherApplication(create_backend_app)
    server = make_server(host, port, app, threaded=True, request_handler=Quiet, fd=listener.fileno())
    threading.Thread(target=server.serve_forever, name="sqs-local", daemon=True).start()
    try:
        _ask(host, port)
        yield f"http://{host}:{port}"
    finally:
        server.shutdown()
        server.server_close()


def _ask(host: str, port: int) -> None:
    """Check that the server answers ListQueues."""
    with closing(http.client.HTTPConnection(host, port, timeout=START_SECONDS)) as connection:
        headers = {
            "X-Amz-Target": "AmazonSQS.ListQueues",
            "Content-Type": "application/x-amz-json-1.0",
            # Tells moto the service and the region.
            "Authorization": "AWS4-HMAC-SHA256 Credential=local/20200101/us-east-1/sqs/aws4_request",
        }
        connection.request("POST", "/", b"{}", headers)
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise CommandError(f"moto does not answer as SQS: {answer.status} {answer.reason}")

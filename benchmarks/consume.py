"""How fast, and with how many requests, a worker consumes no-op tasks: ours beside kombu's SQS transport.

    python benchmarks/consume.py [--tasks 2000] [--latency 0.010] [--pool prefork] [--repeats 3]

Both run the same task module on the same emulator (ministack where it is installed, else moto, whose receive
is linear in the backlog), behind a proxy that adds the latency to every call and counts. Needs the test
dependencies, and pycurl for kombu's transport.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import statistics
import sys
import tempfile
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]

import boto3  # noqa: E402
from support.app import make_app  # noqa: E402
from support.emulator import MotoServer  # noqa: E402
from support.faults import latency  # noqa: E402
from support.processes import GuardedProcess, free_port, wait_until  # noqa: E402
from support.proxy import FaultProxy  # noqa: E402
from support.worker import WorkerProcess  # noqa: E402

CONTENDERS = {
    "kombu, defaults": ("sqs", {}),
    "kombu, polling_interval=0.01": ("sqs", {"polling_interval": 0.01}),
    "celery_sqs_visibility": ("celery_sqs_visibility", {}),
}
BATCH = 10
DEADLINE = 300


@contextlib.contextmanager
def emulator(directory):
    """An SQS on 127.0.0.1: its URL."""
    if importlib.util.find_spec("ministack") is None:
        with MotoServer(directory) as moto:
            yield moto.url
        return
    port = free_port()
    environment = {**os.environ, "BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port), "IOT_MTLS_PORT": "0"}
    server = GuardedProcess([sys.executable, "-m", "ministack"], directory / "ministack.log", environment)
    server.start()
    url = f"http://127.0.0.1:{port}"
    client = boto3.client("sqs", endpoint_url=url)

    def answers():
        with contextlib.suppress(Exception):
            return client.list_queues()
        return None

    try:
        wait_until(answers, 60, lambda: server.log)
        yield url
    finally:
        server.stop()


def fill(app, client, queue, tasks):
    """Put that many messages into a new queue."""
    url = client.create_queue(QueueName=queue)["QueueUrl"]
    for _ in range(tasks):
        app.send_task("tasks.nothing")
    return url


def measure(transport, options, upstream, arguments, directory):
    """Run one worker until the queue is empty; tasks a second, requests a task, main-process CPU a task."""
    queue = f"bench-{uuid.uuid4().hex[:8]}"
    client = boto3.client("sqs", endpoint_url=upstream)
    with FaultProxy(upstream) as proxy:
        config = {
            "broker_url": f"sqs://made-up:made-up@127.0.0.1:{proxy.port}",
            "task_default_queue": queue,
            "broker_transport": "celery_sqs_visibility",
            "broker_transport_options": {"region": "us-east-1", "is_secure": False},
        }
        fill(make_app("producer", config, set_as_current=False), client, queue, arguments.tasks)
        proxy.clear()
        proxy.inject(latency(arguments.latency))
        config["broker_transport"] = transport
        config["broker_transport_options"] = {**config["broker_transport_options"], **options}
        worker = WorkerProcess(
            "tasks",
            directory / f"{queue}.log",
            pool=arguments.pool,
            loglevel="WARNING",
            config=config,
            import_paths=[Path(__file__).parent],
        )
        with worker:
            deleted = wait_until(
                lambda: drained(proxy, arguments.tasks), DEADLINE, lambda: worker.log[-2000:]
            )
            cpu = worker.cpu_seconds()
        received = [
            c for c in proxy.calls("ReceiveMessage", queue=queue) if (c.response or {}).get("Messages")
        ]
        requests = len(received) + len(deleted)
        seconds = max(c.finished for c in deleted) - received[0].finished
    return arguments.tasks / seconds, requests / arguments.tasks, 1000 * cpu / arguments.tasks


def drained(proxy, tasks):
    """The delete requests, once they cover all tasks."""
    deletes = [c for c in proxy.calls() if c.action.startswith("DeleteMessage") and c.finished]
    done = sum(len(c.request.get("Entries", [None])) for c in deletes)
    return deletes if done >= tasks else None


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--latency", type=float, default=0.010)
    parser.add_argument("--pool", default="prefork")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", help="a contender's name, or a part of it")
    arguments = parser.parse_args()
    os.environ.update(
        AWS_ACCESS_KEY_ID="made-up", AWS_SECRET_ACCESS_KEY="made-up", AWS_DEFAULT_REGION="us-east-1"
    )
    print(
        f"{arguments.tasks} no-op tasks, {1000 * arguments.latency:g} ms added a call, {arguments.pool} of 2"
    )
    print(f"{'':32}{'tasks/s':>9}{'requests/task':>15}{'CPU ms/task':>13}")
    with tempfile.TemporaryDirectory() as directory, emulator(Path(directory)) as url:
        for name, (transport, options) in CONTENDERS.items():
            if arguments.only and arguments.only not in name:
                continue
            runs = [
                measure(transport, options, url, arguments, Path(directory)) for _ in range(arguments.repeats)
            ]
            rate, requests, cpu = (statistics.median(column) for column in zip(*runs, strict=True))
            print(f"{name:32}{rate:9.0f}{requests:15.3f}{cpu:13.2f}", flush=True)


if __name__ == "__main__":
    main()

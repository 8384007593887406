"""How fast, and with how many requests, tasks are published: ours beside kombu's SQS transport.

    python benchmarks/publish.py [--tasks 5000] [--latency 0.010] [--repeats 3] [--endpoint http://127.0.0.1:4566]

Each run is a producer process of its own, against the same emulator (the one at the endpoint; else ministack
where it is installed, else moto, which takes the longer to send the fuller the queue is), behind a proxy
process that adds the latency to every call and counts. With `--endpoint answers` the proxy answers by
itself, so that the producer is measured and not the emulator. Needs the test dependencies, and pycurl for
kombu's transport.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "benchmarks")]

from consume import DEADLINE, emulator  # noqa: E402
from support.app import make_app  # noqa: E402
from support.faults import Disconnected, json_answer, latency  # noqa: E402
from support.proxy import FaultProxy  # noqa: E402

ANSWERS = "answers"
WARM_UP = 20
CONTENDERS = {  # the transport, whether in a block, the share of the tasks
    "kombu, delay()": ("sqs", False, 0.1),
    "ours, delay()": ("celery_sqs_visibility", False, 0.1),
    "ours, publish_batch": ("celery_sqs_visibility", True, 1.0),
    "ours, publish_batch, 4 threads": ("celery_sqs_visibility", 4, 1.0),
}


def answer(request, _forward, _removed):
    """Say yes to everything: an SQS that costs nothing."""
    parameters = request.parameters
    sent = {"MessageId": "m", "MD5OfMessageBody": "0"}
    match request.action:
        case "SendMessageBatch":
            entries = parameters["Entries"]
            return json_answer(200, {"Successful": [{"Id": e["Id"], **sent} for e in entries], "Failed": []})
        case "SendMessage":
            return json_answer(200, sent)
        case "GetQueueUrl" | "CreateQueue":
            return json_answer(200, {"QueueUrl": f"http://sqs/1/{parameters['QueueName']}"})
        case "GetQueueAttributes":
            return json_answer(200, {"Attributes": {"ApproximateNumberOfMessages": "0"}})
        case "ListQueues":
            return json_answer(200, {"QueueUrls": []})
    raise Disconnected(request.action)


def produce(port, queue, transport, block, tasks):
    """Publish, in a process of its own, once its parent says so; prints seconds and CPU seconds."""
    from celery_sqs_visibility import publish_batch  # noqa: PLC0415 - not in the parent

    options = {"region": "us-east-1", "is_secure": False}
    config = {
        "broker_url": f"sqs://made-up:made-up@127.0.0.1:{port}",
        "broker_transport": transport,
        "broker_transport_options": options,
        "task_default_queue": queue,
    }
    app = make_app("producer", config)

    @app.task(name="tasks.nothing")
    def nothing(number, text):
        """Never runs here."""

    def publish(count):
        for number in range(count):
            nothing.delay(number, text="twenty characters...")

    publish(WARM_UP)
    print("ready", flush=True)
    sys.stdin.readline()
    started, cpu = time.monotonic(), time.process_time()
    with publish_batch(app) if block else contextlib.nullcontext():
        if block > 1:
            in_threads(publish, block, tasks // block)
        else:
            publish(tasks)
    print(json.dumps([time.monotonic() - started, time.process_time() - cpu]))


def in_threads(publish, threads, each):
    started = [threading.Thread(target=publish, args=(each,)) for _ in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()


def measure(upstream, transport, block, tasks, arguments):
    """One run: tasks a second, requests a task, CPU milliseconds a task."""
    queue = f"bench-{uuid.uuid4().hex[:8]}"
    with FaultProxy(upstream) as proxy:
        proxy.inject(latency(arguments.latency))
        if arguments.endpoint == ANSWERS:
            proxy.inject(answer)
        command = [
            sys.executable,
            __file__,
            "--produce",
            json.dumps([proxy.port, queue, transport, block, tasks]),
        ]
        producer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        with producer:
            assert producer.stdout.readline() == "ready\n"
            proxy.clear()
            output, _ = producer.communicate("go\n", timeout=DEADLINE)
        sends = [call for call in proxy.calls() if call.action.startswith("SendMessage")]
    seconds, cpu = json.loads(output)
    return tasks / seconds, len(sends) / tasks, 1000 * cpu / tasks


def endpoint(arguments, directory):
    """Where the proxy leads."""
    if arguments.endpoint == ANSWERS:
        return contextlib.nullcontext("http://127.0.0.1:9")
    return contextlib.nullcontext(arguments.endpoint) if arguments.endpoint else emulator(Path(directory))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=5000)
    parser.add_argument("--latency", type=float, default=0.010)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--endpoint", help=f"an emulator's URL, or {ANSWERS!r}")
    parser.add_argument("--only", default="", help="a contender's name, or a part of it")
    parser.add_argument("--produce", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.produce:
        produce(*json.loads(arguments.produce))
        return
    os.environ.update(
        AWS_ACCESS_KEY_ID="made-up", AWS_SECRET_ACCESS_KEY="made-up", AWS_DEFAULT_REGION="us-east-1"
    )
    print(f"{arguments.tasks} tasks, {1000 * arguments.latency:g} ms added a call")
    print(f"{'':32}{'tasks/s':>9}{'requests/task':>15}{'CPU ms/task':>13}")
    with tempfile.TemporaryDirectory() as directory, endpoint(arguments, directory) as url:
        for name, (transport, block, share) in CONTENDERS.items():
            if arguments.only not in name:
                continue
            tasks = int(arguments.tasks * share)
            runs = [measure(url, transport, block, tasks, arguments) for _ in range(arguments.repeats)]
            rate, requests, cpu = (statistics.median(column) for column in zip(*runs, strict=True))
            print(f"{name:32}{rate:9.0f}{requests:15.3f}{cpu:13.2f}", flush=True)


if __name__ == "__main__":
    main()

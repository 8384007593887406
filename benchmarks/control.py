"""Remote control of many workers: how long until all have answered a `ping`, and what CPU the caller needs.

    python benchmarks/control.py [--workers 1000] [--latency 0.010]

The workers are simulated, in the process of an SQS that only does what this takes, and waits before each
answer. So the two cores are the caller's, but for what that server takes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
import uuid
from collections import defaultdict, deque
from pathlib import Path

from botocore import xform_name

sys.path.insert(0, str(Path(__file__).parent.parent))

PREFIX = "celery-control-"
DEADLINE_SECONDS = 120
POLL_SECONDS = 20
OWN_EXCHANGE = "celery.pidbox"


class SimulatedSQS:
    """Queues in memory, and the workers: who are the queues that the list has. The event loop's thread."""

    def __init__(self, base, names, latency):
        self.latency = latency
        self.workers = {f"{base}/{name}": f"worker{number}@host" for number, name in enumerate(names)}
        self.base = base
        self.messages = defaultdict(deque)
        self.polls = defaultdict(deque)

    async def answer(self, action, request):
        """The answer, as late as SQS's."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        answer = await getattr(self, xform_name(action))(request)
        if action == "SendMessage" and (node := self.workers.get(request["QueueUrl"])):
            # A worker's poll is answered while the caller's request is, and its reply is a request more.
            loop.call_later(2 * self.latency, self.reply, node, request["MessageBody"])
        waited = self.latency if action == "ReceiveMessage" else began + self.latency - loop.time()
        await asyncio.sleep(waited)
        return answer

    def reply(self, node, text):
        """What a worker says to `ping`."""
        command = json.loads(json.loads(text)["body"])
        address, _, key = command["reply_to"]["routing_key"].partition(".")
        exchange = command["reply_to"]["exchange"]
        properties = {"delivery_info": {"exchange": exchange, "routing_key": key}, "expires_in": None}
        body = json.dumps({node: {"ok": "pong"}})
        headers = {"ticket": command["ticket"], "clock": 1}
        message = {"body": body, "content-type": "application/json", "headers": headers}
        self.put(address, json.dumps({**message, "properties": properties}))

    def put(self, address, text):
        attributes = {"ApproximateFirstReceiveTimestamp": "0", "SentTimestamp": "0"}
        message = {"MessageId": str(uuid.uuid4()), "ReceiptHandle": "x", "Body": text}
        self.messages[address].append({**message, "Attributes": attributes})
        if polls := self.polls[address]:
            polls.popleft().set()

    async def list_queues(self, request):
        urls = [url for url in self.workers if url.startswith(f"{self.base}/{request['QueueNamePrefix']}")]
        return {"QueueUrls": urls}

    async def create_queue(self, request):
        return {"QueueUrl": f"{self.base}/{request['QueueName']}"}

    async def send_message(self, _request):
        return {"MessageId": str(uuid.uuid4()), "MD5OfMessageBody": "0"}

    async def receive_message(self, request):
        address = "-".join(request["QueueUrl"].rsplit("-", 2)[1:])
        waiting = self.messages[address]
        if not waiting:
            self.polls[address].append(arrived := asyncio.Event())
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(arrived.wait(), request.get("WaitTimeSeconds", 0))
        taken = [waiting.popleft() for _ in range(min(len(waiting), request["MaxNumberOfMessages"]))]
        return {"Messages": taken}

    async def tag_queue(self, _request):
        return {}

    delete_queue = tag_queue


async def serve(sqs, reader, writer):
    """One connection."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[1:-2]
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            request = json.loads(await reader.readexactly(int(headers["content-length"])))
            action = headers["x-amz-target"].rpartition(".")[2]
            body = json.dumps(await sqs.answer(action, request)).encode()
            head = (
                f"HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.0\r\nContent-Length: {len(body)}"
            )
            writer.write(f"{head}\r\n\r\n".encode() + body)
    writer.close()


async def be_server(workers, latency):
    """The server's process, until its standard input ends."""
    from celery_sqs_visibility.policy.control_names import address, exchange_prefix  # noqa: PLC0415

    first = exchange_prefix(PREFIX, OWN_EXCHANGE)
    names = [first + address(f"worker{number}@host", f"{number:012x}") for number in range(workers)]
    server = await asyncio.start_server(lambda *streams: serve(sqs, *streams), "127.0.0.1", 0, backlog=512)
    base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    sqs = SimulatedSQS(f"{base}/000000000000", names, latency)
    print(base, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    print(time.process_time(), flush=True)
    os._exit(0)  # connections are still open


def be_caller(workers):
    """The caller's process: two pings."""
    from celery import Celery  # noqa: PLC0415

    app = Celery("caller", broker="celery-sqs-visibility://")
    app.conf.broker_transport_options = {"remote_control": True, "region": "us-east-1"}
    figures = []
    for _ in range(2):
        began, cpu = time.monotonic(), time.process_time()
        answers = app.control.ping(timeout=DEADLINE_SECONDS / 4, limit=workers)
        figures.append((len(answers), time.monotonic() - began, time.process_time() - cpu))
    print(json.dumps(figures))


def main():
    """Start both processes, and print what the caller's says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--latency", type=float, default=0.010, help="seconds a call")
    parser.add_argument("--be", choices=("server", "caller"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.be == "server":
        asyncio.run(be_server(arguments.workers, arguments.latency))
    elif arguments.be == "caller":
        be_caller(arguments.workers)
    else:
        measure(arguments.workers, arguments.latency)


def measure(workers, latency):
    """Print a line for each of the two calls."""
    command = [sys.executable, __file__, f"--workers={workers}", f"--latency={latency}", "--be"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, "server"], **pipes) as server:
        credentials = {"AWS_ACCESS_KEY_ID": "made-up", "AWS_SECRET_ACCESS_KEY": "made-up"}
        environment = {**os.environ, **credentials, "AWS_ENDPOINT_URL_SQS": server.stdout.readline().strip()}
        caller = [*command, "caller"]
        run = {"stdout": subprocess.PIPE, "text": True, "timeout": DEADLINE_SECONDS}
        try:
            figures = json.loads(subprocess.run(caller, check=True, env=environment, **run).stdout)
        finally:
            server_cpu, _ = server.communicate(timeout=10)
    for name, (answers, seconds, cpu) in zip(("first", "second"), figures, strict=True):
        print(f"{name} ping: {answers} answers in {seconds:.2f} s, {cpu:.2f} s of CPU in the caller")
    print(f"server: {float(server_cpu):.2f} s of CPU; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()

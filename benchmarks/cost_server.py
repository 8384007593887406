"""An SQS that answers every request at once, with ten of everything, in a process of its own.

    python benchmarks/cost_server.py

It prints its port, and ends with its standard input.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import socketserver
import subprocess
import sys
import threading

TOGETHER = 10
HANDLE = "A" * 180


@contextlib.contextmanager
def running():
    """Its URL."""
    with subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.stdin.close()


def message(number):
    """As SQS answers it: a body of a thousand characters, as one of Celery's without arguments has."""
    body = base64.b64encode(str(number).rjust(750).encode()).decode()
    return {
        "MessageId": f"{number:08x}-0000-4000-8000-000000000000",
        "ReceiptHandle": HANDLE,
        "MD5OfBody": hashlib.md5(body.encode(), usedforsecurity=False).hexdigest(),
        "Body": body,
        "Attributes": {"ApproximateReceiveCount": "1", "SentTimestamp": "1700000000000"},
    }


ANSWERS = {
    "GetQueueUrl": {"QueueUrl": "http://127.0.0.1/123456789012/celery"},
    "ReceiveMessage": {"Messages": [message(number) for number in range(TOGETHER)]},
    "DeleteMessageBatch": {"Successful": [{"Id": str(number)} for number in range(TOGETHER)], "Failed": []},
    "SendMessage": {"MessageId": message(0)["MessageId"], "MD5OfMessageBody": message(0)["MD5OfBody"]},
}
HEAD = (
    "HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.0\r\nContent-Length: {}\r\n"
    "Date: Mon, 01 Jan 2024 00:00:00 GMT\r\nx-amzn-RequestId: 00000000-0000-4000-8000-000000000000\r\n\r\n"
)
BODIES = {action: json.dumps(answer).encode() for action, answer in ANSWERS.items()}


class Answerer(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True

    def handle(self):
        while action := self._asked():
            body = BODIES[action]
            head = HEAD.format(len(body))
            self.wfile.write(head.encode() + body)

    def _asked(self):
        """The action of the next request, which is read to its end."""
        headers = {}
        if not self.rfile.readline():
            return None
        while line := self.rfile.readline().strip():
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        self.rfile.read(int(headers["content-length"]))
        return headers["x-amz-target"].rpartition(".")[2]


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True


if __name__ == "__main__":
    with Server(("127.0.0.1", 0), Answerer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(server.server_address[1], flush=True)
        sys.stdin.read()
        os._exit(0)

"""What the proxy itself can do, so that nobody takes its limit for a contender's."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from meter import Clockwork, Meter, metered
from queues import create, new_name
from results import Result
from support.faults import json_answer

NAME = "proxy"
POLLERS = 6
SECONDS = 4
PROGRAM = """
import http.client, json, sys, threading, time
port, queue, pollers, seconds = json.loads(sys.argv[1])
body = json.dumps({"QueueUrl": f"http://127.0.0.1:{port}/000000000000/{queue}"}).encode()
headers = {"X-Amz-Target": "AmazonSQS.ReceiveMessage", "Content-Type": "application/x-amz-json-1.0"}
until = time.monotonic() + seconds
counts = []

def poll():
    connection = http.client.HTTPConnection("127.0.0.1", port)
    count = 0
    while time.monotonic() < until:
        connection.request("POST", "/", body, headers)
        connection.getresponse().read()
        count += 1
    counts.append(count)

threads = [threading.Thread(target=poll) for _ in range(pollers)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sum(counts))
"""


def measure(_arguments, servers):
    """Six pollers in a process of their own, as fast as they can: an answer at once, and the emulator's."""
    yield run("answers by itself", servers, answer=True)
    yield run(f"before {servers.sqs.name}", servers, answer=False)


def run(case, servers, *, answer):
    queue = new_name()
    create(servers.sqs, queue)
    clockwork = Clockwork()
    clockwork.watch(proxy=os.getpid(), server=servers.sqs.pid)
    result = Result(NAME, case, f"{POLLERS} pollers")
    with metered(servers.sqs.url, 0, Meter()) as proxy:
        if answer:
            proxy.inject(lambda *_: json_answer(200, {}))
        first = clockwork.now()
        command = [sys.executable, "-c", PROGRAM, json.dumps([proxy.port, queue, POLLERS, SECONDS])]
        calls = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        last = clockwork.now()
    took = last.at - first.at
    cores = {name: (last.cpu[name] - first.cpu[name]) / took for name in last.cpu}
    result.add(calls_per_s=calls / SECONDS, proxy_cores=cores["proxy"], server_cores=cores["server"])
    return result

"""One run of all benchmarks, or of those that are named, for all contenders in turn.

    python benchmarks/bench.py [consume several publish idle heartbeat retries memory proxy]
        [--tasks 2000] [--repeats 3] [--json FILE] [--write docs/benchmarks.md]

The same task module runs on kombu's SQS transport, on ours, and on Redis if a `redis-server` is found. Both
SQS transports talk to the same emulator: ministack, if benchmarks/.venv or the interpreter named by
MINISTACK_PYTHON has it, else moto, whose receive is linear in the backlog. In between is the tests' fault
proxy, which counts every call and adds the latency. Needs the test dependencies.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import consume
import footprint
import idle
import inflight
import proxying
import publish
import report
import retries
import several
from results import Result, by_measurement, table
from servers import CREDENTIALS, Server, redis_server, sqs_server

MEASUREMENTS = {
    module.NAME: module
    for module in (proxying, consume, several, publish, retries, idle, inflight, footprint)
}


@dataclass(frozen=True)
class Servers:
    """What runs for the whole of a run, and where logs go."""

    sqs: Server
    redis: Server | None
    directory: Path


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("measurements", nargs="*", help=f"of {', '.join(MEASUREMENTS)}; all by default")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=4000, help="to consume")
    parser.add_argument("--each", type=int, default=1000, help="tasks in each of several queues")
    parser.add_argument("--publish-tasks", type=int, default=5000)
    parser.add_argument("--latency", type=float, nargs="+", default=[0.010, 0.050], help="seconds a call")
    parser.add_argument("--pool", nargs="+", default=["prefork", "threads"])
    parser.add_argument("--idle-seconds", type=float, default=120)
    parser.add_argument("--failing", type=int, default=200, help="tasks that fail once")
    parser.add_argument("--in-flight", type=int, default=10_000, help="messages for the heartbeat")
    parser.add_argument("--beat-seconds", type=float, default=120)
    parser.add_argument("--in-memory", type=int, default=2000, help="messages whose memory is measured")
    parser.add_argument("--only", default="", help="contenders with this in their name")
    parser.add_argument("--json", type=Path, help="write the figures of all repeats")
    parser.add_argument("--write", type=Path, help="write the tables into this page")
    parser.add_argument("--again", type=Path, help="measure nothing: write the page from such a JSON file")
    arguments = parser.parse_args()
    if arguments.again and not arguments.write:
        parser.error("--again needs --write")
    unknown = set(arguments.measurements) - set(MEASUREMENTS)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: not of {', '.join(MEASUREMENTS)}")
    return arguments


def main():
    arguments = parse()
    if arguments.again:
        told = json.loads(arguments.again.read_text())
        report.write(arguments.write, told["run"], [Result.of_plain(plain) for plain in told["results"]])
        return
    os.environ.update(CREDENTIALS)
    results = []
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        servers = Servers(
            stack.enter_context(sqs_server(directory)),
            stack.enter_context(redis_server(directory)),
            directory,
        )
        run = report.named_run(arguments, servers)
        print(report.sentence(run), flush=True)
        for measurement in arguments.measurements or MEASUREMENTS:
            for result in MEASUREMENTS[measurement].measure(arguments, servers):
                results.append(result)
                print(table([result]).splitlines()[-1], flush=True)
            save(arguments, run, results)  # each by itself: a run that is ended has what it measured
    for rows in by_measurement(results).values():
        print(f"\n{table(rows)}")


def save(arguments, run, results):
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"run": run, "results": [r.as_plain() for r in results]}, indent=1, default=str)
        )
    if arguments.write:
        report.write(arguments.write, run, results)


if __name__ == "__main__":
    main()

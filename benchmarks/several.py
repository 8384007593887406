"""Two queues with a backlog of 50 ms tasks each: in each order, how many a second, and whose come first."""

from __future__ import annotations

import itertools

from contenders import OURS, Contender
from meter import Clockwork, Meter, metered
from queues import fill, new_name
from results import Result

NAME = "several"
DEADLINE = 120
WEIGHTS = {"high": 8, "low": 1}


def measure(arguments, servers):
    """All orders in each pool, in rounds."""
    cases = [
        (Result(NAME, f"2 x {arguments.each:,} tasks, {pool}", f"{OURS}, {order}"), pool, order)
        for pool, order in itertools.product(arguments.pool, ("fair", "strict", "weighted"))
    ]
    for _ in range(arguments.repeats):
        for result, pool, order in cases:
            result.add(**once(arguments, servers, pool, order))
    return [result for result, _, _ in cases]


def once(arguments, servers, pool, order):
    """One run, from the first message received to the last deleted."""
    names = {kind: f"{new_name()}-{kind}" for kind in WEIGHTS}
    for name in names.values():
        fill(servers.sqs, name, "rest", arguments.each)
    weights = {names[kind]: {"weight": weight} for kind, weight in WEIGHTS.items()}
    contender = Contender(order, OURS, {"queues": weights, "queue_order": order})
    meter = Meter(Clockwork(), 2 * arguments.each)
    with (
        metered(servers.sqs.url, arguments.latency[0], meter) as proxy,
        contender.worker(
            proxy.port, names["low"], servers.directory, pool=pool, queues=list(names.values())
        ) as worker,
    ):
        if not meter.done.wait(DEADLINE):
            raise TimeoutError(f"{meter.deleted} tasks were done. The log:\n{worker.log[-2000:]}")
    return {
        "tasks_per_s": 2 * arguments.each / (meter.last.at - meter.first.at),
        "requests_per_task": len(meter.passed) / (2 * arguments.each),
        "high_in_first_half_%": 100 * share(meter.passed, names["high"], arguments.each),
    }


def share(passed, queue, count):
    """The queue's share of the messages that were deleted first."""
    done = [
        request.parameters["QueueUrl"].endswith(queue)
        for request in passed
        if request.action == "DeleteMessageBatch"
        for _ in request.parameters["Entries"]
    ]
    return sum(done[:count]) / count

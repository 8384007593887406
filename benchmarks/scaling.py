"""What a fleet of workers costs and reaches, on paper: the tables of docs/scaling.md.

    python benchmarks/scaling.py [--write docs/scaling.md]

Needs nothing but the package. `tests/worker/test_scaling.py` holds the formulae against what real workers
ask of SQS.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from celery_sqs_visibility.core.batches import DELETE_LINGER_WINDOWS  # noqa: E402
from celery_sqs_visibility.policy.prefetch import Slots, message_limit, min_worthwhile_messages  # noqa: E402
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES  # noqa: E402

#: Seconds in a month of 730 hours, as Amazon counts.
MONTH = 730 * 3600

#: us-east-1 in 2025, to be checked at https://aws.amazon.com/sqs/pricing/: up to so many requests
#: a month, USD for each million of them. The first million is free.
FREE = 1_000_000
STANDARD = ((100e9, 0.40), (200e9, 0.30), (math.inf, 0.24))
FIFO = ((100e9, 0.50), (200e9, 0.40), (math.inf, 0.35))

#: A request is billed once for each so many bytes of payload, begun ones included.
CHUNK = 64 * 1024

#: Messages of one queue that may be in flight, standard or FIFO (Amazon SQS quotas).
IN_FLIGHT = 120_000

#: Calls a second that a FIFO queue allows for each API action, batches included, without high throughput.
FIFO_CALLS = 300

#: What the package does: see delivery/receive/decoder.py and core/extensions.py.
MAX_TRANSIT_SECONDS = 1.0
BUCKETS_OF_THE_SCHEDULE = 4


@dataclass(frozen=True)
class Workload:
    """Tasks of one kind, and the workers that run them, as configured. Durations in seconds.

    Attributes:
        name: for the table.
        seconds: how long a run takes.
        slots: `--concurrency` of each worker.
        multiplier: `worker_prefetch_multiplier`.
        bytes: of a message's body as sent.
        published_by: messages a request that publishes: 1, or up to 10 where a publisher sends batches.
        retries: runs of a task that fail and hide the message, on average.
        dead: part of the tasks that end in a dead-letter queue.
        fifo: whether they are in a FIFO queue, which is asked for one message at a time.
    """

    name: str
    seconds: float
    slots: int = 8
    multiplier: int = 4
    bytes: int = 1000
    published_by: int = 1
    retries: float = 0.0
    dead: float = 0.0
    visibility_timeout: float = 120.0
    heartbeat_interval: float | None = None
    settle_window: float = 0.02
    prefetch_seconds: float = 1.0
    fifo: bool = False


def pace(work: Workload) -> float:
    """Runs a second of one worker, all slots busy."""
    return work.slots / work.seconds


def held(work: Workload) -> int:
    """Messages that one worker holds, all slots busy and a backlog behind: so many are in flight."""
    if work.fifo:
        return work.slots
    prefetch = work.slots * work.multiplier
    slots = Slots(work.slots, prefetch)
    return message_limit(slots, pace(work), work.seconds, work.prefetch_seconds)


def receive_batch(work: Workload) -> int:
    """Messages a receive, with a backlog."""
    if work.fifo:
        return 1
    return min_worthwhile_messages(held(work), work.slots, held(work))


def delete_batch(work: Workload) -> float:
    """Deletes a request: the first one waits `settle_window` for others, and longer if one comes."""
    company = pace(work) * work.settle_window
    windows = DELETE_LINGER_WINDOWS if company >= 1 and not work.fifo else 1  # the group waits for its delete
    return min(BATCH_ENTRIES, 1 + company * windows)


def hide_batch(work: Workload) -> float:
    """Hides a request."""
    return min(BATCH_ENTRIES, 1 + pace(work) * work.settle_window)


def extension_batch(work: Workload) -> int:
    """Extensions a request: what one worker runs shares them, ten at a time."""
    return min(BATCH_ENTRIES, work.slots)


def extensions(seconds: float, visibility_timeout: float, heartbeat_interval: float | None = None) -> int:
    """How often a message that is held for so long is extended, at the most; at the least it is one less.

    The first extension comes `heartbeat_interval` before the deadline; up to a bucket of the schedule
    earlier, so that extensions share requests, and a little earlier still, since the answer to the receive
    took its time. From then on they are `visibility_timeout - heartbeat_interval` apart.
    """
    interval = visibility_timeout / 3 if heartbeat_interval is None else heartbeat_interval
    if not interval:
        return 0
    apart = visibility_timeout - interval
    early = min(interval, apart) / BUCKETS_OF_THE_SCHEDULE + min(MAX_TRANSIT_SECONDS, visibility_timeout / 10)
    return math.floor((seconds + early) / apart)


def billed(payload: int) -> int:
    """What one request with so many bytes of payload counts as."""
    return max(1, math.ceil(payload / CHUNK))


@dataclass(frozen=True)
class Calls:
    """API calls a task, by action."""

    send: float
    receive: float
    change_visibility: float
    delete: float

    @property
    def busiest(self) -> float:
        """Requests of the action that reaches a FIFO queue's limit first."""
        return max(self.send, self.receive, self.change_visibility, self.delete)


def calls(work: Workload) -> Calls:
    """API calls a task, with a backlog. A dead letter is sent one at a time, then the message deleted."""
    runs = 1 + work.retries
    extended = extensions(work.seconds, work.visibility_timeout, work.heartbeat_interval)
    return Calls(
        send=1 / work.published_by + work.dead,
        receive=runs / receive_batch(work),
        change_visibility=runs * extended / extension_batch(work) + work.retries / hide_batch(work),
        delete=1 / delete_batch(work),
    )


def requests(work: Workload) -> float:
    """What Amazon bills a task, publishing included."""
    each = calls(work)
    return (
        billed(work.bytes * work.published_by) / work.published_by
        + work.dead * billed(work.bytes)
        + each.receive * billed(work.bytes * receive_batch(work))
        + each.change_visibility
        + each.delete
    )


def idle_polls(wait_time_seconds: float = 20, sleep: float = 0) -> float:
    """Receives a minute of one worker on one empty queue; `sleep` is `polling_interval_max`."""
    return 60 / (wait_time_seconds + sleep)


def dollars(requests_a_month: float, prices: tuple[tuple[float, float], ...] = STANDARD) -> float:
    """USD a month."""
    total, below = 0.0, float(FREE)
    for upto, price in prices:
        total += max(0.0, min(requests_a_month, upto) - below) * price / 1e6
        below = upto
    return total


def workers_for(tasks_a_second: float, work: Workload) -> int:
    """How many workers keep up with so many tasks a second."""
    return math.ceil(tasks_a_second * (1 + work.retries) / pace(work))


WORKLOADS = (
    Workload("webhook, 50 ms", 0.05),
    Workload("report, 30 s", 30),
    Workload("import, 20 min", 20 * 60),
)
FLEETS = (1, 10, 1000)


def table(rows: list[list[str]]) -> str:
    """A Markdown table; the first column is text, the others are figures."""
    head, *body = rows
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def figure(number: float) -> str:
    """Three digits that count, and no more after the point than that."""
    if number == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(number))))
    return f"{round(number, digits):,.{min(digits, 2)}f}"


def money(amount: float) -> str:
    """Whole dollars where there are hundreds."""
    return f"{amount:,.0f}" if amount >= 100 else f"{amount:,.2f}"  # noqa: PLR2004


def table_of_tasks() -> str:
    """What a task of each workload costs."""
    rows = [["a task", "sends", "receives", "extensions", "deletes", "requests", "USD a million tasks"]]
    for work in WORKLOADS:
        each = calls(work)
        parts = (each.send, each.receive, each.change_visibility, each.delete, requests(work))
        price = requests(work) * STANDARD[0][1]
        rows.append([work.name, *map(figure, parts), money(price)])
    return table(rows)


def fleet(workers: int, work: Workload) -> list[str]:
    """A row of the table."""
    tasks = workers * pace(work)
    flying = workers * held(work)
    queues = math.ceil(flying / IN_FLIGHT)
    idle = [dollars(workers * idle_polls(sleep=sleep) * MONTH / 60) for sleep in (0, 60)]
    return [
        f"{workers:,}, {work.name}",
        figure(tasks),
        figure(tasks * requests(work)),
        money(dollars(tasks * requests(work) * MONTH)),
        *map(money, idle),
        f"{flying:,}",
        f"{queues:,}",
        f"{max(queues, math.ceil(tasks * calls(work).busiest / FIFO_CALLS)):,}",
    ]


def table_of_fleets() -> str:
    """What fleets reach and cost, busy all month or idle."""
    rows = [
        [
            "workers of 8 slots",
            "tasks/s",
            "requests/s",
            "USD a month, busy",
            "USD a month, idle",
            "idle, `polling_interval_max=60`",
            "in flight",
            "queues for that",
            "FIFO queues",
        ]
    ]
    rows += [fleet(workers, work) for work in WORKLOADS for workers in FLEETS]
    return table(rows)


TABLES = {"tasks": table_of_tasks, "fleets": table_of_fleets}


def written(page: str) -> str:
    """The page with its tables made anew, between `<!-- table: name -->` and `<!-- end -->`."""
    for name, make in TABLES.items():
        pattern = rf"(<!-- table: {name} -->).*?(<!-- end -->)"
        page, found = re.subn(pattern, rf"\g<1>\n\n{make()}\n\n\g<2>", page, flags=re.DOTALL)
        if found != 1:
            raise ValueError(f"expected one table {name!r} in the page, got {found}")
    return page


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the tables into that page")
    page = parser.parse_args().write
    if page is None:
        print("\n\n".join(make() for make in TABLES.values()))
    else:
        page.write_text(written(page.read_text()))


if __name__ == "__main__":
    main()

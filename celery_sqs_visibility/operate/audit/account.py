"""Account of all messages: how each ended, why it ran more than once, and which rules were broken.

Pure: takes lines, returns counts and findings. A holding is what one worker did with a message. SQS may
deliver a message twice, and logs may be missing: both are counted, and break no rule.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from celery_sqs_visibility import events
from celery_sqs_visibility.delivery.event_log import MESSAGE_OF
from celery_sqs_visibility.json_logs import WORKER_STARTS
from celery_sqs_visibility.operate.task_history import fields_of_line, is_event

#: A worker that goes on has logged what became of a message by this time after its deadline.
VANISHED_SECONDS: Final = 60.0

#: The reason of a further run for which the log has none.
UNEXPLAINED: Final = "unexplained"

#: Kinds of events, by the sentences of their lines.
KINDS: Final = {sentence: kind for kind, sentence in MESSAGE_OF.items()}


class Worker(NamedTuple):
    """A process of a node. A restart changes it, except in some containers."""

    node: str
    process: str

    def __str__(self) -> str:
        return f"{self.node} ({self.process})"


class LogLine(NamedTuple):
    """A log line about a message. Instants are in seconds since the epoch, by the worker's clock."""

    at: float
    kind: type[events.Event]
    receipt: tuple[Worker, int]  # the number is SQS's receive count
    until: float  # the end of the event's seconds; infinity if it has none
    task_id: str | None


class End(NamedTuple):
    """How a worker's part in a message ended: where the message is then, and why it may run again."""

    place: str
    reason: str


BACK: Final = "back in SQS"
AFTER_ITS_END: Final = "delivered by SQS after its deletion"

#: Events after which a worker no longer has the message. It does not matter what the message waits for.
ENDS: Final[dict[type[events.Event], End]] = {
    events.Hidden: End(BACK, "retry"),
    events.Parked: End(BACK, "retry"),
    events.Released: End(BACK, "given back"),
    events.Renewed: End("went on as a copy", AFTER_ITS_END),
    events.DeadLettered: End("dead letter", AFTER_ITS_END),
    events.Deleted: End("done", AFTER_ITS_END),
}


@dataclass(slots=True)
class Holding:
    """What one worker did with a message. Instants are in seconds since the epoch, by the worker's clock.

    Attributes:
        receives: SQS's receive counts; more than one if the message came back while it was held.
        deadline: until when SQS hides the message; infinity if unknown.
        tolerance: by how many seconds lines may be late, or clocks differ.
        end: what became of the message; `None` if the log does not say.
        lost: whether the worker noticed that another may have the message.
    """

    worker: Worker
    received: float
    tolerance: float
    receives: list[int] = field(default_factory=list)
    deadline: float = math.inf
    began: float | None = None
    run_ended: float | None = None
    end: End | None = None
    ended: float | None = None
    lost: bool = False
    broken: list[str] = field(default_factory=list)

    def take(self, told: LogLine) -> None:
        """Add an event. After a further receive of the message, the newest receipt counts."""
        if told.kind is events.Received:
            if told.receipt[1] > max(self.receives, default=0):
                self.deadline, self.lost = told.until, False
            self.receives = sorted({*self.receives, told.receipt[1]})
        elif told.kind is events.Started:
            if self.began is not None and self.run_ended is None and len(self.receives) == 1:
                self.broken.append("started twice under one receipt")
            self.began = told.at
        elif told.kind is events.Extended:
            if self.ended is not None and told.at > self.ended + self.tolerance:
                self.broken.append("extended after its end")
            self.deadline = told.until
        elif told.kind is events.Lost:
            self.lost = True
        elif told.kind in (events.Finished, events.Failed):
            self.run_ended = told.at
        elif (end := ENDS.get(told.kind)) is not None:
            self._finish(end, told.at)

    def _finish(self, end: End, at: float) -> None:
        if end.place == BACK and not self.lost and at > self.deadline + self.tolerance:
            self.broken.append("changed after its deadline")
        if self.end is None:  # copies and dead letters are followed by a delete
            self.end, self.ended = end, at
        if self.run_ended is None and self.began is not None:
            self.run_ended = at


def holdings_of(history: list[LogLine], tolerance: float) -> list[Holding]:
    """The holdings of one message, in the order of its receives. `history` must be sorted by time."""
    came_back = {each.receipt for each in history if each.kind is events.Superseded}
    holdings: list[Holding] = []
    by_receipt: dict[tuple[Worker, int], Holding] = {}
    for told in history:
        if told.kind is events.Received:
            worker, count = told.receipt
            held = next((each for each in reversed(holdings) if each.worker == worker), None)
            if not held or held.end or not (told.receipt in came_back or count <= held.receives[-1]):
                held = Holding(worker, told.at, tolerance)
                holdings.append(held)
            by_receipt[told.receipt] = held
        if (holding := by_receipt.get(told.receipt)) is not None:
            holding.take(told)
    return sorted(holdings, key=lambda one: (one.receives[-1], one.received))


@dataclass(frozen=True)
class Finding:
    """A rule that the log of a message breaks."""

    rule: str
    message_id: str
    task_id: str | None
    workers: str


@dataclass
class Account:
    """What the logs show.

    Attributes:
        messages: their number, by where they are at the end.
        more_runs: number of runs that were not the first of their message, by reason.
        unlogged_receives: receives by workers whose log is missing.
        broken_rules: number of findings for each rule.
        passed_over_lines: lines that are not about a message.
    """

    messages: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    more_runs: Counter[str] = field(default_factory=Counter)
    unlogged_receives: int = 0
    broken_rules: Counter[str] = field(default_factory=Counter)
    passed_over_lines: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_well(self) -> bool:
        """Whether no rule is broken, and each further run has a reason."""
        return not (self.findings or self.more_runs[UNEXPLAINED])


class Auditor:
    """Reads lines, in any order, and then accounts for them. `Holding` says what `tolerance` is."""

    def __init__(self, tolerance: float = 1.0) -> None:
        self._account = Account()
        self._tolerance = tolerance
        self._events: defaultdict[tuple[str, str], list[LogLine]] = defaultdict(list)  # by queue and id
        self._lines: defaultdict[Worker, list[float]] = defaultdict(list)  # when each worker wrote its lines
        self._starts: defaultdict[str, list[float]] = defaultdict(list)  # by node

    def read(self, lines: Iterable[str]) -> None:
        """Read lines of one log or several."""
        for line in lines:
            fields = fields_of_line(line)
            if fields is None:
                self._account.passed_over_lines += 1
                continue
            worker = Worker(str(fields.get("node", "-")), str(fields.get("process", "-")))
            self._lines[worker].append(fields["at"])
            if is_event(fields) and "receive_count" in fields:
                until = fields["at"] + (fields.get("seconds") or math.inf)
                receipt = worker, fields["receive_count"]
                told = LogLine(fields["at"], KINDS[fields["message"]], receipt, until, fields.get("task_id"))
                self._events[fields["queue"], fields["message_id"]].append(told)
                continue
            self._account.passed_over_lines += 1
            if fields.get("message") == WORKER_STARTS:
                self._starts[worker.node].append(fields["at"])

    def account(self) -> Account:
        """Account for everything that was read. Call it once."""
        for instants in (*self._lines.values(), *self._starts.values()):
            instants.sort()
        for (_, message_id), history in self._events.items():
            history.sort(key=lambda told: told.at)
            if holdings := holdings_of(history, self._tolerance):
                self._add(message_id, history[0].task_id, holdings)
        return self._account

    def _add(self, message_id: str, task_id: str | None, holdings: list[Holding]) -> None:
        begun = [each for each in holdings if each.began is not None]
        end = holdings[-1].end
        self._account.messages["held when the log ends" if end is None else end.place] += 1
        self._account.runs += len(begun)
        told = {receive for each in holdings for receive in each.receives}
        self._account.unlogged_receives += max(told) - len(told)
        for before, after in pairwise(begun):
            just_before = holdings[holdings.index(after) - 1]
            self._account.more_runs[self._reason(before, just_before, after)] += 1
        for rule, workers in self._broken(holdings):
            self._account.broken_rules[rule] += 1
            self._account.findings.append(Finding(rule, message_id, task_id, workers))

    def _reason(self, before: Holding, just_before: Holding, after: Holding) -> str:
        """Why a message ran again after its run `before`. It may have been held without a run in between."""
        if before.lost:
            return "lease lost"
        if before.end is not None:
            return before.end.reason
        if after.receives[0] > just_before.receives[-1] + 1:
            return "after a receive that is in no log"
        if after.received < before.deadline - self._tolerance:
            return "delivered twice by SQS"
        return UNEXPLAINED if self._went_on(before, self._tolerance) else "worker gone"

    def _went_on(self, holding: Holding, seconds: float) -> bool:
        """Whether its worker wrote a line that long after the deadline, before its node was restarted.

        In a container the next process may have the same id.
        """
        lines, starts = self._lines[holding.worker], self._starts[holding.worker.node]
        later = bisect_right(lines, holding.deadline + seconds)
        anew = bisect_right(starts, holding.received)
        return later < len(lines) and (anew == len(starts) or lines[later] < starts[anew])

    def _broken(self, holdings: list[Holding]) -> Iterator[tuple[str, str]]:
        for each in holdings:
            for rule in each.broken:
                yield rule, str(each.worker)
            if each.end is None and not each.lost and self._went_on(each, VANISHED_SECONDS):
                yield "nothing became of it, though its worker went on", str(each.worker)
        for before, after in pairwise(holdings):
            if before.began is None or after.began is None or before.run_ended is None or before.lost:
                continue
            expired = after.received >= before.deadline - self._tolerance
            if expired and after.began < before.run_ended - self._tolerance:
                told = "two runs overlap, and none was told that it had lost the message"
                yield told, f"{before.worker}, {after.worker}"

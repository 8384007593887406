"""Account of all messages: how each ended, why it ran more than once, and which rules were broken.

Pure: lines in, counts and findings out. SQS may deliver a message twice, and logs may be missing: what
follows from that is counted apart, and is no broken rule.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter
from typing import Any, Final

from celery_sqs_visibility.operate.audit.holdings import TOLERANCE_SECONDS, Holding, holdings_of, worker_of
from celery_sqs_visibility.operate.task_history import fields_of_line, is_event

OVERLAP: Final = "two runs overlap, and none was told that it had lost the message"
VANISHED: Final = "nothing became of it, though its worker went on"

#: After its deadline a worker that goes on has told what became of a message.
VANISHED_SECONDS: Final = 60.0

#: Why a message ran once more, by what became of it before.
REASONS: Final = {
    "hidden": "retry",
    "parked": "retry",
    "given back": "given back",
    "deleted": "delivered by SQS after its deletion",
    "dead letter": "delivered by SQS after its deletion",
    "copied": "delivered by SQS after its deletion",
}
CRASH: Final = "worker gone"
LOST: Final = "lease lost"
TWICE: Final = "delivered twice by SQS"
UNLOGGED: Final = "after a receive that is in no log"
UNEXPLAINED: Final = "unexplained"

#: The fields of an event that are kept: a log may have millions.
KEPT: Final = ("at", "node", "process", "message", "receive_count", "seconds", "task_id")

#: Where a message is after the last line that tells of it.
WHEREABOUTS: Final = {
    "deleted": "done",
    "dead letter": "dead letter",
    "copied": "went on as a copy",
    "hidden": "back in SQS",
    "parked": "back in SQS",
    "given back": "back in SQS",
    None: "held when the log ends",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that a message's log breaks."""

    rule: str
    message_id: str
    task_id: str | None
    workers: str


@dataclass
class Account:
    """What the logs tell of.

    Attributes:
        messages: how many, by where they are at the end.
        runs: how many runs there were.
        more_runs: how many of them were not the first of their message, by reason.
        unlogged: receives by workers whose log is not there.
        passed_over: lines that tell of no message.
        findings: broken rules.
    """

    messages: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    more_runs: Counter[str] = field(default_factory=Counter)
    unlogged: int = 0
    passed_over: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_well(self) -> bool:
        """Whether no rule is broken, and each further run has its reason."""
        return not (self.findings or self.more_runs[UNEXPLAINED])

    def counts(self) -> dict[str, Any]:
        """Counts alone: no names, no ids."""
        return {
            "messages": dict(self.messages),
            "runs": self.runs,
            "more_runs": dict(self.more_runs),
            "unlogged_receives": self.unlogged,
            "broken_rules": dict(Counter(each.rule for each in self.findings)),
            "passed_over_lines": self.passed_over,
        }


class Auditor:
    """Reads lines, in any order, and then accounts for them.

    `tolerance` is by how many seconds a line may come late, or a clock be wrong.
    """

    def __init__(self, tolerance: float = TOLERANCE_SECONDS) -> None:
        self._tolerance = tolerance
        self._events: defaultdict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        self._last_line: dict[str, float] = {}  # by worker
        self._passed_over = 0

    def read(self, lines: Iterable[str]) -> None:
        """Read the lines of one log, or of some."""
        for line in lines:
            fields = fields_of_line(line)
            if fields is None:
                self._passed_over += 1
                continue
            worker = worker_of(fields)
            self._last_line[worker] = max(fields["at"], self._last_line.get(worker, 0.0))
            if is_event(fields) and "receive_count" in fields:
                kept: dict[str, Any] = {name: fields[name] for name in KEPT if name in fields}
                self._events[fields["queue"], fields["message_id"]].append(kept)
            else:
                self._passed_over += 1

    def account(self) -> Account:
        """Account for everything that was read."""
        account = Account(passed_over=self._passed_over)
        for (_, message_id), events in self._events.items():
            events.sort(key=itemgetter("at"))
            holdings = holdings_of(events, self._tolerance)
            if holdings:
                self._add(account, message_id, events[0].get("task_id"), holdings)
        return account

    def _add(self, account: Account, message_id: str, task_id: str | None, holdings: list[Holding]) -> None:
        begun = [each for each in holdings if each.began is not None]
        account.messages[WHEREABOUTS[holdings[-1].end]] += 1
        account.runs += len(begun)
        told = {receive for each in holdings for receive in each.receives}
        account.unlogged += max(told) - len(told)
        for before, after in pairwise(begun):
            just_before = holdings[holdings.index(after) - 1]
            account.more_runs[self._reason(before, just_before, after)] += 1
        for rule, workers in self._broken(holdings):
            account.findings.append(Finding(rule, message_id, task_id, workers))

    def _reason(self, before: Holding, just_before: Holding, after: Holding) -> str:
        """Why it ran again after its run `before`; it may have been held without a run since."""
        if before.lost:
            return LOST
        if before.end is not None:
            return REASONS[before.end]
        if after.receives[0] > just_before.receives[-1] + 1:
            return UNLOGGED
        if after.received < before.deadline - self._tolerance:
            return TWICE
        return CRASH if self._is_gone(before) else UNEXPLAINED

    def _is_gone(self, holding: Holding) -> bool:
        """Whether its worker's log ends before the lease does."""
        return self._last_line[holding.worker] <= holding.deadline + self._tolerance

    def _broken(self, holdings: list[Holding]) -> Iterator[tuple[str, str]]:
        for each in holdings:
            for rule in each.broken:
                yield rule, each.worker
        for before, after in pairwise(holdings):
            if self._overlap(before, after):
                yield OVERLAP, f"{before.worker}, {after.worker}"
        last = holdings[-1]
        if last.end is None and not last.lost:
            went_on = self._last_line[last.worker]
            if went_on > last.deadline + VANISHED_SECONDS:
                yield VANISHED, last.worker

    def _overlap(self, before: Holding, after: Holding) -> bool:
        """Whether both ran at once after the lease of the first had ended, which did not notice it."""
        if before.began is None or after.began is None or before.lost or before.run_ended is None:
            return False
        expired = after.received >= before.deadline - self._tolerance
        return expired and after.began < before.run_ended - self._tolerance

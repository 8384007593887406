"""What has happened so far, from the events: one row per task, and a count of requests."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from demo.plan import DEAD, DONE, Plan

#: USD per million requests to a standard queue: us-east-1, after the first million of a month, June 2026.
USD_PER_MILLION_REQUESTS = 0.40

#: States of a row. The words are the package's.
SENT, HELD, RUNNING, HIDDEN, FAILED, LOST = "sent", "received", "running", "hidden", "failed", "lost"

#: What an event makes of a row's state. `Extended` changes none.
STATES = {
    "Received": HELD,
    "Started": RUNNING,
    "Failed": FAILED,
    "Hidden": HIDDEN,
    "Released": SENT,
    "Finished": DONE,
    "DeadLettered": DEAD,
    "Lost": LOST,
}


@dataclass
class Row:
    """One task.

    Attributes:
        plan: what should happen.
        sent: when it was sent; all instants are seconds since the epoch.
        states: since when it is, or was, in which state.
        starts: when its runs began.
        failures: when they failed.
        extensions: when its message was extended.
        back_at: when a hidden message is due.
        error: of its last failure.
        result: what it returned.
        settled: whether SQS has nothing of it any more, except as a dead letter.
    """

    plan: Plan
    sent: float
    states: list[tuple[float, str]] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    failures: list[float] = field(default_factory=list)
    extensions: list[float] = field(default_factory=list)
    back_at: float = 0.0
    error: str | None = None
    result: str | None = None
    settled: bool = False

    @property
    def state(self) -> str:
        return self.states[-1][1]

    @property
    def gaps(self) -> list[float]:
        """Seconds between each failure and the next run."""
        return [start - failure for failure, start in zip(self.failures, self.starts[1:], strict=False)]

    def problems(self) -> list[str]:
        """What is not as planned."""
        plan, gaps = self.plan, self.gaps
        found = []
        if not self.settled or self.state != plan.outcome:
            found.append(f"expected {plan.outcome}, is {self.state}")
        if len(self.starts) != len(plan.gaps) + 1:
            found.append(f"expected {len(plan.gaps) + 1} runs, had {len(self.starts)}")
        if any(gap < planned for gap, planned in zip(gaps, plan.gaps, strict=False)):
            found.append(f"expected gaps of at least {plan.gaps} s, got {gaps}")
        if self.result != plan.result:
            found.append(f"expected the result {plan.result!r}, got {self.result!r}")
        if plan.extended and not self.extensions:
            found.append("expected its message to be extended")
        return found

    def apply(self, at: float, event: str, facts: dict[str, Any]) -> None:
        if event in STATES:
            self.states.append((at, STATES[event]))
        match event:
            case "Started":
                self.starts.append(at)
            case "Extended":
                self.extensions.append(at)
            case "Failed":
                self.failures.append(at)
                self.error = facts["error"]
            case "Hidden":
                self.back_at = at + facts["seconds"]
            case "Deleted" | "DeadLettered":
                self.settled = True

    def tell(self, event: str, facts: dict[str, Any]) -> str:
        """The event just applied, for those who have no table."""
        what = STATES.get(event, event.lower())
        match event:
            case "Received":
                how = f"delivery {facts['delivery']['receive_count']}"
            case "Started":
                how = f"run {len(self.starts)}"
            case "Extended":
                how = f"for {facts['seconds']} s from now"
            case "Failed":
                how = f"run {facts['attempt']}{', for good' if facts['last'] else ''}: {self.error}"
            case "Hidden":
                how = f"back in {facts['seconds']:g} s"
            case _:
                how = facts.get("reason", "")
        return f"{what:<9}  {how}".rstrip()


@dataclass
class Story:
    """All rows, by task id, and the requests, by action."""

    began: float
    rows: dict[str, Row] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    ready: bool = False

    def sent(self, task_id: str, plan: Plan, at: float) -> str:
        self.rows[task_id] = Row(plan, at, [(at, SENT)])
        return self._line(at, plan.label, "sent")

    def hear(self, events: list[dict[str, Any]]) -> list[str]:
        """Note events; the lines about them."""
        return [line for event in events if (line := self._apply(event)) is not None]

    def _apply(self, event: dict[str, Any]) -> str | None:
        at, name = event["at"], event["event"]
        if name == "SQSRequest":
            self.requests[event["action"]] += 1
        elif name == "Ready":
            self.ready = True
        elif (row := self.rows.get(event["delivery"]["task_id"])) is not None:
            row.apply(at, name, event)
            return self._line(at, row.plan.label, row.tell(name, event))
        return None

    def is_ready(self, events: list[dict[str, Any]]) -> bool:
        """Note events; whether the worker has said that it is ready."""
        self.hear(events)
        return self.ready

    @property
    def over(self) -> bool:
        return all(row.settled for row in self.rows.values())

    @property
    def total_requests(self) -> int:
        return self.requests.total()

    @property
    def cost(self) -> float:
        """USD."""
        return self.total_requests * USD_PER_MILLION_REQUESTS / 1e6

    def _line(self, at: float, label: str, text: str) -> str:
        return f"{at - self.began:6.2f} s  {label:<19}  {text}"

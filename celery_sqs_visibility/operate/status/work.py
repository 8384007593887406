"""What workers say of a queue: who consumes it, what runs, and why its messages wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class QueueWork:
    """A queue as the workers that consume it see it.

    Attributes:
        workers: how many consume it.
        paused: how many of these do not poll it.
        slots: of these workers, and of all their queues.
        free: of these slots, those without a run.
        running: messages of the queue that run.
        held: messages of the queue that workers hold, running ones included.
        waited: how many seconds after it was sent, or after its ETA, a first attempt began, at the most of
            those that run; `None` if none runs.
        others: the numbers of these workers' runs, by their other queues.
    """

    workers: int = 0
    paused: int = 0
    slots: int = 0
    free: int = 0
    running: int = 0
    held: int = 0
    waited: float | None = None
    others: Counter[str] | None = None

    def why_waiting(self) -> str | None:
        """Why messages of the queue wait; `None` if workers can receive them."""
        if not self.workers:
            return "NO WORKER that answered consumes it"
        if self.paused == self.workers:
            return "it is paused"
        if self.free:
            return None
        if self.others and (most := self.others.most_common(1)[0])[1] > self.running:
            return f"slots are taken by {most[0]} ({most[1]} of {self.slots})"
        return f"all slots are taken ({self.running} of {self.slots} by its own tasks)"


def work_of(queue: str, answers: Mapping[str, Any]) -> QueueWork:
    """Sum up the answers to `sqs_queues`, by node, of the workers that consume the queue."""
    answered = [each for each in answers.values() if queue in each.get("queues", ())]
    own = [each["queues"][queue] for each in answered]
    others = Counter[str]()
    for name, facts in _queues(answered):
        if name != queue:
            others[name] += facts.get("running", 0)
    return QueueWork(
        workers=len(own),
        paused=sum(each["paused"] for each in own),
        slots=sum(each["slots"] for each in answered),
        free=sum(max(0, each["slots"] - each["busy"]) for each in answered),
        running=sum(each.get("running", 0) for each in own),
        held=sum(each["held"] for each in own),
        waited=max((each["waited"] for each in own if each.get("waited") is not None), default=None),
        others=others,
    )


def _queues(answers: list[Any]) -> Iterator[tuple[str, Any]]:
    for each in answers:
        yield from each["queues"].items()

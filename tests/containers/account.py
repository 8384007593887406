"""The account of every message: sent, run, ended, and with which reason it became a dead letter."""

from __future__ import annotations

import base64
import contextlib
import re
import time
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from containers.fleet import QUEUES, Fleet
from support.processes import wait_until

from celery_sqs_visibility import publish_batch
from celery_sqs_visibility.delivery.settle.dead_letters import described

DONE, DEAD, NEVER, ONE = "done", "dead letter", "not run", "done once for its exclusive key"
MOVED = "moved by SQS"
NOT_STORED = re.compile(r"\[(\S+)\] failed at attempt \d+ of \d+ and comes back when its visibility")
KEY = re.compile(r"\b[a-z_]+-\d+\b")

#: Of 100 messages, six steps of the canvas included. The kinds whose end is not "done" are below.
MIX = {
    "quick": 50,
    "failing": 8,
    "retried": 6,
    "late": 6,
    "delayed": 5,
    "stock_late": 6,
    "exclusive": 4,
    "large": 4,
    "canvas": 1,
    "hopeless": 2,
    "expired": 1,
    "unreadable": 1,
}
ENDINGS = {"hopeless": DEAD, "bomb": DEAD, "unreadable": DEAD, "expired": NEVER, "exclusive": ONE}
TASKS = {"bomb": "read", **dict.fromkeys(["late", "parked", "delayed", "large", "expired"], "quick")}
OPTIONS: dict[str, dict[str, Any]] = {
    "late": {"countdown": 8},
    "parked": {"countdown": 60},  # longer than a lease
    "delayed": {"delay_seconds": 5},
    "expired": {"expires": 0.001},
    "bomb": {"compression": "gzip", "argsrepr": "()", "ignore_result": True},
}
LARGE_CHARACTERS = 100_000

#: From the end of a run until its message is surely deleted, where nothing is in the way.
DELETE_SECONDS = 1.0


@dataclass
class Account:
    """What was sent in a scene, and what became of it."""

    fleet: Fleet
    sent: dict[str, str] = field(default_factory=dict)
    due: dict[str, float] = field(default_factory=dict)
    exclusive: list[list[str]] = field(default_factory=list)
    steps: dict[str, list[str]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    seconds: float | None = None
    since: float = field(default_factory=time.monotonic)
    letters: list[dict[str, Any]] = field(default_factory=list)
    moved: set[str] = field(default_factory=set)

    def send(self, kind: str, count: int, *args: Any, **kwargs: Any) -> list[str]:
        """Send so many messages of a task, in turn to both queues; their keys."""
        first = len(self.sent)
        keys = [f"{kind}-{number}" for number in range(first, first + count)]
        for number, key in enumerate(keys):
            self.sent[key] = ENDINGS.get(kind, DONE)
            options = {"queue": QUEUES[number % len(QUEUES)], "task_id": key, **OPTIONS.get(kind, {})}
            self.due[key] = time.monotonic() + options.get("countdown", 0)
            self.fleet.app.send_task(f"proj.tasks.{TASKS.get(kind, kind)}", (key, *args), kwargs, **options)
        return keys

    def send_mix(self, count: int) -> None:
        """Send so many of all kinds, mixed, by blocks that share requests."""
        with publish_batch(self.fleet.app):
            for _ in range(count // 100):
                for kind, share in MIX.items():
                    self._send_kind(kind, share)

    def _send_kind(self, kind: str, count: int) -> None:
        if kind == "canvas":
            for _ in range(count):
                self._send_canvas()
        elif kind == "unreadable":
            self._send_unreadable(count)
        elif kind == "exclusive":
            self.exclusive.append(self.send(kind, count, f"key of {len(self.sent)}"))
        elif kind == "large":
            self.send(kind, count, padding="x" * LARGE_CHARACTERS)
        else:
            self.send(kind, count)

    def _send_canvas(self) -> None:
        """A task that publishes a chain of two, and a chord of three and its body."""
        steps = [f"step-{len(self.sent) + number}" for number in range(6)]
        self.sent.update(dict.fromkeys(steps, DONE))
        self.steps[self.send("canvas", 1, steps)[0]] = steps

    def _send_unreadable(self, count: int) -> None:
        for _ in range(count):
            self.send_raw(f"unreadable-{len(self.sent)}", f"{{unreadable-{len(self.sent)}", DEAD)

    def send_raw(self, key: str, body: str, ending: str) -> None:
        """Send a body that no producer of Celery's has made."""
        self.sent[key] = ending
        self.fleet.client.send_message(QueueUrl=self.fleet.url(QUEUES[0]), MessageBody=body)

    def is_early(self, entry: dict[str, Any]) -> bool:
        """Whether a run began before its task's ETA."""
        return entry["monotonic"] < self.due.get(entry["key"], 0.0)

    def runs(self, event: str = "started") -> Counter[str]:
        """How often tasks noted it, by key."""
        return Counter(entry["key"] for entry in self.fleet.diary.entries(event))

    def held(self, host: str, since: float, until: float) -> set[str]:
        """Keys that a worker held when something stopped it between two instants.

        They had begun, and not ended a second before: deletes are sent together, and may not have left.
        """
        entries = self.fleet.diary.entries(host=host)
        begun = {e["key"] for e in entries if e["event"] == "started" and e["monotonic"] < until}
        ends = [e for e in entries if e["event"] in {"done", "failing"}]
        return begun - {e["key"] for e in ends if e["monotonic"] < since - DELETE_SECONDS}

    def cut_short(self) -> set[str]:
        """Keys of runs that noted no end: their process was killed."""
        return set(self.runs() - self.runs("failing") - self.runs("done"))

    def not_stored(self) -> set[str]:
        """Keys of tasks that succeeded, and whose results the backend did not store: these run again."""
        logs = "".join(worker.log for worker in self.fleet.containers)
        return set(NOT_STORED.findall(logs)) & set(self.runs("done"))

    def of_several_messages(self) -> set[str]:
        """Keys whose runs had several messages: whoever sent one sent it twice, or SQS did."""
        messages: dict[str, set[str]] = {}
        for entry in self.fleet.diary.entries("started"):
            messages.setdefault(entry["key"], set()).add(entry["message"])
        return {key for key, ids in messages.items() if len(ids) > 1}

    def wait(self, timeout: float, *, deadly: bool = False) -> None:
        """Wait until both queues are empty, and all that should be done is.

        Beside a `deadly` message SQS may move others, which were received with it each time.
        """
        undone = {key for key, ending in self.sent.items() if ending == DONE}

        def settled() -> bool:
            undone.difference_update(self.runs("done"))
            if undone and deadly:
                self.moved |= {key for key, reason in self._reasons() if key in undone and reason == MOVED}
            return undone <= self.moved and not self.fleet.waiting()

        def what() -> str:
            left = sorted(undone - self.moved)[:20]
            return f"an end of {left} and others; {self.fleet.waiting()} are in the queues"

        wait_until(settled, timeout, what)

    def recover(self, host: str, since: float, timeout: float = 90) -> None:
        """Send tasks until that worker has begun one after an instant; the time between counts."""

        def begun() -> list[float]:
            self.send("quick", 2)
            time.sleep(0.2)
            entries = self.fleet.diary.entries("started", host=host)
            return [entry["monotonic"] for entry in entries if entry["monotonic"] > since]

        first = wait_until(begun, timeout, f"a task on {host}")[0]
        self.seconds = max(self.seconds or 0.0, first - since)

    def close(self, again: Collection[str] = ()) -> Row:
        """Count; nothing may be lost, and nothing run more than once but what may be.

        Args:
            again: keys of which docs/reliability.md says that they may run again.
        """
        self.reasons = dict(self._reasons())
        started, failing, done = self.runs(), self.runs("failing"), self.runs("done")
        twice = {key for key in self.sent if started[key] - failing[key] - bool(done[key]) > 0}
        for same_key in self.exclusive:
            ran = {key for key in same_key if done[key]}
            twice |= ran if len(ran) > 1 else set()
        missing = {key for key in self.sent if not self._has_ended(key, started, done)}
        assert not missing, f"lost: {sorted(missing)}"
        # A canvas that fails may have sent some of its steps.
        again = {*again, *(step for key in {*again, *failing} for step in self.steps.get(key, []))}
        several = sorted(self.of_several_messages())
        assert twice <= again, f"run more than once: {sorted(twice - again)}; of several messages: {several}"
        may_be_dead = {key for key, ending in self.sent.items() if ending == DEAD} | self.moved
        wrong = {key: reason for key, reason in self.reasons.items() if key not in may_be_dead}
        assert not wrong, f"dead letters that should not be: {wrong}"
        ended = sum(map(bool, done.values()))
        return Row(
            sent=len(self.sent),
            done=ended,
            skipped=len(self.sent) - ended - len(self.reasons) - len(missing),
            dead=self._dead(),
            lost=len(missing),
            again=len(twice),
            seconds=self.seconds,
            spent=time.monotonic() - self.since,
        )

    def _has_ended(self, key: str, started: Counter[str], done: Counter[str]) -> bool:
        ending = self.sent[key]
        if key in self.moved:
            return key in self.reasons
        if ending == ONE:
            (same_key,) = (keys for keys in self.exclusive if key in keys)
            return any(done[each] for each in same_key)
        return {DONE: bool(done[key]), DEAD: key in self.reasons, NEVER: not started[key]}[ending]

    def _dead(self) -> str:
        """The reasons, with numbers."""
        counts = Counter(self.reasons.values())
        return ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items())) or "-"

    def _reasons(self) -> Iterator[tuple[str, str]]:
        self.letters += self.fleet.dead_letters()
        for letter in self.letters:
            said = described(letter.get("MessageAttributes", {}))
            yield self._key(letter["Body"], said), said.get("reason", MOVED).partition(":")[0]

    def _key(self, body: str, said: dict[str, str]) -> str:
        """That of the task's id, or the one that its body names."""
        if said.get("task_id") in self.sent:
            return said["task_id"]
        with contextlib.suppress(ValueError):
            body += base64.b64decode(body, validate=True).decode("utf-8", "replace")
        found = [key for key in KEY.findall(body) if key in self.sent]
        return found[0] if found else f"unknown: {body[:100]}"


@dataclass(frozen=True)
class Row:
    """What became of a scene's messages; docs/reliability.md has a part of it.

    Attributes:
        skipped: expired, or of an exclusive key that was done.
        dead: the reasons of dead letters, with numbers.
        again: messages that ran more than once, though no task had failed.
        seconds: what the scene takes for the recovery; `None` where work never stopped.
        spent: seconds that the scene took.
    """

    sent: int
    done: int
    skipped: int
    dead: str
    lost: int
    again: int
    seconds: float | None
    spent: float

    def cells(self) -> list[str]:
        seconds = "-" if self.seconds is None else f"{self.seconds:.1f}"
        return [str(self.sent), str(self.again), seconds]

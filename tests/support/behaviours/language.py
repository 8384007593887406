"""The language of tests/conformance/behaviours.jsonl: what is done to queues, and what SQS answers.

A row has the keys of `Behaviour`. A step is an object whose first key is its verb, in this order of use:

    {"create": "q", "fifo": true, "with": {"DelaySeconds": "2"}, "dead_letters": "dead", "max_receives": 1}
    {"send": "a", "delay": 1, "group": "g", "deduplication": "1", "attributes": {"name": "text"}}
    {"send_batch": [{"body": "a", "id": "1"}, {"body": "b"}]}
    {"receive": 10, "visibility": 2, "wait": 1, "attempt": "id"}
    {"change": "a", "to": 30}        {"change_batch": [["a", 30], ["b", 0]]}
    {"delete": "a#1"}                {"delete_batch": ["a", {"handle": "no such handle"}]}
    {"set": {"VisibilityTimeout": "5"}}   {"read": ["VisibilityTimeout"]}   {"numbers": "q"}
    {"purge": "q"}   {"find": "q"}   {"list": "q"}   {"delete_queue": "q"}   {"move": "dead", "to": "q"}
    {"sleep": 2}

`a#1` is the handle from the first receive of the message with the body "a", `a` the newest one, and
`{"handle": ...}` text that no queue handed out. Each step but the last must succeed; the row's answer is
that of the last. A step names its queue with "queue", if that is not "q". A body, group, id or attribute may
be `{"repeat": "x", "times": 2000}`. Each replay has queues of its own, whatever these are called.

Seconds below ten (of `sleep`, `wait`, `visibility`, `to`, `delay` and of queue attributes) are units: a slow
implementation, or a busy machine, is given longer ones. From ten on they are seconds.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

#: Where knowledge of an answer comes from, the best first.
EVIDENCE = {
    "recorded": "an answer of AWS, kept",
    "validated": "a test that passed against AWS",
    "documented": "a page of Amazon's",
    "reported": "an issue thread",
    "open": "nobody",
}

IMPLEMENTATIONS = ("fake", "moto", "ministack", "localstack")

#: Seconds below are units; see above.
UNITS_BELOW = 10

_QUEUE = frozenset({"queue"})
#: The other keys that a step with this verb may have.
VERBS = {
    "create": frozenset({"fifo", "with", "dead_letters", "max_receives", "name"}),
    "send": _QUEUE | {"delay", "group", "deduplication", "attributes"},
    "send_batch": _QUEUE,
    "receive": _QUEUE | {"visibility", "wait", "attempt"},
    "change": _QUEUE | {"to"},
    "change_batch": _QUEUE,
    "delete": _QUEUE,
    "delete_batch": _QUEUE,
    "set": _QUEUE,
    "read": _QUEUE,
    "numbers": frozenset(),
    "purge": frozenset(),
    "find": frozenset(),
    "list": frozenset(),
    "delete_queue": frozenset(),
    "move": frozenset({"to"}),
    "sleep": frozenset(),
}

#: What an answer may tell, and of which type it is.
FACTS: dict[str, type | tuple[type, ...]] = {
    "code": str,  # of the error, without its namespace
    "message": str,  # of the error: a pattern
    "step": int,  # that failed, if not the last; the first is 1
    "asked": bool,  # false: the implementation has no words for the question
    "bodies": list,  # of the messages received; in order where the queue is FIFO
    "counts": list,  # ApproximateReceiveCount of each
    "system": dict,  # other attributes of the first: patterns, or null if it is missing
    "attributes": dict,  # message attributes of the first
    "failed": dict,  # entries of a batch that failed: position to code
    "values": dict,  # queue attributes: patterns, or null if it is missing
    "numbers": list,  # messages of the queue: visible, hidden, delayed
    "found": int,  # queues listed
    "waited": list,  # seconds until the answer, from and to
    "base64": bool,  # whether receipt handles have the characters of base64 alone
    "same": bool,  # whether two receives or sends of one body brought the same message id
}


class RowError(Exception):
    """A row that cannot be read."""


@dataclass(frozen=True)
class Step:
    """One request, or a wait. `subject` is what its verb is about."""

    verb: str
    subject: Any
    options: Mapping[str, Any]

    @property
    def queue(self) -> str:
        """The queue it is about, by the row's name for it."""
        if self.verb in {"create", "numbers", "purge", "find", "list", "delete_queue", "move"}:
            return self.subject
        return self.options.get("queue", "q")


@dataclass(frozen=True)
class Evidence:
    """Who says that AWS answers so: a class of `EVIDENCE`, the source, and the date it was made or read."""

    kind: str
    source: str
    date: str


@dataclass(frozen=True)
class Deviation:
    """An implementation's other answer; `why`, where the answer does not tell."""

    answer: Mapping[str, Any]
    why: str | None = None


@dataclass(frozen=True)
class Behaviour:
    """One row.

    Attributes:
        claim: what SQS does, in a sentence.
        answer: what it answers, by the names of `FACTS`; empty: it says yes.
        relied_on: what of the package needs it, or `None`.
        survives: id of the test which shows that we survive the opposite, or `None`.
        deviations: by implementation, those that answer something else.
    """

    id: str
    claim: str
    steps: tuple[Step, ...]
    answer: Mapping[str, Any]
    evidence: Evidence
    relied_on: str | None
    survives: str | None
    deviations: Mapping[str, Deviation]

    @property
    def is_slow(self) -> bool:
        """Whether it sleeps for longer than units: only the fake's clock makes that quick."""
        return any(step.verb == "sleep" and step.subject >= UNITS_BELOW for step in self.steps)

    def expected_of(self, implementation: str) -> Mapping[str, Any]:
        """The answer of that implementation, which deviates or does not."""
        deviation = self.deviations.get(implementation)
        return deviation.answer if deviation else self.answer


KEYS = frozenset({"id", "claim", "steps", "answer", "evidence", "relied_on", "survives", "deviations"})


def read_rows(path: Path) -> list[Behaviour]:
    """All rows of the file, or a `RowError` with the number of the line."""
    rows: dict[str, Behaviour] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            row = parse(json.loads(line))
            _require(row.id not in rows, f"the id {row.id!r} is taken")
        except (RowError, ValueError) as error:
            raise RowError(f"{path.name}:{number}: {error}") from error
        rows[row.id] = row
    return list(rows.values())


def parse(row: Mapping[str, Any]) -> Behaviour:
    """A row as the file has it, checked."""
    _require(row.keys() == KEYS, f"expected the keys {sorted(KEYS)}, got {sorted(row)}")
    _require(re.fullmatch(r"[a-z0-9]+(?:[.-][a-z0-9]+)+", row["id"]), f"{row['id']!r} is no id")
    steps = tuple(_step(number, step) for number, step in enumerate(row["steps"], 1))
    _require(steps and steps[-1].verb != "sleep", "the last step must ask for something")
    evidence = row["evidence"]
    _require(evidence.keys() == {"class", "source", "date"}, "evidence has a class, a source and a date")
    _require(evidence["class"] in EVIDENCE, f"no class of evidence is {evidence['class']!r}")
    _require(re.fullmatch(r"\d{4}-\d{2}-\d{2}", evidence["date"]), f"{evidence['date']!r} is no date")
    _check_answer(row["answer"])
    return Behaviour(
        row["id"],
        row["claim"],
        steps,
        row["answer"],
        Evidence(evidence["class"], evidence["source"], evidence["date"]),
        row["relied_on"],
        row["survives"],
        {name: _deviation(name, found) for name, found in row["deviations"].items()},
    )


def seconds_in(step: Step) -> Iterator[float]:
    """The units of time of a step, which a replay may stretch."""
    named = [step.options.get(name) for name in ("visibility", "wait", "delay")]
    if step.verb == "sleep":
        named.append(step.subject)
    if step.verb == "change":
        named.append(step.options["to"])
    if step.verb == "change_batch":
        named += [seconds for _, seconds in step.subject]
    yield from (float(seconds) for seconds in named if seconds and 0 < seconds < UNITS_BELOW)


def _step(number: int, step: Mapping[str, Any]) -> Step:
    verb, *_ = step or [""]
    _require(verb in VERBS, f"step {number}: expected one of {', '.join(VERBS)}, got {verb!r}")
    options = {name: value for name, value in step.items() if name != verb}
    unknown = sorted(options.keys() - VERBS[verb])
    _require(not unknown, f"step {number}: {verb!r} has no {', '.join(unknown)}")
    _require("to" in options or verb not in {"change", "move"}, f"step {number}: {verb!r} needs 'to'")
    return Step(verb, step[verb], options)


def _deviation(name: str, found: Mapping[str, Any]) -> Deviation:
    _require(name in IMPLEMENTATIONS, f"expected one of {', '.join(IMPLEMENTATIONS)}, got {name!r}")
    _require(found.keys() <= {"answer", "why"}, f"a deviation has an answer and a why: {name}")
    _check_answer(found["answer"])
    return Deviation(found["answer"], found.get("why"))


def _check_answer(answer: Mapping[str, Any]) -> None:
    for fact, value in answer.items():
        _require(fact in FACTS, f"an answer has no {fact!r}; it has {', '.join(FACTS)}")
        _require(isinstance(value, FACTS[fact]), f"{fact!r} cannot be {value!r}")


def _require(condition: object, sentence: str) -> None:
    if not condition:
        raise RowError(sentence)


def text_of(value: Any) -> Any:
    """`{"repeat": "x", "times": 3}` written out; anything else as it is."""
    if isinstance(value, dict) and value.keys() == {"repeat", "times"}:
        return value["repeat"] * value["times"]
    return value

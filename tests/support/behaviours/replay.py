"""Replays: a row's steps on an implementation, in queues of their own, and the answer of the last."""

from __future__ import annotations

import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from support.behaviours.language import UNITS_BELOW, Behaviour, Step, seconds_in, text_of
from support.behaviours.targets import (
    CannotAskError,
    FakeTarget,
    RefusedError,
    Target,
    forget,
    redrive_policy,
)

from celery_sqs_visibility.policy.quotas import WAIT_TIME_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PREFIX = "conformance-"

#: Rows that are replayed at once: most of the time they wait.
TOGETHER = 24

#: Part of a unit that all requests of a row may take; if they took longer, its times meant nothing.
PUNCTUAL = 0.5

#: How often a row's units are doubled for the sake of a busy machine.
STRETCHES = 5

NUMBERS = [f"ApproximateNumberOfMessages{state}" for state in ("", "NotVisible", "Delayed")]

_BASE64 = re.compile(r"[A-Za-z0-9+/]+=*")

_STRETCHED = ("DelaySeconds", "VisibilityTimeout", "ReceiveMessageWaitTimeSeconds")


def replay_on_fake(row: Behaviour, **switches: Any) -> dict[str, Any]:
    """The answer of a fake of the row's own, with those switches."""
    waits = any(step.options.get("wait") for step in row.steps)
    return _Replay(FakeTarget(waits=waits, **switches), 1 if not waits else 5).answer_of(row)


def replay_all_on_fakes(rows: Iterable[Behaviour]) -> dict[str, dict[str, Any]]:
    """The answers of fakes, by the rows' ids."""
    rows = list(rows)
    with ThreadPoolExecutor(TOGETHER) as threads:
        return {row.id: answer for row, answer in zip(rows, threads.map(replay_on_fake, rows), strict=True)}


def replay_all(rows: Iterable[Behaviour], target: Target) -> dict[str, dict[str, Any]]:
    """The answers of a server, by the rows' ids. Rows are replayed side by side."""
    rows = list(rows)
    with ThreadPoolExecutor(TOGETHER) as threads:
        answers = threads.map(lambda row: replay(row, target), rows)
        return {row.id: answer for row, answer in zip(rows, answers, strict=True)}


def replay(row: Behaviour, target: Target) -> dict[str, Any]:
    """The answer of a server; where the machine was slow, once more with longer units."""
    for stretch in range(STRETCHES):
        attempt = _Replay(target, 2**stretch)
        answer = attempt.answer_of(row)
        if attempt.was_punctual or not any(any(seconds_in(step)) for step in row.steps):
            return answer
    raise TimeoutError(f"{row.id}: requests took longer than its times, {attempt.unit:g} s")


class _Replay:
    """One replay; `stretch` times the implementation's unit is its own."""

    def __init__(self, target: Target, stretch: int) -> None:
        self._target = target
        self.unit = target.unit * stretch
        self._prefix = f"{PREFIX}{uuid.uuid4().hex[:8]}-"
        self._urls: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._handles: dict[str, str] = {}
        self._receives: dict[str, int] = {}
        self._ids: dict[str, str] = {}
        self._sent = 0  # messages
        self._requests = 0.0  # seconds that requests took

    @property
    def was_punctual(self) -> bool:
        """Whether the requests took so little time that the row's times are what it says."""
        return self._requests <= PUNCTUAL * self.unit

    def answer_of(self, row: Behaviour) -> dict[str, Any]:
        last = len(row.steps)
        try:
            for number, step in enumerate(row.steps, 1):
                try:
                    answer = self._timed(step)
                except RefusedError as error:
                    answer = {"code": error.code, "message": str(error)}
                except CannotAskError:
                    return {"asked": False}
                if number < last and (refusal := {"code", "failed"} & {n for n, v in answer.items() if v}):
                    return {
                        "step": number,
                        **{name: answer[name] for name in sorted(refusal | {"message"} & answer.keys())},
                    }
            return answer
        finally:
            for url in self._urls.values():
                forget(self._target, url)

    def _timed(self, step: Step) -> dict[str, Any]:
        began = self._target.now()
        meant = (
            self._seconds(step.subject)
            if step.verb == "sleep"
            else self._seconds(step.options.get("wait", 0))
        )
        try:
            answer = getattr(self, f"_{step.verb}")(step)
        finally:
            took = self._target.now() - began
            self._requests += max(0.0, took - meant)
        return answer | ({"waited": took / self.unit} if step.options.get("wait") else {})

    def _seconds(self, value: Any) -> Any:
        """A row's time in whole seconds where SQS is told, if it is in units."""
        if not isinstance(value, int | float) or not 0 < value < UNITS_BELOW:
            return value
        return value * self.unit

    def _whole(self, value: Any) -> Any:
        seconds = self._seconds(value)
        return max(1, round(seconds)) if isinstance(seconds, float) else seconds

    def _wait(self, value: Any) -> Any:
        """As `_whole`; units may be too long for SQS."""
        return (
            min(self._whole(value), WAIT_TIME_SECONDS) if isinstance(self._seconds(value), float) else value
        )

    def _name(self, alias: str) -> str:
        return self._names.get(alias, f"{self._prefix}{alias}")

    def _url(self, alias: str) -> str:
        if alias in self._urls:
            return self._urls[alias]
        some = next(iter(self._urls.values()), None)
        if some is None:
            raise CannotAskError  # nobody knows how its URLs look
        return f"{some.rpartition('/')[0]}/{self._name(alias)}"

    def _arn(self, alias: str) -> str:
        return self._target.read(self._url(alias), ["QueueArn"])["QueueArn"]

    def _sleep(self, step: Step) -> dict[str, Any]:
        self._target.sleep(self._seconds(step.subject))
        return {}

    def _create(self, step: Step) -> dict[str, Any]:
        options = step.options
        fifo = options.get("fifo", False)
        name = f"{self._prefix}{step.subject}{text_of(options.get('name', '.fifo' if fifo else ''))}"
        attributes = {"FifoQueue": "true"} if fifo else {}
        attributes |= self._stretched(options.get("with", {}))
        if "dead_letters" in options:
            attributes |= redrive_policy(self._arn(options["dead_letters"]), options["max_receives"])
        self._names[step.subject] = name
        self._urls[step.subject] = self._target.create(name, attributes)
        return {}

    def _stretched(self, attributes: Mapping[str, str]) -> dict[str, str]:
        return {
            name: str(self._whole(int(value))) if name in _STRETCHED and value.isdigit() else value
            for name, value in attributes.items()
        }

    def _set(self, step: Step) -> dict[str, Any]:
        self._target.set(self._url(step.queue), self._stretched(step.subject))
        return {}

    def _read(self, step: Step) -> dict[str, Any]:
        return {"values": self._target.read(self._url(step.queue), step.subject)}

    def _numbers(self, step: Step) -> dict[str, Any]:
        return {"numbers": self._target.numbers(self._url(step.queue), NUMBERS)}

    def _send(self, step: Step) -> dict[str, Any]:
        body = text_of(step.subject)
        message_id = self._target.send(self._url(step.queue), self._entry({"body": body, **step.options}))
        self._sent += 1
        return {"same": self._ids.setdefault(body, message_id) == message_id}

    def _send_batch(self, step: Step) -> dict[str, Any]:
        self._sent += len(step.subject)
        entries = [
            {"Id": text_of(entry.get("id", str(position))), **self._entry(entry)}
            for position, entry in enumerate(step.subject)
        ]
        return {"failed": self._target.send_batch(self._url(step.queue), entries)}

    def _entry(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        given = {
            "MessageBody": text_of(entry["body"]),
            "DelaySeconds": self._whole(entry.get("delay")),
            "MessageGroupId": text_of(entry.get("group")),
            "MessageDeduplicationId": text_of(entry.get("deduplication")),
        }
        if "attributes" in entry:
            given["MessageAttributes"] = {
                name: _attribute(value) for name, value in entry["attributes"].items()
            }
        return {name: value for name, value in given.items() if value is not None}

    def _receive(self, step: Step) -> dict[str, Any]:
        options = step.options
        given = {
            "MaxNumberOfMessages": step.subject,
            "VisibilityTimeout": self._whole(options.get("visibility")),
            "WaitTimeSeconds": self._wait(options.get("wait")),
            "ReceiveRequestAttemptId": options.get("attempt"),
        }
        asked = {name: value for name, value in given.items() if value is not None}
        fifo = self._name(step.queue).endswith(".fifo")
        # A FIFO queue brings all that it may, and nothing more to a second request.
        messages = self._target.receive(self._url(step.queue), asked, 0 if fifo else self._sent)
        if not fifo:
            messages = sorted(messages, key=lambda message: message["Body"])
        same = [self._note(message) for message in messages]
        answer: dict[str, Any] = {
            "bodies": [message["Body"] for message in messages],
            "counts": [int(message["Attributes"]["ApproximateReceiveCount"]) for message in messages],
        }
        if messages:
            answer["system"] = messages[0]["Attributes"]
            answer["attributes"] = {
                name: value.get(
                    "StringValue",
                    value.get("BinaryValue", b"").decode("latin-1")
                    if isinstance(value.get("BinaryValue", b""), bytes)
                    else "",
                )
                for name, value in messages[0].get("MessageAttributes", {}).items()
            }
            answer["same"] = all(same)
            answer["base64"] = all(_BASE64.fullmatch(message["ReceiptHandle"]) for message in messages)
        return answer

    def _note(self, message: Mapping[str, Any]) -> bool:
        body = message["Body"]
        self._receives[body] = self._receives.get(body, 0) + 1
        self._handles[body] = self._handles[f"{body}#{self._receives[body]}"] = message["ReceiptHandle"]
        return self._ids.setdefault(body, message["MessageId"]) == message["MessageId"]

    def _handle(self, named: str | Mapping[str, str]) -> str:
        if isinstance(named, str):
            # What a row names was not received: that is an answer, too, and not the runner's failure.
            if named not in self._handles:
                raise RefusedError("NotReceived", f"{named} was not received")
            return self._handles[named]
        return named["handle"]

    def _change(self, step: Step) -> dict[str, Any]:
        change = self._handle(step.subject), self._whole(step.options["to"])
        self._target.change(self._url(step.queue), [change], batch=False)
        return {}

    def _change_batch(self, step: Step) -> dict[str, Any]:
        changes = [(self._handle(named), self._whole(seconds)) for named, seconds in step.subject]
        return {"failed": self._target.change(self._url(step.queue), changes, batch=True)}

    def _delete(self, step: Step) -> dict[str, Any]:
        self._target.delete(self._url(step.queue), [self._handle(step.subject)], batch=False)
        return {}

    def _delete_batch(self, step: Step) -> dict[str, Any]:
        handles = [self._handle(named) for named in step.subject]
        return {"failed": self._target.delete(self._url(step.queue), handles, batch=True)}

    def _purge(self, step: Step) -> dict[str, Any]:
        self._target.purge(self._url(step.queue))
        return {}

    def _find(self, step: Step) -> dict[str, Any]:
        self._target.find(self._name(step.queue))
        return {}

    def _list(self, step: Step) -> dict[str, Any]:
        return {"found": len(self._target.list(self._name(step.queue)))}

    def _delete_queue(self, step: Step) -> dict[str, Any]:
        self._target.delete_queue(self._url(step.queue))
        return {}

    def _move(self, step: Step) -> dict[str, Any]:
        self._target.move(self._arn(step.queue), self._arn(step.options["to"]))
        return {}


def _attribute(value: Any) -> dict[str, Any]:
    """Text, or an attribute as SQS has it."""
    if isinstance(value, dict) and "DataType" in value:
        return value
    return {"DataType": "String", "StringValue": text_of(value)}

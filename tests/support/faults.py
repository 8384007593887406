"""What can go wrong between a worker and SQS.

A fault is a function that stands in the way of a request: it may delay it, change it, answer it itself,
or cut the connection. Those that forward the request reach whatever fault was injected after them, and
SQS at the end; so delays add up, and the first that answers wins.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True)
class Request:
    """One call as the worker made it."""

    method: str
    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes

    @cached_property
    def action(self) -> str:
        """The API action, of the JSON protocol or of the query protocol; empty if it is no API call."""
        target = self.headers.get("x-amz-target", "")
        return target.rpartition(".")[2] or str(self.parameters.get("Action", ""))

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """The decoded body; empty if it is neither JSON nor a form."""
        return decode(self.body, self.headers.get("content-type", ""))

    @cached_property
    def queue(self) -> str | None:
        """The queue's name, if the call names one."""
        parameters = self.parameters
        return parameters.get("QueueName") or parameters.get("QueueUrl", "").rpartition("/")[2] or None


@dataclass(frozen=True)
class Answer:
    """One answer, from SQS or in its name."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


class Disconnected(Exception):
    """The connection to the worker ends without an answer."""

    def __init__(self, reason: str, *, reset: bool = False) -> None:
        super().__init__(reason)
        self.reset = reset


Forward = Callable[[Request], Answer]
# The event is set when the fault is removed, so that its waits end with it.
Fault = Callable[[Request, Forward, threading.Event], Answer]


def decode(body: bytes, content_type: str) -> dict[str, Any]:
    """A body as a dictionary; whatever it is not, is empty."""
    try:
        if "urlencoded" in content_type:
            return {name: values[0] for name, values in parse_qs(body.decode()).items()}
        decoded = json.loads(body) if body else {}
    except ValueError:
        return {}
    return decoded if isinstance(decoded, dict) else {}


def json_answer(status: int, payload: dict[str, Any], **headers: str) -> Answer:
    body = json.dumps(payload).encode()
    return Answer(status, body, {"Content-Type": "application/x-amz-json-1.0", **headers})


def latency(seconds: float) -> Fault:
    """SQS does its work at once, the answer is late."""

    def fault(request: Request, forward: Forward, removed: threading.Event) -> Answer:
        answer = forward(request)
        removed.wait(seconds)
        return answer

    return fault


def hold_request(until: threading.Event | float) -> Fault:
    """The request arrives late: after so many seconds, or once the test sets the event."""

    def fault(request: Request, forward: Forward, removed: threading.Event) -> Answer:
        if isinstance(until, threading.Event):
            while not (until.wait(0.02) or removed.is_set()):
                pass
        else:
            removed.wait(until)
        return forward(request)

    return fault


def error(code: str, status: int = HTTPStatus.BAD_REQUEST, message: str = "injected by the test") -> Fault:
    """SQS refuses, in its JSON protocol: `error("ThrottlingException")`, `error("InternalFailure", 500)`."""
    payload = {"__type": f"com.amazonaws.sqs#{code}", "message": message}
    blame = "Receiver" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "Sender"

    def fault(request: Request, forward: Forward, removed: threading.Event) -> Answer:
        return json_answer(status, payload, **{"x-amzn-query-error": f"{code};{blame}"})

    return fault


def reset_connection() -> Fault:
    """The connection breaks (RST) before the request reaches SQS."""

    def fault(request: Request, forward: Forward, removed: threading.Event) -> Answer:
        raise Disconnected("reset_connection", reset=True)

    return fault


def black_hole() -> Fault:
    """No answer, ever; when the fault is removed, the connection closes. SQS never sees the request."""

    def fault(request: Request, forward: Forward, removed: threading.Event) -> Answer:
        removed.wait()
        raise Disconnected("black_hole")

    return fault


def lose_response() -> Fault:
    """SQS does its work and the connection closes before the answer arrives."""

    def fault(request: Request, forward: Forward, removed: threading.Event) -> Answer:
        forward(request)
        raise Disconnected("lose_response")

    return fault


def list_twice() -> Fault:
    """The answer to a receive lists each message twice. JSON protocol only."""

    def fault(request: Request, forward: Forward, removed: threading.Event) -> Answer:
        answer = forward(request)
        listed = decode(answer.body, "json")
        twice = [message for message in listed.get("Messages", []) for _ in range(2)]
        return json_answer(answer.status, {**listed, "Messages": twice}) if twice else answer

    return fault


def fail_entries(
    code: str,
    *,
    sender_fault: bool = True,
    positions: Collection[int] | None = None,
    message: str = "injected by the test",
) -> Fault:
    """These entries of a batch fail, all by default: SQS gets the others only. JSON protocol only."""

    def failure(entry: dict[str, Any]) -> dict[str, Any]:
        return {"Id": entry["Id"], "Code": code, "Message": message, "SenderFault": sender_fault}

    def fault(request: Request, forward: Forward, removed: threading.Event) -> Answer:
        parameters = request.parameters
        entries = parameters.get("Entries", [])
        doomed = [entry for i, entry in enumerate(entries) if positions is None or i in positions]
        spared = [entry for entry in entries if entry not in doomed]
        if not doomed:
            return forward(request)
        payload = {"Successful": [], "Failed": []}
        if spared:
            answer = forward(replace(request, body=json.dumps({**parameters, "Entries": spared}).encode()))
            if answer.status != HTTPStatus.OK:
                return answer
            payload |= decode(answer.body, "json")
        payload["Failed"] = [*payload["Failed"], *map(failure, doomed)]
        return json_answer(HTTPStatus.OK, payload)

    return fault


class Injection:
    """A fault in place. A context manager: it is removed at the end of the block."""

    def __init__(
        self, fault: Fault, actions: tuple[str, ...], queue: str | None, times: int | None, rate: float
    ) -> None:
        self._fault = fault
        self._actions = actions
        self._queue = queue
        self._times = times
        self._rate = rate
        self._random = random.Random(0)  # the same calls are hit in every run
        self._lock = threading.Lock()  # guards hits and the random numbers
        self._removed = threading.Event()
        self.hits = 0

    def take(self, request: Request) -> bool:
        """Whether this call is to be hit; counts it when it is."""
        if self._removed.is_set() or (self._actions and request.action not in self._actions):
            return False
        if self._queue is not None and request.queue != self._queue:
            return False
        with self._lock:
            if self.hits == self._times or self._random.random() >= self._rate:
                return False
            self.hits += 1
            return True

    def apply(self, forward: Forward, request: Request) -> Answer:
        return self._fault(request, forward, self._removed)

    def remove(self) -> None:
        """Calls it holds go on, those in a black hole are disconnected. Idempotent."""
        self._removed.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.remove()

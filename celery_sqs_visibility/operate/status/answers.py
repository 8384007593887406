"""The workers' answers about their queues and runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from celery import Celery

from celery_sqs_visibility.operate.invocation import ask_or_say
from celery_sqs_visibility.operate.status.report import Status, work_of
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock

#: How long a worker that has stopped answering is shown.
MAX_SILENT_SECONDS: Final = 300

#: How many messages each worker describes.
MAX_HELD: Final = 50

#: Requests of a command to a worker: to send and receive the command, and the same for the answer.
REQUESTS_OF_A_COMMAND: Final = 4


class Answer(NamedTuple):
    """A worker's last answer, and when it came; `runs` is its answer to `sqs_held`."""

    at: float
    queues: Mapping[str, Any]
    runs: Sequence[Mapping[str, Any]] = ()


class WorkerAnswers:
    """The answers of the app's workers, or the last ones while workers can't be asked. The command's thread.

    With `with_runs`, workers are asked about their runs, too.
    """

    def __init__(
        self, app: Celery, timeout: float, clock: Clock = SYSTEM_CLOCK, *, with_runs: bool = False
    ) -> None:
        self._app = app
        self._timeout = timeout
        self._clock = clock
        self._with_runs = with_runs
        self._asked_at: float | None = None  # when they last answered
        self._answers: dict[str, Answer] = {}

    @property
    def requests(self) -> int:
        """About how many requests it takes to ask all of them."""
        return len(self._answers) * REQUESTS_OF_A_COMMAND * (2 if self._with_runs else 1)

    def add_to(self, taken: Status) -> Status:
        """Add the workers to a status, or a sentence that says why they are missing or outdated."""
        queues, missing = ask_or_say(self._app, "sqs_queues", self._timeout)
        runs: dict[str, Any] | None = {}
        if queues and self._with_runs:
            runs, unasked = ask_or_say(self._app, "sqs_held", self._timeout, list(queues), limit=MAX_HELD)
            missing = unasked if runs is None else ""
        now = self._clock.monotonic()
        if queues is not None and runs is not None:
            self._note(now, queues, runs)
        added = self._added(taken, *([f"{missing.rstrip('.')}."] if missing else []))
        if self._asked_at is None or not added.workers:
            return added
        return replace(added, workers_age_seconds=now - self._asked_at)

    def _note(self, now: float, queues: Mapping[str, Any], runs: Mapping[str, Any]) -> None:
        self._asked_at = now
        self._answers |= {
            node: Answer(now, answer, runs.get(node, {}).get("held", ())) for node, answer in queues.items()
        }
        self._answers = {
            node: each for node, each in self._answers.items() if now - each.at <= MAX_SILENT_SECONDS
        }

    def _present(self) -> dict[str, Any]:
        """The answers of workers that answered the latest question."""
        return {node: each.queues for node, each in self._answers.items() if each.at == self._asked_at}

    def _added(self, taken: Status, *notes: str) -> Status:
        now, workers = self._clock.monotonic(), self._present()
        queues = taken.queues
        if self._asked_at is not None:
            queues = [replace(each, work=work_of(each.depth.queue, workers)) for each in queues]
        return replace(
            taken,
            queues=queues,
            workers=workers,
            notes=(*taken.notes, *notes),
            silent={node: now - each.at for node, each in self._answers.items() if node not in workers},
            runs={node: each.runs for node, each in self._answers.items()},
        )

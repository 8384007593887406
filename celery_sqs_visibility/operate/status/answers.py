"""What workers answer about their queues and runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from celery import Celery
from kombu.exceptions import OperationalError

from celery_sqs_visibility.errors import SQSVisibilityError
from celery_sqs_visibility.operate.invocation import CONTROL_IS_OFF, ask, is_controlled
from celery_sqs_visibility.operate.status.report import Status
from celery_sqs_visibility.operate.status.work import work_of
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock

#: How long a worker that does not answer any more is shown.
MAX_SILENT_SECONDS: Final = 300

#: Messages that each worker tells about.
MAX_HELD: Final = 50

#: Of a command to a worker: to send and receive it, and likewise its answer.
REQUESTS_OF_A_COMMAND: Final = 4


class Answer(NamedTuple):
    """A worker's last one, and when it came; `runs` are those of `sqs_held`."""

    at: float
    queues: Mapping[str, Any]
    runs: Sequence[Mapping[str, Any]] = ()


class WorkerAnswers:
    """The answers of the app's workers, or the last ones while they cannot be asked. The command's thread.

    Args:
        app: whose workers.
        timeout: seconds to wait for answers.
        clock: the monotonic clock.
        with_runs: whether they are asked about their runs, too.
    """

    def __init__(
        self, app: Celery, timeout: float, clock: Clock = SYSTEM_CLOCK, *, with_runs: bool = False
    ) -> None:
        self._app = app
        self._timeout = timeout
        self._clock = clock
        self._with_runs = with_runs
        self._asked_at: float | None = None  # when they were asked with success
        self._answers: dict[str, Answer] = {}

    @property
    def requests(self) -> int:
        """About how many requests it takes to ask them all."""
        return len(self._answers) * REQUESTS_OF_A_COMMAND * (2 if self._with_runs else 1)

    def add_to(self, taken: Status) -> Status:
        """Add the workers to a status, or a sentence that says why they are missing or old."""
        if not is_controlled(self._app):
            return replace(taken, notes=(*taken.notes, f"the workers are not asked: {CONTROL_IS_OFF}."))
        try:
            self._ask()
        except (SQSVisibilityError, OperationalError, OSError) as error:
            added = self._added(taken, f"the workers cannot be asked: {error}")
            age = self._clock.monotonic() - self._asked_at if self._asked_at and added.workers else 0.0
            return replace(added, workers_age_seconds=age)
        silence = f"no worker answered within {self._timeout:g} s."
        return self._added(taken, *([] if self._present() else [silence]))

    def _ask(self) -> None:
        queues = ask(self._app, "sqs_queues", self._timeout)
        now = self._clock.monotonic()
        runs: dict[str, Any] = {}
        if self._with_runs and queues:
            runs = ask(self._app, "sqs_held", self._timeout, list(queues), limit=MAX_HELD)
        self._asked_at = now
        self._answers |= {
            node: Answer(now, answer, runs.get(node, {}).get("held", ())) for node, answer in queues.items()
        }
        self._answers = {
            node: each for node, each in self._answers.items() if now - each.at <= MAX_SILENT_SECONDS
        }

    def _present(self) -> dict[str, Any]:
        """The answers of those that answered when they were asked last."""
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

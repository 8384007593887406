"""Every way in which a run may end, and what becomes of its message, its state and its errbacks: one table.

`tests/worker/test_ends.py` holds workers to it, in every pool; `docs/ends.md` is written from it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import celery

from celery_sqs_visibility.policy.fates import End, Fate, fate_of

CELERY = tuple(map(int, celery.__version__.split(".")[:2]))

#: Where a step of a chain, or a callback, goes that cannot be published for a while.
ELSEWHERE = "elsewhere"


@dataclass(frozen=True)
class Run:
    """How one run ends.

    Attributes:
        end: in which way.
        last: whether it is the last attempt.
        retried: whether the task retries such an exception.
        told: whether a task_retry signal tells that it comes back.
    """

    end: End
    last: bool = False
    retried: bool = True
    told: bool = True

    @property
    def fate(self) -> Fate:
        return fate_of(self.end, retried=self.retried, last=self.last)


@dataclass(frozen=True)
class Row:
    """A message from its first run to its end.

    Attributes:
        task: of `tests/tasks/ends.py`.
        told: what happens, for whoever reads the docs.
        runs: how its runs end, in order; the first that does not come back is the last of the message.
        state: what the result backend has in the end.
        kwargs: the task's arguments.
        options: how it is sent.
        more: runs of what it published, or of a message that was not the same.
        needs: "processes", or nothing.
    """

    task: str
    told: str
    runs: tuple[Run, ...]
    state: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    more: int = 0
    needs: str = ""

    @property
    def name(self) -> str:
        words = [self.task, *map(str, self.kwargs), *self.options]
        return "-".join([*words, *self.kwargs.get("refused", ())])


S, F, R = "SUCCESS", "FAILURE", "RETRY"
SUCCEEDS = Run(End.SUCCEEDED)
#: What comes back once and fails for good at its second attempt.
TWICE = {end: (Run(end), Run(end, last=True)) for end in End}

ROWS = (
    Row("returning", "returns", (SUCCEEDS,), S),
    Row("failing", "raises an exception", TWICE[End.FAILED], F),
    Row("failing", "raises once, then returns", (Run(End.FAILED), SUCCEEDS), S, {"times": 1}),
    Row("excluded", "raises what `dont_autoretry_for` names", (Run(End.FAILED, retried=False),), F),
    Row("narrowed", "raises what `autoretry_for` does not name", (Run(End.FAILED, retried=False),), F),
    Row("narrowed", "raises what `autoretry_for` names", TWICE[End.FAILED], F, {"included": True}),
    Row("retrying", "`self.retry()`", TWICE[End.RETRIED], F),
    Row(
        "retrying",
        "`self.retry(max_retries=6)` of a task with `max_retries=1`",
        (*[Run(End.RETRIED)] * 6, Run(End.RETRIED, last=True)),
        F,
        {"max_retries": 6},
    ),
    Row(
        "retrying_with_arguments",
        "`self.retry(kwargs=...)`",
        (Run(End.PUBLISHED),),
        S,
        more=1,
    ),
    Row(
        "retrying_with_arguments",
        "`self.retry(kwargs=...)`, and the result backend cannot store that it is to be retried",
        (Run(End.PUBLISHED, told=False),),
        S,
        {"refused": [R]},
        more=1,
    ),
    Row(
        "failing_twice",
        "raises what `dont_autoretry_for` names, and its `on_failure` raises, too",
        (Run(End.FAILED, retried=False),),
        F,
    ),
    Row("replacing", "`self.replace()`", (Run(End.PUBLISHED),), S, more=1),
    Row("ignoring", "raises `Ignore`", (Run(End.IGNORED),), "PENDING"),
    Row(
        "rejecting",
        "raises `Reject(exception, requeue=False)`",
        (Run(End.REJECTED),),
        F if CELERY >= (5, 7) else "PENDING",
    ),
    Row("releasing", "`self.visibility.release()`, then returns", (Run(End.RELEASED), SUCCEEDS), S),
    Row("returning", "expired", (), "REVOKED", options={"expires": -1}),
    Row("exiting", "exits", TWICE[End.LOST], F),
    Row("killed", "its child is killed", TWICE[End.LOST], F, needs="processes"),
    Row("limited", "its hard time limit passes", TWICE[End.LOST], F, needs="processes"),
    Row("raising_what_cannot_be_pickled", "raises what cannot be pickled", TWICE[End.FAILED], F),
    Row("returning_what_cannot_be_stored", "returns what cannot be encoded", TWICE[End.UNDECIDED], F),
    Row("calling_itself", "`self.run()` within `try`", (SUCCEEDS,), S),
    Row(
        "returning",
        "the result backend cannot store its success",
        (Run(End.UNDECIDED), SUCCEEDS),
        S,
        {"refused": [S]},
    ),
    Row(
        "narrowed_and_returning",
        "the same, of a task whose `autoretry_for` does not name the backend's exception",
        (Run(End.UNDECIDED), SUCCEEDS),
        S,
        {"refused": [S]},
    ),
    Row(
        "returning",
        "the result backend stores nothing",
        (Run(End.UNDECIDED, told=False), SUCCEEDS),
        S,
        {"refused": [S, R, F]},
    ),
    Row(
        "narrowed_and_retrying",
        "the result backend cannot store that it is to be retried",
        (Run(End.RETRIED, told=False), SUCCEEDS),
        S,
        {"times": 1, "refused": [R]},
    ),
    Row(
        "excluded",
        "the result backend cannot store its failure for good",
        (Run(End.UNDECIDED), Run(End.FAILED, retried=False)),
        F,
        {"refused": [F]},
    ),
)


DOCUMENT = """\
# How runs end

What becomes of the message of a `VisibilityTask`, however its run ends. The first table is the decision,
which `policy/fates.py` makes for the pool's children and for the main process. The second is what the
tests hold workers to, in every pool and on every Celery that is supported (`pytest
tests/worker/test_ends.py`); its tasks have `max_retries=1`, so that the second attempt is the last. A
message that comes back is hidden for its delay and received again; one that is given up goes to the
dead-letter queue, and without one is deleted or kept as `on_exhausted` says.

The last attempt is the smaller of `max_retries + 1` attempts and the queue's `maxReceiveCount` receives.

## The decision

{decision}
## What tests hold workers to

The state is what the result backend has in the end. Before that it is RETRY, no errback is called and no
`task_failure` is sent. With FAILURE both are, once.

{rows}
A state of FAILURE after `Reject` is Celery's since 5.7. An exception of a task's own `on_success` or
`after_return` is only logged by Celery 5.7; before, the run is undecided, and is repeated.

## What follows a run, and chords

- **A link, a chain's next step or a chord's body that cannot be sent** is sent again for ten seconds
  after the end of the task's code. Then the run of a task with a link or a chain comes back, attempts
  permitting. Of a chord's body Celery does not tell: it fails the body, with a `ChordError`.
- **A member of a chord whose child is lost after its result was stored** comes back and runs again, since
  its chord may not have been told. While Celery's claim on the body lasts (Redis, Celery 5.7: 27 seconds
  at the defaults) it is hidden, since Celery would do nothing then, in silence.
- **`celery.chord_unlock`**, with which Celery polls for chords on backends without counters, publishes
  each poll as a message of its own, as Celery does: polls use up neither attempts nor `maxReceiveCount`.
- **A limit given to `self.retry()` that exceeds the task's own** is told to the workers by one message
  more, which takes the place of the first before the task's own last attempt. In a FIFO queue it would
  lose its place, and is not sent: a child that is lost beyond the task's own limit is a failure for good
  there.
- **A run that takes its whole worker along** tells nobody of its end, and its receive counts as an
  attempt. Three receives beyond the last attempt the message is failed without being run again, if the
  result backend shows that the run before began and told no end. Otherwise it is run: a receive may have
  been a release, at a deploy. A redrive policy ends both.
- **Stock tasks** have Celery's own outcomes. Where Celery rejects a message since it could not publish
  the task's retry, the message comes back; a `Reject` of the task's own means what it says.
"""


def decision_table():
    lines = ["| a run ends | attempts left | at the last attempt |", "|---|---|---|"]
    for end in End:
        first, last = fate_of(end), fate_of(end, last=True)
        shown = first.value
        if fate_of(end, retried=False) is not first:
            shown += f"; if the task does not retry it, {fate_of(end, retried=False).value}"
        lines.append(f"| {end.value} | {shown} | {last.value} |")
    return "\n".join(lines) + "\n"


def rows_table():
    lines = ["| what happens | after each run | state |", "|---|---|---|"]
    for row in ROWS:
        fates = [run.fate.value for run in row.runs] or ["deleted, not run"]
        where = " (prefork)" if row.needs else ""
        lines.append(f"| {row.told}{where} | {', '.join(fates)} | {row.state} |")
    return "\n".join(lines) + "\n"


def document():
    return DOCUMENT.format(decision=decision_table(), rows=rows_table())


if __name__ == "__main__":
    sys.stdout.write(document())

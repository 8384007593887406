"""Every way in which a run may end, and what becomes of its message, its state and its errbacks: one table.

`tests/worker/test_ends.py` holds workers to it, in every pool; the tables of `docs/ends.md` are it.
"""

from __future__ import annotations

import enum
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import celery

from celery_sqs_visibility.policy import retries

CELERY = tuple(map(int, celery.__version__.split(".")[:2]))

#: It holds the rest of the text.
PAGE = Path(__file__).resolve().parents[2] / "docs/ends.md"


class End(enum.Enum):
    """How a run of a `VisibilityTask` ended, or why there was none."""

    SUCCEEDED = "the task returned, and Celery stored its result"
    FAILED = retries.End.FAILED.value
    RETRIED = retries.End.RETRIED.value
    PUBLISHED = (
        "the task published its successor: `self.retry()` with changes, `self.replace()`, `continue_later()`"
    )
    UNDECIDED = retries.End.UNDECIDED.value
    LOST = retries.End.LOST.value
    IGNORED = "the task raised `Ignore`"
    RELEASED = "the task raised `Reject(requeue=True)`, or called `self.visibility.release()`"
    REJECTED = "the task raised `Reject(requeue=False)`"
    REVOKED = "the task was revoked, or has expired"


class Fate(enum.Enum):
    """What becomes of a message."""

    DELETE = "deleted"
    #: Hidden for a delay, then received again.
    COME_BACK = "comes back"
    #: Visible again at once.
    RELEASE = "released"
    #: Moved to the dead-letter queue; without one, deleted or kept as `when_exhausted` says.
    GIVE_UP = "given up"


#: Ends after which Celery acknowledges or rejects the message.
CELERYS = {
    End.SUCCEEDED: Fate.DELETE,
    End.PUBLISHED: Fate.DELETE,
    End.IGNORED: Fate.DELETE,
    End.REVOKED: Fate.DELETE,
    End.RELEASED: Fate.RELEASE,
    End.REJECTED: Fate.GIVE_UP,
}


def fate_of(end: End, *, retried: bool = True, last: bool = False) -> Fate:
    if end in CELERYS:
        return CELERYS[end]
    comes_back = retries.comes_back_after(retries.End(end.value), retried=retried, last=last)
    return Fate.COME_BACK if comes_back else Fate.GIVE_UP


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
F_SINCE_5_7 = F if CELERY >= (5, 7) else "PENDING"
SUCCEEDS = Run(End.SUCCEEDED)
UNDECIDED = Run(End.UNDECIDED)
FAILS_FOR_GOOD = Run(End.FAILED, retried=False)
#: What comes back once and fails for good at its second attempt.
TWICE = {end: (Run(end), Run(end, last=True)) for end in End}

ROWS = (
    Row("returning", "returns", (SUCCEEDS,), S),
    Row("failing", "raises an exception", TWICE[End.FAILED], F),
    Row("failing", "raises once, then returns", (Run(End.FAILED), SUCCEEDS), S, {"times": 1}),
    Row("excluded", "raises what `dont_autoretry_for` names", (FAILS_FOR_GOOD,), F),
    Row("narrowed", "raises what `autoretry_for` does not name", (FAILS_FOR_GOOD,), F),
    Row("narrowed", "raises what `autoretry_for` names", TWICE[End.FAILED], F, {"included": True}),
    Row("retrying", "`self.retry()`", TWICE[End.RETRIED], F),
    Row(
        "retrying",
        "`self.retry(max_retries=6)` of a task with `max_retries=1`",
        (*[Run(End.RETRIED)] * 6, Run(End.RETRIED, last=True)),
        F,
        {"max_retries": 6},
    ),
    Row("retrying_with_arguments", "`self.retry(kwargs=...)`", (Run(End.PUBLISHED),), S, more=1),
    Row(
        "retrying_with_arguments",
        "`self.retry(kwargs=...)`, and the result backend cannot store that it is to be retried",
        (Run(End.PUBLISHED),),
        S,
        {"refused": [R]},
        more=1,
    ),
    Row(
        "failing_twice",
        "raises what `dont_autoretry_for` names, and its `on_failure` raises, too",
        (FAILS_FOR_GOOD,),
        F,
    ),
    Row("continuing", "`self.visibility.continue_later(...)`", (Run(End.PUBLISHED),), S, more=1),
    Row(
        "retrying_unpublished",
        "`self.retry(kwargs=...)`, and its `apply_async` returns without having published",
        TWICE[End.RETRIED],
        F,
    ),
    Row(
        "continuing_unpublished",
        "`self.visibility.continue_later(...)`, and its `apply_async` returns without having published",
        TWICE[End.RETRIED],
        F,
    ),
    Row("replacing", "`self.replace()`", (Run(End.PUBLISHED),), S, more=1),
    Row("ignoring", "raises `Ignore`", (Run(End.IGNORED),), "PENDING"),
    Row("rejecting", "raises `Reject(exception, requeue=False)`", (Run(End.REJECTED),), F_SINCE_5_7),
    Row("releasing", "`self.visibility.release()`, then returns", (Run(End.RELEASED), SUCCEEDS), S),
    Row("returning", "expired", (), "REVOKED", options={"expires": -1}),
    Row("exiting", "exits", TWICE[End.LOST], F),
    Row("killed", "its child is killed", TWICE[End.LOST], F, needs="processes"),
    Row("limited", "its hard time limit passes", TWICE[End.LOST], F, needs="processes"),
    Row("silent", "shows no life for its `inactivity_timeout`", TWICE[End.LOST], F),
    Row("raising_what_cannot_be_pickled", "raises what cannot be pickled", TWICE[End.FAILED], F),
    Row("returning_what_cannot_be_stored", "returns what cannot be encoded", TWICE[End.UNDECIDED], F),
    Row("calling_itself", "`self.run()` within `try`", (SUCCEEDS,), S),
    Row(
        "returning", "the result backend cannot store its success", (UNDECIDED, SUCCEEDS), S, {"refused": [S]}
    ),
    Row(
        "narrowed_and_returning",
        "the same, of a task whose `autoretry_for` does not name the backend's exception",
        (UNDECIDED, SUCCEEDS),
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
        (UNDECIDED, FAILS_FOR_GOOD),
        F,
        {"refused": [F]},
    ),
)


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
    """One row for all that ends alike."""
    alike: dict[tuple[str, str], list[str]] = {}
    for row in ROWS:
        fates = [run.fate.value for run in row.runs] or ["deleted, not run"]
        where = " (prefork)" if row.needs else ""
        alike.setdefault((", ".join(fates), row.state), []).append(f"{row.told}{where}")
    lines = ["| after each run | state | what happens |", "|---|---|---|"]
    lines += [f"| {fates} | {state} | {'; '.join(told)} |" for (fates, state), told in alike.items()]
    return "\n".join(lines) + "\n"


def document():
    """The page, its two tables written anew."""
    beginning, middle, end = re.split(r"(?:^\|.*\n)+", PAGE.read_text(), flags=re.MULTILINE)
    return beginning + decision_table() + middle + rows_table() + end


if __name__ == "__main__":
    page = document()
    PAGE.write_text(page)
    sys.stdout.write(page)

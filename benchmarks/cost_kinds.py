"""The kinds of work whose cost is counted."""

from __future__ import annotations

from dataclasses import dataclass, field

#: Python, and what Celery's settings leave open, as a worker has it by default.
VISIBILITY = "VisibilityTask"


@dataclass(frozen=True)
class Kind:
    """One kind of work. `floor` names the kind that is Celery's own share of it."""

    work: str = "consume"
    pool: str = "prefork"
    visibility: bool = True
    free: bool = False  # on the broker that costs nothing
    early: bool = False  # acknowledged when the run begins, as Celery's tasks are by default
    options: dict = field(default_factory=dict)
    queues: tuple[str, ...] = ("celery",)
    floor: str = ""


METRICS = {"metrics": ["prometheus"]}
CONTROL = {"remote_control": True}
ORDER = {"queue_order": "weighted", "queues": {"high": {"weight": 8}}}


def _floor(**given):
    return Kind(visibility=False, free=True, **given)


def _in_pool(pool):
    floor = f"floor, {pool}"
    return {
        floor: _floor(pool=pool),
        f"VisibilityTask, {pool}": Kind(pool=pool, floor=floor),
        f"stock task, {pool}": Kind(pool=pool, visibility=False, early=True, floor=floor),
    }


KINDS = {
    **_in_pool("prefork"),
    **_in_pool("threads"),
    "VisibilityTask, prefork, with metrics": Kind(options=METRICS, floor="floor, prefork"),
    "VisibilityTask, prefork, with remote control": Kind(options=CONTROL, floor="floor, prefork"),
    "VisibilityTask, prefork, with a queue order": Kind(
        options=ORDER, queues=("celery", "high"), floor="floor, prefork"
    ),
    "floor, publish": _floor(work="publish"),
    "publish alone": Kind("publish", floor="floor, publish"),
    "publish in a block": Kind("publish_batch", floor="floor, publish"),
    "extension": Kind("extend"),
    "floor, idle minute": _floor(work="idle"),
    "idle minute": Kind("idle", floor="floor, idle minute"),
    "request that receives ten": Kind("receive_ten"),
    "request that deletes ten": Kind("delete_ten"),
    "request that sends one": Kind("send_one"),
}

"""Test kit for projects that run on SQS: turned time, simulated deliveries, pytest fixtures.

It has two halves, which share the accounts of messages:

- In one thread, without a server: `turned_time` and `simulate`. SQS is the fake, tests turn the clock, and a
  `worker.Worker` handles messages with the package's own code: decoder, holder, heartbeat, settler, requests,
  retry decisions, keys of exclusive tasks. `world.World` puts these together.
- With a server: the fixtures of `plugin`. SQS is `celery sqs local`, a process; workers are embedded in the
test's
  process, or processes of their own, which write their events to a file (`diary`).

Floors: account under world under turned time and simulation; server under plug-in. The room is above all
others, and no other imports it. Names are imported on first use, because pytest imports the plug-in in every
project that has this package installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_sqs_visibility.aws.fake import FakeObjectStore, FakeSQS
    from celery_sqs_visibility.testing.account import Accounts, LetterFacts, MessageAccount
    from celery_sqs_visibility.testing.schedule import Fault
    from celery_sqs_visibility.testing.simulation import Simulation, SimulationFailedError, simulate
    from celery_sqs_visibility.testing.world import TurnedTime, turned_time

__all__ = [
    "Accounts",
    "FakeObjectStore",
    "FakeSQS",
    "Fault",
    "LetterFacts",
    "MessageAccount",
    "Simulation",
    "SimulationFailedError",
    "TurnedTime",
    "simulate",
    "turned_time",
]

_HOMES = {
    "Accounts": "testing.account",
    "FakeObjectStore": "aws.fake",
    "FakeSQS": "aws.fake",
    "Fault": "testing.schedule",
    "LetterFacts": "testing.account",
    "MessageAccount": "testing.account",
    "Simulation": "testing.simulation",
    "SimulationFailedError": "testing.simulation",
    "TurnedTime": "testing.world",
    "simulate": "testing.simulation",
    "turned_time": "testing.world",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"celery_sqs_visibility.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

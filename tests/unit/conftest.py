import importlib
import os
import sys
from pathlib import Path

import pytest
from support.clock import FakeClock

from celery_sqs_visibility.delivery.lease_table import LeaseTable
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.testing.clock import reading

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def benchmark_module(monkeypatch):
    """Imports a module of the benchmarks, and forgets it."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(BENCHMARKS) in str(getattr(sys.modules[name], "__file__", None)):
            del sys.modules[name]


@pytest.fixture
def system_clock():
    """The clock that the whole package reads: near the machine's, and still until the test advances it."""
    clock = FakeClock(float(round(SYSTEM_CLOCK.monotonic())), float(round(SYSTEM_CLOCK.wall())))
    with reading(clock):
        yield clock


@pytest.fixture
def leases():
    """The table that running tasks see."""
    leases = LeaseTable()
    yield leases
    for end in leases._pipe:
        os.close(end)

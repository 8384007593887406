import importlib
import os
import sys
from pathlib import Path

import pytest

from celery_sqs_visibility.delivery.lease_table import LeaseTable

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
def leases():
    """The table that running tasks see."""
    leases = LeaseTable()
    yield leases
    for end in leases._pipe:
        os.close(end)

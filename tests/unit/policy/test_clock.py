"""Deadlines count the time in which the machine sleeps, as SQS does."""

import shutil
import subprocess
import sys
import time

import pytest

from celery_sqs_visibility.policy import clock
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK

#: Of a machine that slept for so long: Linux lets a process believe that, if it may.
SLEPT = 3600
UNSHARE = [shutil.which("unshare") or "unshare", "--time", "--boottime", str(SLEPT)]

ASK = """
import time
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
print(SYSTEM_CLOCK.monotonic() - time.monotonic())
"""


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_what_the_machine_slept_counts():
    if sys.platform != "linux" or not shutil.which("unshare") or run(*UNSHARE, "true").returncode:
        pytest.skip("needs the right to make a time namespace")
    asked = run(*UNSHARE, sys.executable, "-c", ASK)
    assert float(asked.stdout) == pytest.approx(SLEPT, abs=60), asked.stderr


def test_it_never_goes_back():
    instants = [SYSTEM_CLOCK.monotonic() for _ in range(1000)]
    assert instants == sorted(instants)


def test_where_there_is_no_such_clock_or_the_kernel_does_not_have_it_it_is_pythons(monkeypatch):
    monkeypatch.setattr(time, "CLOCK_BOOTTIME", 99, raising=False)
    assert clock._monotonic() is time.monotonic
    monkeypatch.delattr(time, "CLOCK_BOOTTIME")
    assert clock._monotonic() is time.monotonic

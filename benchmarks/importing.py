"""What `import celery_sqs_visibility` adds to `import celery`."""

from __future__ import annotations

import os
import subprocess
import sys

from contenders import VISIBILITY
from paths import ROOT
from results import Result

NAME = "import"
TIMES = 15
PROGRAM = """
import time
import celery
begun = time.perf_counter()
import celery_sqs_visibility
print(1000 * (time.perf_counter() - begun))
"""


def measure(arguments, _servers):
    """In new processes, one after the other."""
    result = Result(NAME, f"{TIMES} processes", VISIBILITY.name)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if arguments.only in VISIBILITY.name:
        for _ in range(TIMES):
            told = subprocess.run(
                [sys.executable, "-c", PROGRAM], env=environment, check=True, capture_output=True, text=True
            )
            result.add(ms_beyond_celery=float(told.stdout))
        yield result

"""Tasks that collect messages and run many at once, beside those of `work`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from support.collecting import Collecting
from support.diary import note
from work import app

__all__ = ["app"]


@app.task(base=Collecting, flush_every=50)
def collect(requests):
    note("batch", keys=[request.args[0] for request in requests])


@app.task(base=Collecting, flush_every=4, acks_late=True)
def late(requests):
    """Runs until the file exists that its first message names."""
    note("started", keys=[request.args[0] for request in requests])
    while not Path(requests[0].args[1]).exists():
        time.sleep(0.05)
    note("done", keys=[request.args[0] for request in requests])


@app.task(base=Collecting, flush_every=2, acks_late=True)
def killed(requests):
    note("started", keys=[request.args[0] for request in requests])
    if not requests[0].delivery_info["redelivered"]:
        os.kill(os.getpid(), signal.SIGKILL)

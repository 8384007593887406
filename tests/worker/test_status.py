"""The status is shown again and again, in a real process, until somebody has seen enough."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from support.app import CONFIG_VARIABLE, encode_config
from support.processes import SOON
from support.worker import IMPORT_PATHS


def test_watching_ends_well_at_ctrl_c(make_site):
    site = make_site()
    site.create_queue()
    path = os.pathsep.join(map(str, IMPORT_PATHS))
    environment = {**os.environ, CONFIG_VARIABLE: encode_config(site.config), "PYTHONPATH": path}
    command = [sys.executable, "-m", "celery", "-A", "work", "sqs", "status", "--json", "--watch", "0.1"]
    watching = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        documents = 0
        text = ""
        while documents < 2:
            text += watching.stdout.readline() or pytest.fail("it has ended")
            if text.rstrip().endswith("\n}"):
                assert json.loads(text)["queues"][0]["queue"] == site.queue
                documents, text = documents + 1, ""
        watching.send_signal(signal.SIGINT)
        assert watching.wait(SOON) == 0
    finally:
        watching.kill()
        watching.stdout.close()
        watching.wait()

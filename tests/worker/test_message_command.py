"""`celery sqs message`: what it prints runs, however it is pasted."""

from __future__ import annotations

import json

import pytest
from support.commands import run_celery, run_json


@pytest.mark.parametrize("options", [[], ["--base64"]], ids=["plain", "base64"])
def test_a_worker_runs_what_was_pasted(make_site, options):
    site = make_site()
    url = site.create_queue()
    args = ["message", "work.quick", "--args", '["pasted"]', *options]
    printed = run_celery(site.config, "sqs", *args)
    site.sqs.send_message(QueueUrl=url, MessageBody=printed.stdout.strip())
    request = run_json(site.config, *args, "--countdown", "1")
    site.sqs.send_message(QueueUrl=url, **request)
    assert request["DelaySeconds"] == 1
    site.start()
    site.diary.wait_for("started", key="pasted", count=2)
    assert site.queue in printed.stderr
    assert json.dumps("pasted") not in printed.stderr

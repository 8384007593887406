"""What the result backends tell of a task decides nothing about another message with its id."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.app import CONFIG_VARIABLE, encode_config
from support.faults import error
from support.worker import IMPORT_PATHS

SERVER_ERROR = error("InternalError", 500)


def backends(tmp_path):
    return {
        "files": f"file://{tmp_path / 'results'}",
        "SQL": f"db+sqlite:///{tmp_path / 'results.db'}",
        "rpc": "rpc://",
    }


@pytest.mark.parametrize("backend", ["files", "SQL", "rpc"])
def test_an_id_that_failed_once_and_is_published_again_runs_on_another_worker(make_site, tmp_path, backend):
    site = make_site({"result_backend": backends(tmp_path)[backend]}, wait_time_seconds=1)
    send = {"name": "ends.excluded", "kwargs": {}, "task_id": f"{site.queue}-again"}
    worker = site.start("ends")
    site.app.send_task(**send)
    site.diary.wait_for("task_failure")
    site.proxy.wait_for_calls("DeleteMessageBatch", 1)
    worker.terminate()
    worker.wait_exit()
    site.app.send_task(**send)
    site.give_back()  # its next receive is a redelivery, about which the backend is asked
    site.start("ends")
    assert [entry["retries"] for entry in site.diary.wait_for("run", 2)] == [0, 1]


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_a_stock_task_whose_retry_cannot_be_published_comes_back(make_site, pool):
    site = make_site(error_visibility_timeout=1)
    elsewhere = f"{site.queue}-elsewhere"
    site.start("ends", pool=pool)
    outage = site.proxy.inject(SERVER_ERROR, "SendMessage", queue=elsewhere)
    result = site.app.send_task("ends.stock_retrying", (), {"queue": elsewhere})
    site.diary.wait_for("run", 2, id=result.id, timeout=60)
    assert site.kept == 1
    outage.remove()
    site.proxy.wait_for(lambda _: site.counts() == (0, 0), timeout=60)
    url = site.sqs.get_queue_url(QueueName=elsewhere)["QueueUrl"]
    assert sum(site.counts(url)) == 1


@pytest.mark.parametrize(
    ("task", "runs"), [("stock_retrying_with_what_cannot_be_sent", 2), ("stock_rejecting", 1)]
)
def test_a_stock_task_whose_retry_can_never_be_published_ends_and_so_does_one_that_rejects(
    make_site, task, runs
):
    site = make_site(error_visibility_timeout=1)
    site.start("ends")
    result = site.app.send_task(f"ends.{task}")
    site.diary.wait_for("run", runs, id=result.id)
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert site.diary.count("run", id=result.id) == runs


def test_a_client_of_rpc_that_exits_leaves_no_queue(make_site):
    site = make_site({"result_backend": "rpc://"})
    site.create_queue()
    site.start()
    script = "from work import quick; print(quick.delay('asked').get(timeout=60))"
    paths = os.pathsep.join(map(str, IMPORT_PATHS))
    env = {**os.environ, "PYTHONPATH": paths, CONFIG_VARIABLE: encode_config(site.config)}
    command = [sys.executable, "-c", script]
    client = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert client.stdout.strip() == "asked"
    created = {call.request["QueueName"] for call in site.proxy.calls("CreateQueue")} - {site.queue}
    deleted = {call.request["QueueUrl"].rpartition("/")[2] for call in site.proxy.calls("DeleteQueue")}
    assert len(created) == 1
    assert deleted == created

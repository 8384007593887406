"""The example project, as it stands, on a real worker."""

from __future__ import annotations

import json

import pytest
from proj.records import Records
from support.aws_events import s3_notification, s3_record
from support.processes import wait_until
from support.worker import TESTS

from celery_sqs_visibility import task_id_for

LINES = 400_000
NAME = "shop/day.csv"


@pytest.fixture
def orders(tmp_path):
    """A large object in the bucket: orders 1, 2, 3, ... of as many cents each."""
    path = tmp_path / "buckets" / NAME
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"{line},{line / 100:.2f}\n" for line in range(1, LINES + 1)))
    return path


@pytest.fixture
def records(tmp_path):
    return Records(str(tmp_path / "proj.sqlite3"))


@pytest.fixture
def start_proj(start_worker, queue, tmp_path):
    """Start the example's worker on the test's queue."""
    env = {
        "PROJ_QUEUE": queue,
        "PROJ_BUCKETS": str(tmp_path / "buckets"),
        "PROJ_DATABASE": str(tmp_path / "proj.sqlite3"),
        "PROJ_RESULT_BACKEND": f"file://{tmp_path / 'results'}",
    }
    return lambda: start_worker("proj", env=env, import_paths=[TESTS.parent / "examples"], concurrency=2)


@pytest.mark.prefork_only("an import leaves a green pool's loop no time for anything else")
def test_an_import_that_a_shutdown_interrupts_goes_on_from_its_place(make_site, start_proj, orders, records):
    site = make_site()
    site.create_queue()
    notification = json.dumps(s3_notification(s3_record(key="day.csv")))
    sent = site.sqs.send_message(QueueUrl=site.url, MessageBody=notification)
    result = site.app.AsyncResult(task_id_for(sent["MessageId"]))
    first = start_proj()
    wait_until(lambda: records.kept(NAME)[1], 30, "a place in the middle")
    # S3 notifies again: this notification waits beside the queue's other messages, and uses up no attempt.
    site.sqs.send_message(QueueUrl=site.url, MessageBody=notification)
    first.wait_for_log(f"{NAME}: skipped for 60 s, since another worker imports it")
    first.wait_for_log("ignored")
    first.terminate()
    assert first.wait_exit(10) == 0
    assert "orphaned" not in first.log
    assert "failed at attempt" not in first.log
    imported, place = records.kept(NAME)
    assert 0 < imported == place < LINES
    assert records.state(NAME) == "unprocessed"
    assert site.kept == 1  # hidden until this worker's last poll is over, if that has received it again
    # Whoever reads the lines before the place once more stores something else.
    lines = orders.read_text().splitlines()
    orders.write_text("\n".join(["0,0.00"] * place + lines[place:]) + "\n")
    start_proj()
    assert result.get(timeout=60) == f"{LINES} orders"
    stored = records.orders(NAME)
    assert len(stored) == LINES
    assert sum(cents for _, _, cents in stored) == LINES * (LINES + 1) // 2
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))

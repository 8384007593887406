"""`celery sqs audit` on the logs of real workers: retries, a deploy, a kill, and no broken rule."""

from __future__ import annotations

import json

import pytest
from support.commands import run_celery
from support.processes import SOON, wait_until
from support.redis_server import RedisServer


@pytest.fixture
def site(make_site, tmp_path):
    with RedisServer(tmp_path) as redis:
        yield make_site(
            coordination_store=redis.url, wait_time_seconds=1, visibility_timeout=10, heartbeat_interval=4
        )


def send(site, task, key):
    site.app.send_task(f"logged.{task}", [key], task_id=key)


def test_each_message_of_two_workers_one_of_which_dies_is_accounted_for(site):
    first = site.start("logged", name="first")
    for number in range(20):
        send(site, "works", f"works-{number}")
    send(site, "fails", "fails")  # twice, and then it waits for ten minutes
    send(site, "once", "key")
    wait_until(lambda: first.log.count('"task failed"') == 2, SOON, "both failures")
    wait_until(lambda: first.log.count('"message deleted"') == 21, SOON, "the others to be done")
    send(site, "kills_worker", "dies")
    first.wait_exit()
    second = site.start("logged", name="second")
    second.wait_exit()  # it takes this worker along, too

    found = run_celery(site.config, "sqs", "audit", first.log_path, second.log_path, "--json")
    assert found.returncode == 0, found.stdout
    account = json.loads(found.stdout)
    assert account["messages"] == {"done": 21, "back in SQS": 1, "held when the log ends": 1}
    assert account["more_runs"] == {"retry": 1, "worker gone": 1}
    assert account["runs"] == 25
    assert (account["findings"], account["unlogged_receives"]) == ([], 0)

    alone = run_celery(site.config, "sqs", "audit", second.log_path, "--summary")
    assert json.loads(alone.stdout)["unlogged_receives"] == 1

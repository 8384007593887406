"""`celery sqs audit` on the logs of real workers: retries, a deploy, a kill, and no broken rule."""

import json

import pytest
from support.app import CONSTANTS
from support.commands import run_celery
from support.processes import SOON, wait_until
from support.redis_server import RedisServer

from celery_sqs_visibility.operate.audit.account import Auditor


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


def broken_rules(site, *workers, constants=()):
    config = {**site.config, CONSTANTS: dict(constants)}
    found = run_celery(config, "sqs", "audit", *(worker.log_path for worker in workers), "--summary")
    assert found.returncode == 1, found.stdout
    return json.loads(found.stdout)["broken_rules"]


@pytest.mark.breaks_rules
def test_an_extension_after_the_end_is_found(site):
    worker = site.start("broken", env={"BROKEN": "settled messages stay held"})
    site.app.send_task("broken.slow_failure", ["key", 0], task_id="key")  # comes back in ten minutes

    def finds():
        auditor = Auditor()
        auditor.read(worker.log.splitlines())
        return [each.rule for each in auditor.account().findings]

    wait_until(lambda: "extended after its end" in finds(), SOON, "an extension")
    assert "extended after its end" in broken_rules(site, worker)


@pytest.mark.breaks_rules
def test_a_change_after_the_deadline_and_runs_that_overlap_are_found(site):
    broken = {"BROKEN": "nothing is extended, and deadlines do not count"}
    workers = [site.start("broken", name=name, concurrency=1, env=broken) for name in ("first", "second")]
    site.app.send_task("broken.slow_failure", ["key", 14], task_id="key")
    told = '"message hidden"'
    wait_until(lambda: sum(each.log.count(told) for each in workers) == 2, SOON, "both runs to end")
    rules = broken_rules(site, *workers)
    assert rules["changed after its deadline"] == 2
    assert rules["two runs overlap, and none was told that it had lost the message"] == 1


@pytest.mark.breaks_rules
def test_two_runs_of_one_receive_are_found(site):
    worker = site.start("broken", env={"BROKEN": "messages go to Celery twice"})
    site.app.send_task("broken.slow_failure", ["key", 5], task_id="key")
    worker.wait_for_log('"message hidden"')
    assert broken_rules(site, worker) == {"started twice under one receipt": 1}


@pytest.mark.breaks_rules
def test_a_message_of_which_nothing_became_is_found(site):
    worker = site.start("broken", env={"BROKEN": "settlements are forgotten"})
    site.app.send_task("broken.slow_failure", ["key", 0], task_id="key")
    wait_until(lambda: worker.log.count('"task failed"') == 3, SOON, "runs that nothing explains")
    waits = {f"{Auditor.__module__}.VANISHED_SECONDS": 5}
    assert "nothing became of it, though its worker went on" in broken_rules(site, worker, constants=waits)

"""While what a task needs is down, its messages wait: few calls, no dead letter, and other tasks go on."""

import re
import time
from functools import partial

import pytest
from support.processes import SOON, wait_until
from support.redis_server import RedisServer

from celery_sqs_visibility.stores.port import Acquired

#: Calls of the dependency while it is down for 20 s: those before the brake is on, and the tries. Without a
#: brake, 300 tasks with three retries make 1,200.
FEW_CALLS = 50
OUTAGE_SECONDS = 20

#: More than five runs, which apply the brake, and the slots.
APPLIED = 9


class Dependency:
    """What the tasks of `braking` call."""

    def __init__(self, path, diary):
        self._path, self._diary = path, diary

    def fail(self, share=1.0):
        self._path.write_text(str(share))

    def recover(self):
        self._path.unlink()

    def failed_calls(self):
        return self._diary.count("called", fails=True)


@pytest.fixture
def dependency(tmp_path, monkeypatch, diary):
    path = tmp_path / "failing"
    monkeypatch.setenv("TEST_DEPENDENCY_FAILS", str(path))
    return Dependency(path, diary)


def send(site, count, task="pay"):
    for key in range(count):
        site.app.send_task(f"braking.{task}", [f"{task} {key}"])


def has_said(worker, sentence):
    worker.wait_for_log(sentence)


@pytest.mark.own_pool
@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_an_outage_costs_few_calls_and_no_dead_letter(make_site, dependency, pool):
    site = make_site()
    dead = site.create_queue_with_dead_letters(5)
    dependency.fail()
    send(site, 300)
    worker = site.start("braking", pool=pool, concurrency=4)
    site.diary.wait_for("called")
    time.sleep(OUTAGE_SECONDS)
    assert "brake 'bank' is applied" in worker.log
    dependency.recover()
    assert dependency.failed_calls() <= FEW_CALLS
    site.diary.wait_for("done", 300)
    assert len({entry["key"] for entry in site.diary.entries("done")}) == 300
    assert site.counts(dead) == (0, 0)
    has_said(worker, "brake 'bank' is released")


def test_an_outage_costs_few_messages_no_attempts_however_many_tries_there_are(make_site, dependency):
    site = make_site()
    dead = site.create_queue_with_dead_letters(5)
    dependency.fail()
    send(site, 2)
    send(site, 2, "refund")
    worker = site.start("braking", concurrency=2)
    site.diary.wait_for("called", 14, fails=True)
    assert "brake 'bank' is applied" in worker.log
    dependency.recover()
    done = site.diary.wait_for("done", 4)
    assert max(entry["retries"] for entry in done) <= 3
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert site.counts(dead) == (0, 0)


@pytest.mark.own_pool
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_other_tasks_of_the_queue_go_on(make_site, dependency, pool):
    site = make_site(wait_time_seconds=1)
    dependency.fail()
    send(site, 60)
    worker = site.start("braking", pool=pool, concurrency=2)
    has_said(worker, "brake 'bank' is applied")
    send(site, 20, "other")
    done = site.diary.wait_for("done", 20)
    assert all(entry["key"].startswith("other") for entry in done)
    dependency.recover()
    site.diary.wait_for("done", 80)


def is_released_by_another(site, worker):
    """Whether the worker has released its brake; if not, a message is sent, which it may need for that."""
    if "brake 'bank' is released" in worker.log:
        return True
    send(site, 1)
    return False


def test_a_fleet_brakes_as_one(make_site, dependency, tmp_path):
    with RedisServer(tmp_path) as redis:
        site = make_site(coordination_store=redis.url)
        dependency.fail()
        send(site, 150)
        workers = [site.start("braking", concurrency=2) for _ in range(2)]
        for each in workers:
            has_said(each, "brake 'bank' is applied")
        site.diary.wait_for("called", dependency.failed_calls() + 3, fails=True)
        dependency.recover()
        site.diary.wait_for("done", 150)
        for each in workers:
            wait_until(partial(is_released_by_another, site, each), SOON, lambda log=each: log.log)
            each.stop()
    tries = [re.findall(r"easing, after .* s; tries: (\d+)", each.log) for each in workers]
    assert ["0"] in tries, tries


def test_a_worker_that_ends_leaves_the_try_to_another_one(make_site, dependency, tmp_path):
    with RedisServer(tmp_path) as redis:
        site = make_site(coordination_store=redis.url, wait_time_seconds=1)
        dependency.fail()
        send(site, 40)
        worker = site.start("braking", concurrency=2)
        has_said(worker, "brake 'bank' is applied")
        site.diary.wait_for("called", APPLIED, fails=True)
        worker.terminate()
        assert worker.wait_exit() == 0
        with site.app.connection_for_read() as connection:
            store = connection.transport.context.coordination_store
            assert isinstance(store.acquire("brake:bank", "test", 1), Acquired)


def test_a_dependency_that_answers_one_call_of_twenty_is_hardly_called(make_site, dependency):
    site = make_site()
    dead = site.create_queue_with_dead_letters(5)
    dependency.fail(0.95)
    send(site, 100)
    worker = site.start("braking", concurrency=4)
    has_said(worker, "brake 'bank' is applied")
    time.sleep(OUTAGE_SECONDS)
    assert dependency.failed_calls() <= FEW_CALLS + 20  # after a success some more
    dependency.recover()
    site.diary.wait_for("done", 100)
    assert site.counts(dead) == (0, 0)


def test_a_dependency_that_comes_and_goes(make_site, dependency):
    site = make_site()
    dead = site.create_queue_with_dead_letters(5)
    worker = site.start("braking", concurrency=4)
    for round_number in range(1, 4):
        dependency.fail()
        for key in range(40):
            site.app.send_task("braking.pay", [f"{round_number} {key}"])
        wait_until(
            lambda expected=round_number: worker.log.count("brake 'bank' is applied") == expected,
            60,
            lambda: worker.log,
        )
        dependency.recover()
        site.diary.wait_for("done", 40 * round_number)
        wait_until(
            lambda expected=round_number: worker.log.count("brake 'bank' is released") == expected,
            60,
            lambda: worker.log,
        )
    assert site.counts(dead) == (0, 0)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_worker_that_ends_under_a_brake_gives_all_back(make_site, dependency, pool):
    site = make_site(visibility_timeout=600, wait_time_seconds=1)
    dependency.fail()
    send(site, 40)
    worker = site.start("braking", pool=pool, concurrency=2)
    has_said(worker, "brake 'bank' is applied")
    site.diary.wait_for("called", APPLIED, fails=True)
    worker.terminate()
    assert worker.wait_exit() == 0
    dependency.recover()
    site.proxy.wait_for(lambda _: site.counts() == (40, 0))
    site.start("braking", pool=pool, concurrency=2)
    done = site.diary.wait_for("done", 40)
    assert len({entry["key"] for entry in done}) == 40


@pytest.mark.prefork_only
def test_a_lost_connection_loses_no_message_that_waits(make_site, dependency):
    site = make_site(wait_time_seconds=1, visibility_timeout=20)
    dependency.fail()
    send(site, 30)
    worker = site.start("braking", concurrency=2)
    has_said(worker, "brake 'bank' is applied")
    site.app.send_task("braking.other", ["trouble"])
    has_said(worker, "made up by the test")
    site.diary.wait_for("called", dependency.failed_calls() + 2, fails=True)
    dependency.recover()
    done = site.diary.wait_for("done", 31)
    assert len({entry["key"] for entry in done}) == 31
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))

"""The Django example, as it stands: publishing on commit, results and schedule in the database."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
from support.processes import GuardedProcess, wait_until
from support.worker import TESTS

EXAMPLE = TESTS.parent / "examples" / "django"

SCHEDULE = """
from django_celery_beat.models import IntervalSchedule, PeriodicTask

second, _ = IntervalSchedule.objects.get_or_create(every=1, period="seconds")
PeriodicTask.objects.create(name="open", task="shop.orders.tasks.count_open_orders", interval=second)
"""


WRONG = """
from shop.settings import *

CELERY_BROKER_TRANSPORT_OPTIONS = {"visibility_timeut": 30}
"""


class Shop:
    """The project, with a database and a queue of its own."""

    def __init__(self, queue, endpoint, tmp_path):
        self.database = tmp_path / "shop.sqlite3"
        inherited = filter(None, [os.environ.get("PYTHONPATH")])
        self.env = {
            "DJANGO_SETTINGS_MODULE": "shop.settings",
            "PYTHONPATH": os.pathsep.join(map(str, (EXAMPLE, TESTS.parent, *inherited))),
            "AWS_ENDPOINT_URL_SQS": endpoint,
            "AWS_DEFAULT_REGION": "us-east-1",
            "SHOP_DATABASE": str(self.database),
            "SHOP_QUEUE": queue,
        }

    def manage(self, *arguments, **options):
        """Run manage.py: the finished process."""
        command = [sys.executable, str(EXAMPLE / "manage.py"), *arguments]
        env = {**os.environ, **self.env}
        return subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=60, check=False, **options
        )

    def select(self, sql):
        with closing(sqlite3.connect(self.database, timeout=20)) as database:
            return [value for (value,) in database.execute(sql)]

    def results(self, task):
        """The stored results of the task."""
        name = f"shop.orders.tasks.{task}"
        return self.select(
            f"SELECT result FROM django_celery_results_taskresult WHERE task_name = '{name}'"
            " AND status = 'SUCCESS' ORDER BY id"
        )


@pytest.fixture
def shop(queue, proxy, tmp_path):
    shop = Shop(queue, proxy.url, tmp_path)
    migrated = shop.manage("migrate", "-v", "0")
    assert migrated.returncode == 0, migrated.stderr
    return shop


def test_orders_are_invoiced_when_their_transaction_commits(shop, proxy, start_worker):
    placed = shop.manage("place_orders", *(f"customer {number}" for number in range(20)))
    assert placed.stdout == "20 orders placed\n", placed.stderr
    assert [len(call.request["Entries"]) for call in proxy.calls("SendMessageBatch")] == [10, 10]
    again = shop.manage("place_orders", "new", "customer 3")
    assert again.returncode == 1
    assert shop.select("SELECT count(*) FROM orders_order") == [20]
    assert len(proxy.calls("SendMessageBatch")) == 2, "nothing is sent by a transaction that rolls back"
    assert not proxy.calls("SendMessage")
    start_worker("shop", env=shop.env)
    wait_until(lambda: shop.select("SELECT sum(invoiced) FROM orders_order") == [20], 30, "the invoices")
    wait_until(lambda: len(shop.results("invoice")) == 20, 30, "the results")


@pytest.mark.parametrize("scheduler", [[], ["-S", "shop.beat:Scheduler"]], ids=["one beat", "one of several"])
def test_the_schedule_in_the_database_fires(shop, start_worker, tmp_path, scheduler):
    scheduled = shop.manage("shell", "-c", SCHEDULE)
    assert scheduled.returncode == 0, scheduled.stderr
    start_worker("shop", env=shop.env)
    command = [sys.executable, "-m", "celery", "-A", "shop", "beat", "--pidfile=", "-l", "INFO"]
    beat = GuardedProcess([*command, *scheduler], tmp_path / "beat.log", {**os.environ, **shop.env})
    beat.start()
    try:
        wait_until(lambda: shop.results("count_open_orders"), 30, lambda: beat.log)
    finally:
        beat.stop()


def test_manage_py_check_finds_a_wrong_option(queue, emulator, tmp_path):
    shop = Shop(queue, emulator.url, tmp_path)
    assert shop.manage("check").returncode == 0
    (tmp_path / "wrong_settings.py").write_text(WRONG)
    shop.env["PYTHONPATH"] += f"{os.pathsep}{tmp_path}"
    shop.env["DJANGO_SETTINGS_MODULE"] = "wrong_settings"
    checked = shop.manage("check")
    assert checked.returncode == 1
    assert (
        "(celery_sqs_visibility.E001) unknown transport option 'visibility_timeut': did you" in checked.stderr
    )

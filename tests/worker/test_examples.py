"""The example projects, as they stand: proj by hand and as docs/quickstart.md says, and Django's shop."""

import json
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from proj.records import Records
from support.aws_events import s3_notification, s3_record
from support.commands import SECONDS
from support.processes import SOON, GuardedProcess, wait_until
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
    wait_until(lambda: records.kept(NAME)[1], SOON, "a place in the middle")
    # S3 notifies again: this notification waits beside the queue's other messages, and uses up no attempt.
    site.sqs.send_message(QueueUrl=site.url, MessageBody=notification)
    first.wait_for_log(f"{NAME}: skipped for 60 s, since another worker imports it")
    first.wait_for_log("ignored")
    first.terminate()
    assert first.wait_exit() == 0
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
    assert result.get(timeout=SOON) == f"{LINES} orders"
    stored = records.orders(NAME)
    assert len(stored) == LINES
    assert sum(cents for _, _, cents in stored) == LINES * (LINES + 1) // 2
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))


ROOT = TESTS.parent
PAGE = (ROOT / "docs/quickstart.md").read_text().partition("## The example project\n")[2]
FIRST, SECOND, THIRD, QUERY = (
    re.findall(r"^\$ (.*)$", block, re.MULTILINE)
    for block in re.findall(r"^```console\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
)


@pytest.fixture
def environment():
    """A shell's whose programs are those of the tests, and which finds the example as from its directory."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_ENDPOINT_URL")}
    return {
        **inherited,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "examples"),
        "PYTHONUNBUFFERED": "1",
    }


def typed(commands, environment, directory):
    """Run the commands of a terminal; what they printed."""
    text = "\n".join(command for command in commands if command != "cd examples")
    shell = ["sh", "-eu", "-c", text]
    done = subprocess.run(
        shell, env=environment, cwd=directory, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.prefork_only("the page's command names no pool")
def test_the_commands_of_the_page_import_an_object_and_skip_it_the_second_time(environment, tmp_path):
    assert FIRST[-1] == "celery sqs local"
    with GuardedProcess([*FIRST[-1].split(), "--port", "0"], tmp_path / "local.log", environment) as local:
        local.wait_for_log("export ", 60)
        line = re.search(r"^export (.*)$", local.log, re.MULTILINE)[1]
        environment |= dict(pair.split("=", 1) for pair in line.split())
        typed(SECOND[:-1], environment, tmp_path)
        worker = GuardedProcess(SECOND[-1].split(), tmp_path / "worker.log", environment, tmp_path)
        with worker:
            worker.wait_for_log("ready.", 60)
            typed(THIRD, environment, tmp_path)
            for shown in re.search(r"^```text\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[1].splitlines():
                worker.wait_for_log(shown.partition("[...]")[2], 60)
            assert typed(QUERY, environment, tmp_path) == "[]\n"


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
            command, env=env, capture_output=True, text=True, timeout=SECONDS, check=False, **options
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
    wait_until(lambda: shop.select("SELECT sum(invoiced) FROM orders_order") == [20], SOON, "the invoices")
    wait_until(lambda: len(shop.results("invoice")) == 20, SOON, "the results")


@pytest.mark.parametrize("scheduler", [[], ["-S", "shop.beat:Scheduler"]], ids=["one beat", "one of several"])
def test_the_schedule_in_the_database_fires(shop, start_worker, tmp_path, scheduler):
    scheduled = shop.manage("shell", "-c", SCHEDULE)
    assert scheduled.returncode == 0, scheduled.stderr
    start_worker("shop", env=shop.env)
    command = [sys.executable, "-m", "celery", "-A", "shop", "beat", "--pidfile=", "-l", "INFO"]
    beat = GuardedProcess([*command, *scheduler], tmp_path / "beat.log", {**os.environ, **shop.env})
    beat.start()
    try:
        wait_until(lambda: shop.results("count_open_orders"), SOON, lambda: beat.log)
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

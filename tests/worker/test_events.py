"""Celery's monitors and Flower see what workers do; where nobody listens, events cost nothing."""

import re
import shutil
import signal
import socket
import subprocess
import time
from urllib.request import urlopen

import pytest
from support.browser import Browser
from support.commands import run_celery
from support.monitors import PYTHON, ROOT, Exporter, Flower, Monitor, Screen
from support.processes import SOON, wait_until

EVENTS = "-celeryev-"  # in the names of monitors' queues
NODE = f"worker1@{socket.gethostname()}"


@pytest.fixture
def site(make_control_site):
    return make_control_site(wait_time_seconds=2)


@pytest.fixture
def monitor(site, proxy, tmp_path, monkeypatch):
    """Start `celery -A work *args`, behind the proxy."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", proxy.url)
    started = []

    def start(*args, kind=Monitor):
        started.append(kind(tmp_path / f"monitor{len(started)}.log", site.config, "-A", "work", *args))
        return started[-1].start()

    yield start
    for each in started:
        each.stop()


def sends(site):
    """How many requests have carried events."""
    return len([call for call in site.proxy.calls("SendMessageBatch") if EVENTS in call.queue])


@pytest.mark.own_pool
def test_a_monitor_sees_tasks_and_workers_of_every_pool_come_and_go(site, monitor):
    dump = monitor("events", "--dump")
    queues = {pool: f"{site.queue}-{pool}" for pool in ("prefork", "threads", "gevent")}
    options = {"concurrency": 1, "extra_args": ["-E"], "ready": False}
    workers = [site.start(name=pool, pool=pool, queues=[queues[pool]], **options) for pool in queues]

    def shows(event):
        def seen(pool):
            return re.search(rf"^{pool}@.*{event}", dump.log, re.MULTILINE)

        wait_until(lambda: all(map(seen, queues)), SOON, lambda: f"{event} of every worker: {dump.log}")

    shows("heartbeat:")
    for queue in queues.values():
        site.app.send_task("work.quick", ["a"], queue=queue)
    for event in ("task received: work.quick", "task started: work.quick", "task succeeded: work.quick"):
        shows(event)
    for worker in workers:
        worker.terminate()
    assert [worker.wait_exit() for worker in workers] == [0, 0, 0]
    shows("shutdown:")


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_monitor_sees_what_ended_during_a_shutdown_though_another_run_is_orphaned(pool, monitor, site):
    dump = monitor("events", "--dump")
    site.config["broker_transport_options"] |= {"shutdown_timeout": 8, "visibility_timeout": 60}
    worker = site.start(pool=pool, concurrency=2, extra_args=["-E"])
    dump.wait_for_log("heartbeat:")
    for name, seconds in (("stock_slow", 4), ("slow", 60)):
        site.send(name, name, seconds)
    site.diary.wait_for("started", 2)
    worker.terminate()
    assert worker.wait_exit() == 0
    dump.wait_for_log("task succeeded: work.stock_slow")
    dump.wait_for_log("shutdown:")


def test_workers_hear_at_once_of_a_monitor_and_forget_it_when_it_ends(site, monitor):
    worker = site.start(extra_args=["--heartbeat-interval=1"])
    time.sleep(1.5)  # a heartbeat and more
    assert sends(site) == 0
    dump = monitor("events", "--dump")
    dump.wait_for_log("heartbeat:")
    site.send("quick", "unseen")  # without -E
    site.diary.wait_for("started", key="unseen")
    told = run_celery(site.config, "control", "-t", str(SOON), "-d", NODE, "enable_events")
    assert told.returncode == 0, told.stderr
    site.send("quick", "seen")
    dump.wait_for_log("task succeeded: work.quick")
    assert dump.log.count("task received") == 1
    dump.signal_main(signal.SIGINT)
    assert dump.wait_exit() == 0
    worker.wait_for_log("a monitor listens no more")
    before = sends(site)
    time.sleep(1.5)
    assert sends(site) == before


def test_snapshots_the_terminal_and_the_exporter_show_a_task(site, monitor, proxy, tmp_path):
    options = (
        f"remote_control=true&control_prefix={site.config['broker_transport_options']['control_prefix']}"
    )
    url = f"celery-sqs-visibility://{proxy.url.removeprefix('http://')}//?{options}&region=us-east-1"
    camera = monitor("events", "--camera", "snapshots.Camera", "--freq", "1")
    terminal = monitor("events", kind=Screen)
    with Exporter(tmp_path / "exporter.log", url) as exporter:
        site.start(extra_args=["-E"])
        wait_until(lambda: "celery_worker_up{" in exporter.metrics(), SOON, lambda: exporter.log)
        terminal.wait_for_log("worker1@")
        camera.wait_for_log("of worker1@")  # else its queue may be younger than the task
        site.send("quick", "a")
        camera.wait_for_log("snapshot: ['work.quick SUCCESS'] of worker1@")
        terminal.wait_for_log("work.quick")
        succeeded = "celery_task_succeeded_total{hostname="
        wait_until(lambda: succeeded in exporter.metrics(), SOON, lambda: exporter.log)


@pytest.fixture
def flower(site, proxy, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", proxy.url)
    with Flower(tmp_path / "flower.log", site.config, "-A", "work") as flower:
        yield flower


def test_flower_lists_the_worker_follows_a_task_and_shuts_the_worker_down(
    site, flower, pytestconfig, tmp_path
):
    worker = site.start(name="importer", ready=False)
    with Browser() as browser:
        worker.wait_ready()

        def shows(page, *texts):
            def seen():
                text = browser.text(f"{flower.url}/{page}")
                return all(each in text for each in texts)

            wait_until(seen, SOON, lambda: f"{texts} on the page: {browser.shown}\n{flower.log}")

        shows("workers", "importer@", "Online")
        shows("broker", "is not supported")
        name = re.search(r"importer@\S+", worker.log)[0]
        worker.wait_for_log("Events of group {task} enabled by remote.")  # Flower asks each five seconds
        site.send("quick", "a")
        site.send("held", "a", str(end := tmp_path / "end"))
        shows("tasks", "work.held", "STARTED")
        shows("tasks", "work.quick", "SUCCESS")
        if path := pytestconfig.getoption("screenshot"):
            browser.driver.save_screenshot(path)
        shows(f"worker/{name}", "Pool", name)
        browser.click("worker-group")
        browser.click("worker-shutdown")
        wait_until(lambda: "Shutting down!" in browser.shown, SOON, lambda: browser.shown)
        end.touch()
        assert worker.wait_exit() == 0
        shows("tasks", "work.held", "SUCCESS")
        shows("workers", "Offline")


@pytest.fixture
def patched_flower(tmp_path, monkeypatch):
    """Let Flower be imported with the patch of docs/flower.md."""
    find = [PYTHON, "-c", "import flower; print(*flower.__path__)"]
    installed = subprocess.run(find, capture_output=True, text=True, check=True).stdout.strip()
    shutil.copytree(installed, tmp_path / "patched/flower")
    module = tmp_path / "patched/flower/utils/broker.py"
    diff = (ROOT / "docs/flower.md").read_text().partition("```diff\n")[2].partition("```")[0]
    text = module.read_text()
    for hunk in re.split("^@@ .*\n", diff, flags=re.MULTILINE)[1:]:
        before, after = (
            "".join(line[1:] for line in hunk.splitlines(keepends=True) if line[0] in signs)
            for signs in (" -", " +")
        )
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    module.write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "patched"))


def test_flower_with_the_patch_shows_how_many_messages_its_queues_have(patched_flower, site, flower):
    site.create_queue()
    for _ in range(3):
        site.sqs.send_message(QueueUrl=site.url, MessageBody="m")
    site.sqs.send_message(QueueUrl=site.url, MessageBody="m", DelaySeconds=60)
    site.sqs.receive_message(QueueUrl=site.url)
    with urlopen(f"{flower.url}/broker") as answer:
        cells = re.findall(r"<td[^>]*>(.*?)</td>", answer.read().decode())
    assert cells[:4] == [site.queue, "4", "1", "2"], f"name, messages, unacked, ready: {flower.log}"

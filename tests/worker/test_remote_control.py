"""`celery inspect`, `celery control` and `app.control` over SQS alone, on real workers."""

from __future__ import annotations

import dataclasses
import json
import re
import signal
import socket
import subprocess
import sys
import time
import uuid

import pytest
from celery.worker.control import Panel
from support.commands import run_celery
from support.faults import error, latency
from support.processes import SOON, wait_until
from support.worker import READY_SECONDS

from celery_sqs_visibility.errors import RemoteControlError
from celery_sqs_visibility.transport.control_exchanges import ControlExchanges
from celery_sqs_visibility.worker import control_commands


@dataclasses.dataclass
class ControlRoom:
    """A site whose workers take commands."""

    site: object

    @property
    def control(self):
        return self.site.app.control

    @property
    def prefix(self):
        return self.site.config["broker_transport_options"]["control_prefix"]

    def start(self, *names, **options):
        """Workers of these names, that answer."""
        workers = [self.site.start(name=name, ready=False, **options) for name in names]
        for worker in workers:
            worker.wait_ready()
        count = len(names)
        wait_until(lambda: len(self.control.ping(limit=count)) == count, SOON, "the workers to answer")
        return workers

    def only(self, replies):
        """The answer of the only worker."""
        (reply,) = replies if isinstance(replies, list) else [replies]
        (answer,) = reply.values()
        return answer

    def ask(self, command, *args):
        """What the only worker says to `inspect`."""
        return self.only(getattr(self.control.inspect(limit=1, timeout=SOON), command)(*args))

    def tell(self, command, *args, **kwargs):
        """What the only worker says to a command."""
        return self.only(getattr(self.control, command)(*args, reply=True, limit=1, timeout=SOON, **kwargs))

    def ids(self, command):
        return [each["id"] for each in self.ask(command)]

    def queues(self):
        """The URLs of the control queues."""
        return self.site.sqs.list_queues(QueueNamePrefix=self.prefix).get("QueueUrls", [])

    def send_slow(self, key, seconds=30):
        task_id = str(uuid.uuid4())
        self.site.send("stock_slow", key, seconds, task_id=task_id)
        return task_id


@pytest.fixture
def room(make_control_site):
    secret = {"monitoring": {"url": "https://u:PASSWORD@host"}}
    return ControlRoom(make_control_site(secret, shutdown_timeout=2))


def test_a_worker_that_reads_and_writes_as_two_users_is_one_node(room, proxy):
    room.site.config["broker_read_url"] = f"sqs://reader:secret@{proxy.url.removeprefix('http://')}"
    room.site.config["broker_transport_options"]["is_secure"] = False
    (worker,) = room.start("split", extra_args=["-E"], concurrency=1)
    seen = []
    with room.site.app.connection_for_read() as connection:
        receiver = room.site.app.events.Receiver(connection, {"worker-heartbeat": seen.append})
        receiver.capture(limit=1, timeout=SOON)
    assert seen[0]["hostname"] == worker_name(worker)


def test_a_saturated_worker_answers(room):
    room.start("busy", concurrency=1, prefetch_multiplier=2)
    running, waiting = room.send_slow("a"), room.send_slow("b")
    room.site.diary.wait_for("started", key="a")
    room.site.app.send_task("work.quick", ["c"], countdown=600, task_id="later")
    wait_until(lambda: room.ids("active") == [running], SOON, "the main process to hear that it has begun")
    assert waiting not in room.ids("active")
    assert room.ask("scheduled") == []  # it waits at SQS
    assert isinstance(room.ids("reserved"), list)
    assert room.ask("revoked") == []
    assert room.ask("ping") == {"ok": "pong"}
    assert "work.quick" in room.ask("registered")
    assert room.ask("stats")["pool"]["max-concurrency"] == 1
    settings = room.ask("conf")
    assert settings["task_default_queue"] == room.site.queue
    assert settings["monitoring"] == {"url": "https://u:********@host"}
    assert [queue["name"] for queue in room.ask("active_queues")] == [room.site.queue]


def test_a_worker_does_as_it_is_told(room):
    (worker,) = room.start("told", concurrency=1)
    assert "set successfully" in room.tell("rate_limit", "work.quick", "1/m")["ok"]
    assert "set successfully" in room.tell("time_limit", "work.slow", soft=5, hard=10)["ok"]
    assert room.tell("pool_grow", 1) == {"ok": "pool will grow"}
    assert room.tell("enable_events") == {"ok": "task events enabled"}
    assert "add consumer" in room.tell("add_consumer", f"{room.site.queue}-more")["ok"]
    assert len(room.ask("active_queues")) == 2
    assert "no longer consuming" in room.tell("cancel_consumer", f"{room.site.queue}-more")["ok"]
    wait_until(lambda: len(room.ask("stats")["pool"]["processes"]) == 2, SOON, "the pool to grow")
    running = room.send_slow("a")
    room.site.diary.wait_for("started", key="a")
    room.control.revoke(running, terminate=True)
    wait_until(lambda: room.ids("active") == [], SOON, "the task to be ended")
    room.control.revoke("waiting")
    wait_until(lambda: "waiting" in room.ask("revoked"), SOON, "the revoke to arrive")
    room.site.send("quick", "b", task_id="waiting")
    worker.wait_for_log("Discarding revoked task")
    room.control.shutdown()
    assert worker.wait_exit() == 0
    left = re.search(r"shutdown: no more polls; running tasks have ([\d.]+) s", worker.log)
    assert float(left[1]) <= 2, "counted from the request"
    assert not [url for url in room.queues() if "reply" not in url]


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_a_queue_that_cannot_be_added_ends_no_worker(room, pool):
    (worker,) = room.start("added", pool=pool, concurrency=1)
    more = f"{room.site.queue}-more"
    with room.site.proxy.inject(error("AccessDenied", 403), "GetQueueUrl"):
        assert "add consumer" in room.tell("add_consumer", more)["ok"], "Celery's answer, before it tries"
        worker.wait_for_log(f"queue '{more}', which add_consumer names, is not consumed")
    room.tell("add_consumer", "no name of a queue!")
    worker.wait_for_log("queue 'no name of a queue!', which add_consumer names, is not consumed")
    room.tell("add_consumer", "by-topic", exchange="of-topics", exchange_type="topic")
    worker.wait_for_log("queue 'by-topic', which add_consumer names, is not consumed")
    for queue in (more, "by-topic"):
        room.tell("add_consumer", queue)
    wait_until(lambda: len(room.ask("active_queues")) == 3, SOON, "the queues, once nothing is wrong")
    room.site.begin("after")
    assert "Traceback" not in worker.log


@pytest.mark.parametrize("pool", ["threads", "solo", "gevent", "eventlet"])
def test_in_every_pool(room, pool):
    (worker,) = room.start("node", pool=pool, concurrency=1)
    room.control.revoke("waiting")
    wait_until(lambda: "waiting" in room.ask("revoked"), SOON, "the revoke to arrive")
    room.site.send("quick", "a", task_id="waiting")
    worker.wait_for_log("Discarding revoked task")
    room.control.shutdown()
    assert worker.wait_exit() == 0
    assert not [url for url in room.queues() if "reply" not in url]


def test_the_command_line_answers_in_time_and_leaves_nothing_behind(room):
    room.start("node", concurrency=1)

    def answered():
        began = time.monotonic()
        run_celery(room.site.config, "--version")  # takes a fifth of a second; longer on a busy machine
        done = run_celery(room.site.config, "status", "-t", str(max(1, 5 * (time.monotonic() - began))))
        return done.returncode == 0 and "1 node online" in done.stdout

    with room.site.proxy.inject(latency(0.05)):
        wait_until(answered, 2 * SOON, "an answer within a second")
    mine = [call.queue for call in room.site.proxy.calls("CreateQueue") if "reply" in call.queue][-1]
    assert room.site.proxy.calls("DeleteQueue", mine)


def test_off_a_sentence_says_what_to_set(make_site, caplog, monkeypatch):
    monkeypatch.setattr(ControlExchanges, "_has_warned", False)  # by a test before this one
    site = make_site()
    done = run_celery(site.config, "inspect", "ping")
    assert done.returncode == 69
    assert done.stderr.count("\n") <= 2
    assert "set broker_transport_options = {'remote_control': True}" in done.stderr
    with pytest.raises(RemoteControlError):
        site.app.control.ping()
    for _ in range(2):
        site.app.control.revoke("a")
    assert caplog.text.count("remote control is off here") == 1
    assert not site.proxy.calls()


def test_a_missing_right_is_named_and_tasks_run_all_the_same(room):
    room.site.create_queue()
    room.site.proxy.inject(error("AccessDenied", 403), "CreateQueue")
    worker = room.site.start(name="without", concurrency=1)
    room.site.begin("a")
    worker.wait_for_log("cannot use its control queue")
    for right in ("CreateQueue", "ListQueues"):
        with room.site.proxy.inject(error("AccessDenied", 403), right):
            done = run_celery(room.site.config, "inspect", "ping")
        assert (done.returncode, f"sqs:{right}" in done.stderr) == (77, True), done.stderr
    assert worker.log.count("cannot use its control queue") == 1


def test_a_plain_inspect_without_an_app_knows_our_commands(room):
    room.start("a")
    broker = f"celery-sqs-visibility://?remote_control=true&region=us-east-1&control_prefix={room.prefix}"
    module = control_commands.__name__
    ours = [name for name, each in Panel.data.items() if each.__module__ == module]
    node = f"a@{socket.gethostname()}"
    commands = [name for name in ours if Panel.meta[name].type == "inspect"]
    assert "sqs_queues" in commands
    for command in commands:
        arguments = [f"--broker={broker}", "inspect", command, "--json", "-d", node, f"--timeout={SOON}"]
        done = subprocess.run(
            [sys.executable, "-m", "celery", *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "error" not in json.loads(done.stdout)[node]


INT, QUIT, HUP = signal.SIGINT, signal.SIGQUIT, signal.SIGHUP


@pytest.mark.parametrize(("pool", "ends"), [("prefork", [INT, INT]), ("threads", [QUIT])])
def test_however_a_worker_ends_its_queues_go(room, pool, ends):
    (worker,) = room.start("ended", pool=pool, concurrency=1)
    for number in ends:
        worker.signal_main(number)
    worker.wait_exit()
    assert not [url for url in room.queues() if "reply" not in url]


@pytest.mark.own_pool
@pytest.mark.parametrize("tasks_of_a_child", [None, 1])
def test_a_child_that_asks_workers_leaves_no_queue_behind(room, tasks_of_a_child):
    site = room.site
    site.config["worker_max_tasks_per_child"] = tasks_of_a_child
    worker = site.start(name="asked", concurrency=1)
    worker.wait_for_log("takes messages of remote control")
    (own,) = room.queues()
    site.send("asking", "a", SOON)
    (answered,) = site.diary.wait_for("answered", key="a", timeout=2 * SOON)
    assert answered["answers"] == {worker_name(worker): {"ok": "pong"}}
    assert any("reply" in call.queue for call in site.proxy.calls("CreateQueue"))
    if tasks_of_a_child:
        wait_until(lambda: room.queues() == [own], SOON, "the child's end")
    worker.terminate()
    worker.wait_exit()
    assert room.queues() == []


def test_a_worker_that_starts_anew_at_sighup_leaves_no_queue_behind(room):
    room.site.config["broker_transport_options"]["wait_time_seconds"] = 1  # it waits for its poll's end
    (worker,) = room.start("ended", concurrency=1)
    before = [url for url in room.queues() if "reply" not in url]
    worker.signal_main(HUP)
    wait_until(
        lambda: worker.log.count("takes messages of remote control") == 2, READY_SECONDS, lambda: worker.log
    )
    after = [url for url in room.queues() if "reply" not in url]
    assert len(before) == len(after) == 1
    assert before != after


def worker_name(worker):
    """Celery's node name."""
    return next(line.split()[-2] for line in worker.log.splitlines() if line.endswith(" ready."))

"""Runs the workers of docs/visibility.md, writes down what happens, and draws it: `make timelines`.

Workers talk to an emulator of SQS through a proxy each. A scene's events are the requests that the proxies
have seen, and the lines that the tasks have written. The timeouts are seconds where they are minutes or hours
in production.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import tempfile
import threading
import time
import uuid
from pathlib import Path

import boto3
import paths  # noqa: F401
from servers import CREDENTIALS
from support.app import close_app, make_app
from support.diary import DIARY_VARIABLE, Diary
from support.faults import hold_request
from support.processes import wait_until
from support.proxy import FaultProxy
from support.sqs_servers import MotoServer
from support.worker import WorkerProcess
from timelines_picture import RECORD, text_of, write_pictures
from timelines_tasks import TASK_CLASS_VARIABLE, WORKER_VARIABLE

OURS = "celery_sqs_visibility"
STOCK = "sqs"
#: Of a message that its worker renews, and of one whose timeout has to outlast every task.
SHORT, LONG = 6, 20
SECONDS = 90


class Stage:
    """An emulator with one queue, and workers with a proxy each. A context manager."""

    def __init__(self, transport, timeout, **options):
        self.transport, self.timeout = transport, timeout
        self.options = {"visibility_timeout": timeout, "region": "us-east-1", "is_secure": False, **options}
        self.queue = f"timeline-{uuid.uuid4().hex[:8]}"
        self.events, self.proxies, self.workers = [], {}, {}
        self._receives = threading.Event()
        self._stack = contextlib.ExitStack()

    def __enter__(self):
        self._stack.callback(self._receives.set)
        directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self.directory = directory
        self.diary = Diary(directory / "diary")
        self.moto = self._stack.enter_context(MotoServer(directory))
        self.sqs = boto3.client("sqs", endpoint_url=self.moto.url)
        self._stack.callback(self.sqs.close)
        self.sqs.create_queue(QueueName=self.queue, Attributes={"VisibilityTimeout": str(self.timeout)})
        self.producer = self._stack.enter_context(FaultProxy(self.moto.url))
        self.app = make_app("timelines", self.config(self.producer.port))
        self._stack.callback(close_app, self.app)
        return self

    def __exit__(self, *exc_info):
        return self._stack.__exit__(*exc_info)

    def config(self, port):
        return {
            "broker_url": f"sqs://made-up:made-up@127.0.0.1:{port}",
            "broker_transport": self.transport,
            "broker_transport_options": self.options,
            "task_default_queue": self.queue,
        }

    def start(self, name, *, slots=1, idle=False):
        """A worker of that name, which is ready. An idle one receives nothing before `let_receive`."""
        proxy = self.proxies[name] = self._stack.enter_context(FaultProxy(self.moto.url))
        if idle:
            proxy.inject(hold_request(self._receives), "ReceiveMessage")
        worker = WorkerProcess(
            "timelines_tasks",
            self.directory / f"{name}.log",
            concurrency=slots,
            prefetch_multiplier=1,
            name=name.replace(" ", ""),
            config=self.config(proxy.port),
            import_paths=[Path(__file__).parent],
            env={
                TASK_CLASS_VARIABLE: f"{OURS}:VisibilityTask" if self.transport == OURS else "",
                WORKER_VARIABLE: name,
                DIARY_VARIABLE: str(self.diary.path),
            },
        )
        self.workers[name] = self._stack.enter_context(worker)
        worker.wait_ready()

    def send(self, message, *args, task="work"):
        """Publish a task whose id is `message`."""
        self.app.send_task(f"timelines_tasks.{task}", args, task_id=message)
        self._note("sent", at=self.producer.calls("SendMessage")[-1].started, message=message)

    def let_receive(self, *messages):
        """The idle workers receive, once these have begun to run."""
        for message in messages:
            self.diary.wait_for("started", 1, SECONDS, message=message)
        self._receives.set()

    def signal(self, name, what):
        """SIGTERM or SIGKILL to a worker."""
        self._note(what, worker=name)
        self.workers[name].terminate() if what == "SIGTERM" else self.workers[name].kill()

    def wait_for_end(self, runs):
        """Wait until so many runs have succeeded, and a deletion of each is answered."""
        self.diary.wait_for("done", runs, SECONDS)

        def deleted():
            return [event for event in self._requests() if event["what"] == "deleted"]

        wait_until(lambda: len(deleted()) >= runs, SECONDS, lambda: f"deleted are {deleted()}")

    def sleep_until(self, message, seconds):
        """Wait until so long after the beginning of a run."""
        line = self.diary.wait_for("started", 1, SECONDS, message=message)[0]
        time.sleep(max(0, line["monotonic"] + seconds - time.monotonic()))

    def recorded(self):
        """All events, in seconds from the first."""
        self.events += [
            {
                "at": line["monotonic"],
                "what": line["event"],
                "message": line["message"],
                "worker": line["worker"],
            }
            for line in self.diary.entries()
        ]
        self.events += self._requests()
        begin = min(event["at"] for event in self.events)
        self.events.sort(key=lambda event: event["at"])
        return [
            {name: event[name] for name in ("at", "what", "message", "worker", "seconds") if name in event}
            | {"at": round(event["at"] - begin, 2)}
            for event in self.events
        ]

    def _note(self, what, at=None, **facts):
        self.events.append({"at": at or time.monotonic(), "what": what, **facts})

    def _requests(self):
        messages = {}
        for name, proxy in self.proxies.items():
            for call in proxy.calls("ReceiveMessage"):
                for message in call.response.get("Messages", []):
                    task = json.loads(base64.b64decode(message["Body"]))["headers"]["id"]
                    messages[message["ReceiptHandle"]] = task
                    seconds = int(call.request.get("VisibilityTimeout", self.timeout))
                    yield {
                        "at": call.finished,
                        "what": "received",
                        "message": task,
                        "worker": name,
                        "seconds": seconds,
                    }
        for name, proxy in self.proxies.items():
            for call in proxy.calls():
                if call.action.startswith(("ChangeMessageVisibility", "DeleteMessage")):
                    for entry in call.request.get("Entries", [call.request]):
                        event = {
                            "at": call.started,  # another worker's receive may be answered before this is
                            "message": messages[entry["ReceiptHandle"]],
                            "worker": name,
                        }
                        if call.action.startswith("Delete"):
                            yield {**event, "what": "deleted"}
                        else:
                            yield {**event, "what": "changed", "seconds": int(entry["VisibilityTimeout"])}


def life():
    """A task outlasts its timeout, fails, comes back, and succeeds."""
    with Stage(OURS, SHORT, error_visibility_timeout=4) as stage:
        stage.start("worker 1")
        stage.send("import", 9, 3)
        stage.wait_for_end(1)
        return stage.recorded()


def error():
    """A task fails, and nothing says when it is to come back."""
    with Stage(OURS, SHORT) as stage:
        stage.start("worker 1")
        stage.send("import", 2, 2)
        stage.wait_for_end(1)
        return stage.recorded()


def no_life():
    """A run shows no life for longer than its `inactivity_timeout`."""
    with Stage(OURS, SHORT, error_visibility_timeout=4) as stage:
        stage.start("worker 1")
        stage.send("import", task="hang")
        stage.wait_for_end(1)
        return stage.recorded()


def long_task(transport):
    """A task outlasts its timeout; another worker is idle."""
    with Stage(transport, SHORT) as stage:
        stage.start("worker 1")
        stage.start("worker 2", idle=True)
        stage.send("import", 9)
        stage.let_receive("import")
        stage.wait_for_end(1 if transport == OURS else 2)
        return stage.recorded()


def crash(transport, timeout):
    """A worker is killed in the middle of a run; another is idle."""
    with Stage(transport, timeout) as stage:
        stage.start("worker 1")
        stage.start("worker 2", idle=True)
        stage.send("import", 8)
        stage.let_receive("import")
        stage.sleep_until("import", 5)
        stage.signal("worker 1", "SIGKILL")
        stage.wait_for_end(1)
        return stage.recorded()


def deploy():
    """A worker of two slots runs two of three messages at SIGTERM; its successor is there."""
    with Stage(OURS, SHORT, shutdown_timeout=4) as stage:
        stage.start("worker 1", slots=2)
        stage.start("worker 2", slots=2, idle=True)
        for message, seconds in (("long", 11), ("short", 6)):
            stage.send(message, seconds)
        stage.sleep_until("short", 2)
        stage.send("next", 3)
        stage.sleep_until("short", 4)
        stage.signal("worker 1", "SIGTERM")
        stage.let_receive("long", "short")
        stage.wait_for_end(3)
        return stage.recorded()


SCENES = {
    "life": lambda: {"": life()},
    "error": lambda: {"": error()},
    "no-life": lambda: {"": no_life()},
    "long-task": lambda: {"kombu's transport": long_task(STOCK), "this package": long_task(OURS)},
    "crash": lambda: {"kombu's transport": crash(STOCK, LONG), "this package": crash(OURS, SHORT)},
    "deploy": lambda: {"": deploy()},
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draw", action="store_true", help="draw what is recorded, and run nothing")
    parser.add_argument("--scene", choices=SCENES, help="run this one alone")
    arguments = parser.parse_args()
    os.environ.update(CREDENTIALS)
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    for name in [] if arguments.draw else [arguments.scene] if arguments.scene else SCENES:
        record[name] = SCENES[name]()
        record = {each: record[each] for each in SCENES if each in record}
        print(name, *(f"{len(events)} events" for events in record[name].values()), flush=True)
    RECORD.write_text(text_of(record))
    write_pictures(record)


if __name__ == "__main__":
    main()

"""An SQS server, an app's queues on it, and workers, in processes or in threads of the test's process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from celery import Celery, signals
from celery.contrib.testing.worker import start_worker
from celery.exceptions import ImproperlyConfigured
from celery.worker import state

from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.errors import SQSError
from celery_sqs_visibility.events import DeliveryEvent
from celery_sqs_visibility.operate.queues import Creation
from celery_sqs_visibility.task.exclusive import broker_context
from celery_sqs_visibility.testing.apps import create_queues, load_tasks
from celery_sqs_visibility.testing.clock import is_turned, machine_time
from celery_sqs_visibility.testing.diary import PARENT_VARIABLE, VARIABLE, Diary

#: Seconds to wait, on a busy machine, until a server answers or a worker consumes.
START_SECONDS: Final = 60.0

#: Seconds for a worker's warm shutdown.
STOP_SECONDS: Final = 30.0

#: The interval at which a process is checked.
LOOK_SECONDS: Final = 0.02


class LocalSQS:
    """`celery sqs local` as a process, on a free port. It also has S3, SNS and DynamoDB.

    It ends with this process, however this process ends.

    Attributes:
        environment: the variables by which a process finds it, despite other endpoints and proxies.
    """

    def __init__(self) -> None:
        self.environment: dict[str, str] = {}
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """The endpoint."""
        return self.environment["AWS_ENDPOINT_URL"]

    def start(self) -> None:
        """Start it, and wait until it answers.

        Raises:
            RuntimeError: it does not start; the error has its output.
        """
        command = [sys.executable, "-m", "celery", "sqs", "local", "--port", "0", "--json"]
        self._process = process = subprocess.Popen(  # noqa: S603 - our own command
            [*command, f"--with-parent={os.getpid()}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        timer = threading.Timer(START_SECONDS, process.kill)
        timer.start()
        printed = []
        try:
            for line in process.stdout or ():
                printed.append(line)
                if line.startswith('{"endpoint"'):
                    self.environment = _without_detours(json.loads(line)["environment"])
                    return
        finally:
            timer.cancel()
        self.stop()
        raise RuntimeError(f"`celery sqs local` does not start:\n{''.join(printed)}")

    def stop(self) -> None:
        """End it. Idempotent."""
        if self._process is not None:
            end_process(self._process, START_SECONDS)
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None


class AppQueues:
    """The queues of apps, created as `celery sqs queues create` does, and deleted afterwards.

    Queues that existed before are kept.
    """

    def __init__(self) -> None:
        self._made: list[Queue] = []

    def create(self, app: Celery[Any]) -> list[Queue]:
        """Create the app's queues, with dead-letter queues. Returns those that workers consume.

        Raises:
            ImproperlyConfigured: the app's broker is not SQS, or its tasks run eagerly.
        """
        load_tasks(app)
        context = broker_context(app)
        if context is None:
            raise ImproperlyConfigured("expected an app with broker_transport = 'celery_sqs_visibility'")
        creation = Creation(context.queues.sqs)
        try:
            names = create_queues(app, context.options, creation)
        finally:
            self._made += [context.queues.find(plan.name) for plan in creation.created]
        return [context.queues.find(name) for name in names]

    def delete(self) -> None:
        """Delete the queues that it created, with their messages."""
        for queue in self._made:
            with suppress(SQSError):
                queue.sqs.delete_queue(queue.url)
        self._made.clear()


class WorkerProcess:
    """`celery -A PROJECT worker`, with one process in its pool.

    Args:
        project: the value of `-A`.
        directory: where its log and its diary are written.
        name: of these files, and of the node.
        options: further options of the command, such as `["--concurrency=4"]`.
        environment: further variables.
    """

    def __init__(
        self,
        project: str,
        directory: Path,
        name: str,
        options: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.diary = Diary(directory / f"{name}.jsonl")
        self.log_path = directory / f"{name}.log"
        self._command = [sys.executable, "-m", "celery", "-A", project, "worker", "-n", f"{name}@%h"]
        self._command += ["-I", "celery_sqs_visibility.testing.diary", "-l", "INFO", "-c", "1", *options]
        own = {VARIABLE: str(self.diary.path), PARENT_VARIABLE: str(os.getpid())}
        self._environment = {**os.environ, **own, **(environment or {})}
        self._events: list[DeliveryEvent] = []
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it consumes.

        Raises:
            RuntimeError: it has exited instead; the error has its log.
            TimeoutError: it does not consume in time; the error has its log.
        """
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - the user's own project
                self._command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )
        deadline = machine_time() + START_SECONDS
        while not self._is_ready():
            if self._process.poll() is not None:
                raise RuntimeError(f"the worker has exited:\n{self.log}")
            if machine_time() > deadline:
                self.kill()
                raise TimeoutError(f"the worker does not consume after {START_SECONDS:g} s:\n{self.log}")
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(LOOK_SECONDS)

    @property
    def log(self) -> str:
        """Its output."""
        return self.log_path.read_text(errors="replace")

    def read(self) -> list[DeliveryEvent]:
        """Its events since the last call."""
        events, self._events = self._events + self.diary.read(), []
        return events

    def stop(self) -> None:
        """End it by SIGTERM, as a deploy does. A worker that takes too long is killed."""
        if self._process is not None:
            end_process(self._process, STOP_SECONDS)

    def kill(self) -> None:
        """Kill it and its pool, as if the machine was lost."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _is_ready(self) -> bool:
        self._events += self.diary.read()
        return self.diary.is_ready


class Workers:
    """The workers of a test, which end with it."""

    def __init__(self, queues: AppQueues, directory: Path) -> None:
        self._queues = queues
        self._directory = directory
        self._stack = ExitStack()
        self._processes: list[WorkerProcess] = []

    def __call__(self, app: Celery[Any], *, pool: str = "solo", **options: Any) -> Any:
        """Start a worker of the app in a thread of this process, with the app's queues.

        Args:
            app: becomes the current app, as with Celery's own `start_worker`.
            pool: one without processes.
            options: further arguments of Celery's `start_worker`.

        Raises:
            RuntimeError: time is turned, or a worker of an earlier test has not ended.
            ValueError: a pool with processes: use `process`.
        """
        if pool in {"prefork", "processes"}:
            raise ValueError(f"expected a pool without processes, got {pool!r}: use sqs_worker.process(...)")
        if state.should_terminate is not None and state.should_terminate is not False:
            raise RuntimeError(
                "a worker of an earlier test has not ended in time, since its task hangs, and Celery starts "
                "no other in this process: give the task an end, or use sqs_worker.process(...)"
            )
        self._require_machine_time()
        self._queues.create(app)
        options = {"perform_ping_check": False, "shutdown_timeout": STOP_SECONDS, **options}
        self._stack.enter_context(_logging_untouched())
        return self._stack.enter_context(start_worker(app, pool=pool, **options))

    def process(
        self, project: str, *options: str, app: Celery[Any], env: Mapping[str, str] | None = None
    ) -> WorkerProcess:
        """Start a worker process, with the app's queues.

        Args:
            project: the value of `-A`, importable in the current directory or by PYTHONPATH.
            options: further options of `celery worker`.
            app: the project's app in this process.
            env: further environment variables.

        Raises:
            RuntimeError: time is turned, or the worker exits; the error has its log.
            TimeoutError: it does not consume; the error has its log, too.
        """
        self._require_machine_time()
        self._queues.create(app)
        name = f"worker-{len(self._processes) + 1}"
        worker = WorkerProcess(project, self._directory, name, options, env)
        self._processes.append(worker)
        self._stack.callback(worker.stop)
        worker.start()
        return worker

    @staticmethod
    def _require_machine_time() -> None:
        if is_turned():
            raise RuntimeError("workers live by the machine's time: not in one test with turned time")

    def read(self) -> list[DeliveryEvent]:
        """The events of worker processes since the last call."""
        return [event for worker in self._processes for event in worker.read()]

    def stop(self) -> None:
        """End all workers, in order."""
        self._stack.close()


def _without_detours(environment: Mapping[str, str]) -> dict[str, str]:
    """Add the variables that override boto3's endpoints, and those that keep requests from a proxy."""
    url = environment["AWS_ENDPOINT_URL"]
    endpoints = {f"AWS_ENDPOINT_URL_{service}": url for service in ("SQS", "S3", "SNS", "DYNAMODB")}
    without_proxy = {name: _with_host(os.environ.get(name), url) for name in ("NO_PROXY", "no_proxy")}
    return {**environment, **endpoints, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "false", **without_proxy}


def _with_host(hosts: str | None, url: str) -> str:
    """The hosts and the URL's host, separated by commas; `*` already means all."""
    host = urlsplit(url).hostname or ""
    return f"{hosts},{host}" if hosts and hosts != "*" else hosts or host


def end_process(process: subprocess.Popen[Any], seconds: float) -> None:
    """End a process by SIGTERM, and its group by SIGKILL if that takes too long."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def _logging_untouched() -> Iterator[None]:
    """Inside, Celery workers leave logging as the test has set it up."""

    def leave(**_: Any) -> None:
        """Celery sets logging up only where its signal has no receiver."""

    signals.setup_logging.connect(leave, weak=False)
    try:
        yield
    finally:
        signals.setup_logging.disconnect(leave)

"""Workers, SQS and Redis as containers on a network of their own, run as ECS and Kubernetes run them.

`sqs` is the endpoint that workers know: a relay before `queues`, the emulator, which keeps messages in
memory. So the endpoint can be killed without its messages.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import struct
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
from containers.engine import LABEL, EngineError, docker
from containers.images import Images
from support.app import behind, close_app, make_app
from support.diary import Diary
from support.processes import wait_until

if TYPE_CHECKING:
    from typing import Self

PORT = 5000
READY_SECONDS = 90
QUEUES = ("orders", "mail")
MEMORY = "512m"
#: As `stopTimeout` and `terminationGracePeriodSeconds`.
GRACE_SECONDS = 30
HARDENED = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--pids-limit", "200")
SERVER_TMP = ("--tmpfs", "/tmp")
#: Of the library that makes a worker's clock wrong.
CLOCK = Path(__file__).with_name("clock.c")


class Container:
    """One that runs, or ran, by its name, which is its host name, too."""

    def __init__(self, name: str, network: str) -> None:
        self.name = name
        self._network = network
        self._full_name = f"{network}-{name}"

    def run(self, image: str, options: Sequence[str], command: Sequence[str]) -> Container:
        """Start it on the network, where its name is an alias; `--init` is an option."""
        placed = ["--network", self._network, "--network-alias", self.name, "--hostname", self.name]
        docker(
            "run", "--detach", "--label", LABEL, "--name", self._full_name, *placed, *options, image, *command
        )
        return self

    @property
    def state(self) -> dict[str, Any]:
        """`Running`, `ExitCode`, `OOMKilled`, `Health` and more."""
        return json.loads(docker("inspect", "--format", "{{json .State}}", self._full_name))

    @property
    def restarts(self) -> int:
        return int(docker("inspect", "--format", "{{.RestartCount}}", self._full_name))

    def deaths(self, since: float) -> list[float]:
        """Instants by the monotonic clock at which its main process ended, after one of them."""
        offset = time.time() - time.monotonic()
        span = ["--since", str(since + offset), "--until", str(time.time())]
        chosen = ["--filter", f"container={self._full_name}", "--filter", "event=die"]
        told = docker("events", *span, *chosen, "--format", "{{.TimeNano}}")
        return [int(nanoseconds) / 1e9 - offset for nanoseconds in told.split()]

    @property
    def address(self) -> str:
        template = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        return docker("inspect", "--format", template, self._full_name)

    @property
    def log(self) -> str:
        """Standard output and error, since its creation."""
        command = ["docker", "logs", self._full_name]
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.run(command, check=False, text=True, errors="replace", **options).stdout

    def wait_for_log(self, text: str, timeout: float = READY_SECONDS) -> Container:
        wait_until(lambda: text in self.log, timeout, lambda: f"{text!r} in the log:\n{self.log}")
        return self

    def start(self) -> None:
        docker("start", self._full_name)

    def stop(self) -> int:
        """SIGTERM, and SIGKILL 30 s later; the exit status."""
        docker("stop", "--time", str(GRACE_SECONDS), self._full_name, timeout=GRACE_SECONDS + 30)
        return self.state["ExitCode"]

    def kill(self, signal: str = "KILL") -> None:
        docker("kill", "--signal", signal, self._full_name)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """No process of it gets time."""
        docker("pause", self._full_name)
        try:
            yield
        finally:
            docker("unpause", self._full_name)

    @contextlib.contextmanager
    def cut_off(self) -> Iterator[None]:
        """Without its network interface: names do not resolve, connections are gone."""
        docker("network", "disconnect", self._network, self._full_name)
        try:
            yield
        finally:
            docker("network", "connect", "--alias", self.name, self._network, self._full_name)

    @contextlib.contextmanager
    def swallowed(self) -> Iterator[None]:
        """Packets of its network interface are dropped, both ways. Needs root on the host."""
        rules = [["INPUT", "-i", "eth0", "-j", "DROP"], ["OUTPUT", "-o", "eth0", "-j", "DROP"]]
        for rule in rules:
            self._iptables("-A", *rule)
        try:
            yield
        finally:
            for rule in rules:
                self._iptables("-D", *rule)

    def _iptables(self, *words: str) -> None:
        command = ["nsenter", "--target", str(self.state["Pid"]), "--net", "iptables", *words]
        subprocess.run(command, check=True, timeout=10)

    def exec(self, *command: str) -> str:
        """Run a command in it, as an exec probe does.

        Raises:
            EngineError: its status is not 0.
        """
        return docker("exec", self._full_name, *command)

    def exec_status(self, *command: str) -> int:
        ended = subprocess.run(
            ["docker", "exec", self._full_name, *command], check=False, capture_output=True, timeout=30
        )
        return ended.returncode

    def processes(self) -> list[tuple[int, int, str, str]]:
        """Process id, parent, state (`Z` of a zombie) and command of all processes in it."""
        program = (
            "import pathlib\n"
            "for path in pathlib.Path('/proc').glob('[0-9]*/stat'):\n"
            "    try: before, _, after = path.read_text().rpartition(')')\n"
            "    except OSError: continue\n"
            "    pid, command = before.split(' (', 1); state, parent = after.split()[:2]\n"
            "    print(pid, parent, state, command.replace(' ', '_'))"
        )
        rows = [line.split() for line in self.exec("python", "-c", program).splitlines()]
        return [(int(pid), int(parent), state, command) for pid, parent, state, command in rows]


class Fleet:
    """The servers, and as many workers as a scene likes; a context manager that removes all of it."""

    def __init__(self, images: Images, directory: Path, *, receives: int = 10, **options: Any) -> None:
        self.images = images
        self.network = f"csv-{uuid.uuid4().hex[:8]}"
        self.directory = directory
        self.receives = receives
        self.options = {"visibility_timeout": 20, "region": "us-east-1", **options}
        self.diary = Diary(directory / "diary.jsonl")
        self.containers: list[Container] = []

    def __enter__(self) -> Self:
        self.directory.chmod(0o777)
        self.diary.path.touch()
        self.diary.path.chmod(0o666)
        docker("network", "create", "--label", LABEL, self.network)
        self.redis = self._server(
            "redis", *["redis-server", "--bind", "0.0.0.0", "--protected-mode", "no", "--dir", "/tmp"]
        )
        self.queues = self._server("queues", *f"python moto_server.py -H 0.0.0.0 -p {PORT}".split())
        self.sqs = self._server("sqs", "python", "relay.py", "queues", str(PORT))
        self.redis.wait_for_log("Ready to accept connections")
        self.queues.wait_for_log("Running on")
        self.sqs.wait_for_log("Passing on")
        for queue in QUEUES:
            self._create_queue(queue)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if "app" in self.__dict__:
            close_app(self.app)
        if "client" in self.__dict__:
            self.client.close()
        for container in self.containers:
            (self.directory / f"{container.name}.log").write_text(container.log)
        names = [f"{self.network}-{container.name}" for container in self.containers]
        docker("rm", "--force", "--volumes", *names, timeout=120)
        docker("network", "rm", self.network)

    def _server(self, name: str, *command: str) -> Container:
        return self._run(name, self.images.servers, ["--read-only", *SERVER_TMP], command)

    def _run(self, name: str, image: str, options: Sequence[str], command: Sequence[str]) -> Container:
        container = Container(name, self.network)
        self.containers.append(container)
        return container.run(image, options, command)

    def worker(
        self,
        name: str,
        *,
        init: bool = True,
        concurrency: int = 2,
        memory: str = MEMORY,
        tmp: str = "64m",
        env: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
        prefix: Sequence[str] = (),
        ready: bool = True,
    ) -> Container:
        """A worker of both queues, by the image's user and with a root file system that is read-only."""
        environment = {
            "AWS_ACCESS_KEY_ID": "made-up",
            "AWS_SECRET_ACCESS_KEY": "made-up",
            "AWS_ENDPOINT_URL_SQS": f"http://sqs:{PORT}",
            "PROJ_SETTINGS": json.dumps(self._settings("redis")),
            "TASK_DIARY": "/diary/diary.jsonl",
            "TERMINATION_GRACE_PERIOD_SECONDS": str(GRACE_SECONDS),
            **(env or {}),
        }
        variables = [word for item in environment.items() for word in ("--env", "=".join(item))]
        limits = ["--memory", memory, "--memory-swap", memory, "--tmpfs", f"/tmp:size={tmp},mode=1777"]
        given = [*HARDENED, *limits, *variables, "--volume", f"{self.directory}:/diary", *options]
        words = f"celery -A proj worker -n {name}@%h -c {concurrency} -l INFO -Q {','.join(QUEUES)}".split()
        started = self._run(
            name, self.images.worker, [*given, *(["--init"] if init else [])], [*prefix, *words]
        )
        return started.wait_for_log(" ready.") if ready else started

    def workers(self, *names: str, **options: Any) -> list[Container]:
        """Start together, and wait for all."""
        started = [self.worker(name, ready=False, **options) for name in names]
        return [worker.wait_for_log(" ready.") for worker in started]

    def _settings(self, redis: str) -> dict[str, Any]:
        return {
            "broker_transport": "celery_sqs_visibility",
            "broker_transport_options": {"coordination_store": f"redis://{redis}:6379/1", **self.options},
            "broker_connection_retry_on_startup": True,
            "result_backend": f"redis://{redis}:6379/0",
        }

    def with_a_clock_of_its_own(self) -> dict[str, str]:
        """Variables of a worker whose wall clock `clock_ahead` turns. Needs a C compiler."""
        library = self.directory / "clock.so"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, CLOCK], check=True, timeout=60)
        self._turn_clock(0)
        return {"LD_PRELOAD": "/diary/clock.so", "CLOCK_OFFSET": "/diary/offset"}

    @contextlib.contextmanager
    def clock_ahead(self, seconds: int) -> Iterator[None]:
        """Those workers' clocks are wrong by so much."""
        self._turn_clock(seconds)
        try:
            yield
        finally:
            self._turn_clock(0)

    def _turn_clock(self, seconds: int) -> None:
        """Write in place and at once: the workers have mapped the file."""
        descriptor = os.open(self.directory / "offset", os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(descriptor, struct.pack("=q", seconds * 10**9), 0)
        finally:
            os.close(descriptor)

    @property
    def endpoint(self) -> str:
        """The emulator itself, which no fault hits."""
        return f"http://{self.queues.address}:{PORT}"

    @functools.cached_property
    def app(self) -> Any:
        """The producer, on the host; it asks for no results."""
        settings = self._settings(self.redis.address) | {"result_backend": None}
        return make_app("producer", behind(self.endpoint, settings), set_as_current=False)

    @functools.cached_property
    def client(self) -> Any:
        return boto3.client("sqs", endpoint_url=self.endpoint, region_name="us-east-1")

    def url(self, queue: str) -> str:
        return self.client.get_queue_url(QueueName=queue)["QueueUrl"]

    def _create_queue(self, queue: str) -> None:
        dead = self.client.create_queue(QueueName=f"{queue}-dead")["QueueUrl"]
        answer = self.client.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])
        policy = {"deadLetterTargetArn": answer["Attributes"]["QueueArn"], "maxReceiveCount": self.receives}
        self.client.create_queue(QueueName=queue, Attributes={"RedrivePolicy": json.dumps(policy)})

    def waiting(self) -> int:
        """Messages in both queues: visible, hidden and delayed."""
        return sum(self._count(queue) for queue in QUEUES)

    def _count(self, queue: str) -> int:
        answer = self.client.get_queue_attributes(QueueUrl=self.url(queue), AttributeNames=["All"])
        return sum(
            int(value) for name, value in answer["Attributes"].items() if name.startswith("Approximate")
        )

    def dead_letters(self) -> list[dict[str, Any]]:
        """All that is in the dead-letter queues, taken out."""
        return [message for queue in QUEUES for message in self._emptied(f"{queue}-dead")]

    def _emptied(self, queue: str) -> Iterator[dict[str, Any]]:
        url = self.url(queue)
        wanted = {"MaxNumberOfMessages": 10, "MessageAttributeNames": ["All"], "AttributeNames": ["All"]}
        while messages := self.client.receive_message(QueueUrl=url, **wanted).get("Messages"):
            for message in messages:
                self.client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
                yield message


def is_root() -> bool:
    """Whether this process may enter a container's network."""
    return os.geteuid() == 0


__all__ = ["Container", "EngineError", "Fleet", "is_root"]

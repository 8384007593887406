"""An Airflow as its users have it, on SQS: its database, its servers, and as many workers as a scene needs.

`airflow.cfg` has what docs/frameworks.md says, word for word; all else is in the environment of its commands.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg2
import requests
from support.diary import DIARY_VARIABLE, Diary
from support.postgres_server import PostgresServer
from support.processes import GuardedProcess, free_port, wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs/frameworks.md"
DAGS = Path(__file__).with_name("dags")
PROGRAM = Path(sys.executable).with_name("airflow")
START_SECONDS = 90
END_SECONDS = 60

#: Seconds without a sign of life after which Airflow gives up a task instance; 300 by default.
HEARTBEAT_TIMEOUT = 10


def page_settings() -> str:
    """The first example of docs/frameworks.md."""
    return re.search(r"```ini\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]


def variables(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Settings as Airflow reads them from the environment, where they win over airflow.cfg."""
    return {
        f"AIRFLOW__{section}__{name}".upper(): str(value)
        for section, values in settings.items()
        for name, value in values.items()
    }


class Airflow:
    """The installation; a context manager. It runs scheduler, API server and DAG processor.

    Args:
        endpoint: of SQS.
    """

    def __init__(self, directory: Path, endpoint: str) -> None:
        self.directory = directory
        self.diary = Diary(directory / "diary.jsonl")
        self.postgres = PostgresServer(directory, "airflow")
        self._endpoint = endpoint
        self._processes = ExitStack()
        self._started = 0
        self._api = f"http://127.0.0.1:{free_port()}"

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._processes.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._processes.close()

    def _start(self) -> None:
        (self.directory / "airflow.cfg").write_text(page_settings())
        self._processes.enter_context(self.postgres)
        self.run("db", "migrate")
        self.start("api-server")
        self.start("dag-processor")
        self.scheduler = self.start("scheduler").wait_for_log("Starting the scheduler", START_SECONDS)
        wait_until(lambda: self.rows("select 1 from dag where not is_paused"), START_SECONDS, "the DAGs")
        wait_until(self._answers, START_SECONDS, "the API server")

    def environment(self, **transport: Any) -> dict[str, str]:
        """That of each command; further options of the transport are a scene's own."""
        settings = {
            "core": {
                "executor": "CeleryExecutor",
                "load_examples": False,
                "dags_folder": DAGS,
                "dags_are_paused_at_creation": False,
                "execution_api_server_url": f"{self._api}/execution/",
                "simple_auth_manager_all_admins": True,
            },
            "database": {"sql_alchemy_conn": f"postgresql+psycopg2://{self.postgres.address}"},
            "api": {
                "host": "127.0.0.1",
                "port": self._api.rpartition(":")[2],
                "base_url": self._api,
                "workers": 1,
                "secret_key": "a-secret-of-the-tests",
            },
            "api_auth": {"jwt_secret": "a-secret-of-the-tests-" * 4, "jwt_leeway": 0},
            "scheduler": {
                "task_instance_heartbeat_timeout": HEARTBEAT_TIMEOUT,
                "task_instance_heartbeat_timeout_detection_interval": 1,
                "task_queued_timeout_check_interval": 1,
                "scheduler_idle_sleep_time": 0.3,
            },
            "workers": {"min_heartbeat_interval": 1},
            # On a machine of two cores, publish in processes of the scheduler's all the same.
            "celery": {"operation_timeout": 10, "sync_parallelism": 2},
            "celery_broker_transport_options": {"visibility_timeout": 5, "wait_time_seconds": 1} | transport,
        }
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("AIRFLOW")}
        return inherited | {
            **variables(settings),
            "AIRFLOW_HOME": str(self.directory),
            "AWS_ENDPOINT_URL_SQS": self._endpoint,
            DIARY_VARIABLE: str(self.diary.path),
            "PYTHONPATH": str(TESTS),
            "PYTHONUNBUFFERED": "1",
            "COLUMNS": "300",
        }

    def start(self, *command: str, env: Mapping[str, str] | None = None, **transport: Any) -> GuardedProcess:
        """A command of Airflow that goes on until it is stopped."""
        self._started += 1
        name = f"{self._started}-{'-'.join(command[:2])}"
        process = GuardedProcess(
            [str(PROGRAM), *command],
            self.directory / f"{name}.log",
            {**self.environment(**transport), **(env or {})},
            self.directory,
        )
        return self._processes.enter_context(process)

    def run(self, *command: str, program: Path = PROGRAM, status: int = 0, **transport: Any) -> str:
        """Run a command that ends by itself, with that status; its output."""
        log = self.directory / f"ran-{'-'.join(command[:2])}.log"
        process = GuardedProcess([str(program), *command], log, self.environment(**transport), self.directory)
        with process:
            assert process.wait_exit(END_SECONDS) == status, process.log
        return process.log

    def restart_scheduler(self, *, queued_timeout: float, **transport: Any) -> None:
        """One that takes tasks for stuck which are queued for so many seconds."""
        self.scheduler.stop()
        env = variables({"scheduler": {"task_queued_timeout": queued_timeout}})
        self.scheduler = self.start("scheduler", env=env, **transport)
        self.scheduler.wait_for_log("Starting the scheduler", START_SECONDS)

    def worker(
        self,
        queue: str,
        *options: str,
        concurrency: int = 1,
        env: Mapping[str, str] | None = None,
        **transport: Any,
    ) -> GuardedProcess:
        """A worker of that queue, ready."""
        command = ["celery", "worker", "--skip-serve-logs", "-q", queue, "-c", str(concurrency), *options]
        return self.start(*command, env=env, **transport).wait_for_log(" ready.", START_SECONDS)

    def trigger(self, dag: str, seconds: float = 0) -> str:
        """Start a run of a DAG, whose lasting task takes `seconds`; the id of the run."""
        body = {"logical_date": None, "conf": {"seconds": seconds}}
        answer = self._session().post(
            f"{self._api}/api/v2/dags/{dag}/dagRuns", json=body, timeout=START_SECONDS
        )
        answer.raise_for_status()
        return answer.json()["dag_run_id"]

    def rows(self, query: str, *values: object) -> list[tuple]:
        """The rows that the database answers with."""
        connection = psycopg2.connect(f"postgresql://{self.postgres.address}")
        try:
            with connection, connection.cursor() as cursor:
                cursor.execute(query, values)
                return cursor.fetchall()
        finally:
            connection.close()

    def attempts(self, run: str) -> dict[str, list[tuple[int, str]]]:
        """The attempts of each task of a run, each with its state."""
        attempts: dict[str, list[tuple[int, str]]] = {}
        for table in ("task_instance_history", "task_instance"):
            query = f"select task_id, try_number, state from {table} where run_id = %s order by try_number"
            for task, number, state in self.rows(query, run):
                attempts.setdefault(task, []).append((number, state))
        return attempts

    def wait_for_end(self, run: str, timeout: float = END_SECONDS) -> str:
        """The state in which a run has ended."""

        def state():
            found = self.rows("select state from dag_run where run_id = %s", run)
            return found[0][0] if found and found[0][0] in {"success", "failed"} else None

        return wait_until(state, timeout, lambda: f"the end of {run}: {self.attempts(run)}")

    def _session(self) -> requests.Session:
        session = requests.Session()
        session.trust_env = False
        token = session.get(f"{self._api}/auth/token", timeout=START_SECONDS).json()["access_token"]
        session.headers["Authorization"] = f"Bearer {token}"
        return session

    def _answers(self) -> bool:
        try:
            answer = requests.get(f"{self._api}/api/v2/monitor/health", timeout=START_SECONDS)
        except requests.ConnectionError:
            return False
        return answer.ok

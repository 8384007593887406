"""How often a task starts that outlasts its visibility timeout: ours and kombu's SQS transport.

    python benchmarks/starts.py

Four tasks of 12 seconds, visibility_timeout=5, two prefork workers with two slots each, 40 seconds.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from support.app import make_app  # noqa: E402
from support.diary import DIARY_VARIABLE, Diary  # noqa: E402
from support.proxy import FaultProxy  # noqa: E402
from support.sqs_servers import MotoServer  # noqa: E402
from support.worker import WorkerProcess  # noqa: E402

TASKS, SECONDS, LIMIT_SECONDS = 4, 12, 40


def measure(transport, upstream, directory):
    """Starts, ends and requests by action."""
    diary = Diary(directory / f"{transport}.jsonl")
    os.environ[DIARY_VARIABLE] = str(directory / f"{transport}.jsonl")
    with FaultProxy(upstream) as proxy:
        config = {
            "broker_url": f"sqs://made-up:made-up@127.0.0.1:{proxy.port}",
            "task_default_queue": f"starts-{uuid.uuid4().hex[:8]}",
            "broker_transport": transport,
            "broker_transport_options": {"region": "us-east-1", "is_secure": False, "visibility_timeout": 5},
        }
        producer = make_app("producer", config, set_as_current=False)
        for key in range(TASKS):
            producer.send_task("work.slow", [key, SECONDS])
        proxy.clear()
        workers = [
            WorkerProcess("work", directory / f"{transport}{number}.log", config=config)
            for number in range(2)
        ]
        for worker in workers:
            worker.start()
        until = time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < until and diary.count("done") < TASKS:
            time.sleep(0.2)
        for worker in workers:
            worker.stop()
        actions = {call.action for call in proxy.calls()}
        return diary.count("started"), diary.count("done"), {a: proxy.count(a) for a in sorted(actions)}


def main():
    os.environ.update(AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="x", AWS_DEFAULT_REGION="us-east-1")
    with tempfile.TemporaryDirectory() as directory, MotoServer(Path(directory)) as moto:
        for transport in ("sqs", "celery_sqs_visibility"):
            starts, ends, requests = measure(transport, moto.url, Path(directory))
            print(f"{transport}: {starts} starts and {ends} ends of {TASKS} tasks; requests: {requests}")


if __name__ == "__main__":
    main()

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

import boto3
from rich.console import Console
from rich.live import Live

from celery_sqs_visibility import task_id_for
from demo import screen
from demo.events import Events
from demo.plan import DONE, Plan, fill_buckets, plans
from demo.processes import Stage, StartError, set_stage, start_sqs
from demo.story import Story
from demo.webhooks import webhook_server

VISIBILITY_TIMEOUT = 5
CONCURRENCY = 4
QUEUE = "demo"
#: More receives than any task needs: here it is max_retries that gives up.
REDRIVE_POLICY = '{"maxReceiveCount": 20, "deadLetterTargetArn": "%s"}'

#: Seconds, for each of the three acts.
START, PLAY, STOP = 30.0, 35.0, 10.0
FRAME = 0.1

#: Characters per line of the summary when nobody knows how many there are.
PLAIN_WIDTH = 100

INTERRUPTED = 130


class Stopped(BaseException):
    """Told to stop, or the terminal is gone: leave as for Ctrl-C."""


def main() -> int:
    for number in signal.SIGTERM, signal.SIGHUP:
        signal.signal(number, _stop)
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        with set_stage() as stage, webhook_server() as webhooks:
            return _demo(stage, webhooks)
    except StartError as error:
        print(error, file=sys.stderr)
        return 1
    except (KeyboardInterrupt, Stopped):
        print("Stopped; nothing is left behind.", file=sys.stderr)
        return INTERRUPTED


def _demo(stage: Stage, webhooks: str) -> int:
    console = Console() if sys.stdout.isatty() else Console(color_system=None, width=PLAIN_WIDTH)
    console.print(
        "Starting an SQS of our own (moto) and a worker: [b]celery -A demo.app worker[/b]", highlight=False
    )
    _set_environment(stage.directory)
    os.environ["AWS_ENDPOINT_URL_SQS"] = start_sqs(stage, START)
    _make_queues()
    fill_buckets(stage.directory / "buckets")
    story = Story(time.time())
    with closing(Events(Path(os.environ["DEMO_EVENTS"]))) as events:
        arguments = ("worker", "--concurrency", str(CONCURRENCY), "--loglevel", "INFO")
        worker = stage.start("worker", "celery", "-A", "demo.app", *arguments)
        stage.wait_until("worker", worker, lambda: story.is_ready(events.new()), START)
        _play(console, story, events, plans(webhooks, VISIBILITY_TIMEOUT))
        worker.terminate()
        stopped = _stopped(worker)
        story.hear(events.new())
    console.print(screen.summary(story))
    return _verdict(story, stopped, stage.log("worker"))


def _set_environment(directory: Path) -> None:
    """For us and for the worker: nothing of the user's AWS account, no proxy, all files in one place."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "CELERY_")) or name.lower().endswith("_proxy"):
            del os.environ[name]
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "made-up",
        "AWS_SECRET_ACCESS_KEY": "made-up",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "DEMO_EVENTS": str(directory / "events.jsonl"),
        "PROJ_BUCKETS": str(directory / "buckets"),
        "PROJ_DATABASE": str(directory / "proj.sqlite3"),
        "PROJ_QUEUE": QUEUE,
        "PROJ_RESULT_BACKEND": f"file://{directory}",
        "PROJ_VISIBILITY_TIMEOUT": str(VISIBILITY_TIMEOUT),
    }


def _make_queues() -> None:
    sqs = boto3.client("sqs")
    dead = sqs.create_queue(QueueName=f"{QUEUE}-dead")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    sqs.create_queue(QueueName=QUEUE, Attributes={"RedrivePolicy": REDRIVE_POLICY % arn})
    sqs.close()


def _play(console: Console, story: Story, events: Events, todo: list[Plan]) -> None:
    """Send every task when its time has come, until all have ended; show what happens as it happens."""
    app = _producer(story)
    story.began = time.time()
    if sys.stdout.isatty() and not console.is_dumb_terminal:
        with Live(console=console, auto_refresh=False) as display:
            _follow(story, events, todo, app, lambda _: display.update(_frame(console, story), refresh=True))
    else:
        _follow(story, events, todo, app, lambda lines: [print(line, flush=True) for line in lines])


def _frame(console: Console, story: Story) -> Any:
    return screen.live(story, time.time(), console.width)


def _follow(
    story: Story, events: Events, todo: list[Plan], app: Any, show: Callable[[list[str]], object]
) -> None:
    todo = sorted(todo, key=lambda plan: plan.send_at)
    while (elapsed := time.time() - story.began) < PLAY:
        lines = []
        while todo and todo[0].send_at <= elapsed:
            plan = todo.pop(0)
            at = time.time()
            lines.append(story.sent(_send(app, plan), plan, at))
        lines += story.hear(events.new())
        for task_id, row in story.rows.items():
            if row.settled and row.state == DONE and row.result is None:
                row.result = app.AsyncResult(task_id).result
        show(lines)
        if story.over and not todo:
            break
        time.sleep(FRAME)


def _send(app: Any, plan: Plan) -> str:
    """Send a task; or be S3, which says that an object has arrived. The id of the task."""
    if plan.notification is None:
        return app.send_task(plan.task, plan.args).id
    with closing(boto3.client("sqs")) as sqs:
        url = sqs.get_queue_url(QueueName=QUEUE)["QueueUrl"]
        sent = sqs.send_message(QueueUrl=url, MessageBody=json.dumps(plan.notification))
    return task_id_for(sent["MessageId"])


def _producer(story: Story) -> Any:
    """The app to send with: proj's, which reads the environment when it is imported."""
    from proj.celery import app  # noqa: PLC0415

    from celery_sqs_visibility import SQSRequest, subscribe  # noqa: PLC0415

    subscribe(lambda request: story.requests.update([request.action]), SQSRequest)
    return app


def _stopped(worker: subprocess.Popen[bytes]) -> bool:
    """Whether it stopped by itself when it was told to."""
    try:
        return worker.wait(STOP) == 0
    except subprocess.TimeoutExpired:
        return False


def _verdict(story: Story, stopped: bool, log: Path) -> int:  # noqa: FBT001
    problems = [f"{row.plan.label}: {problem}" for row in story.rows.values() for problem in row.problems()]
    if not stopped:
        problems.append("the worker did not stop cleanly")
    if not problems:
        print("Every task ended as expected, and the worker stopped cleanly.")
        return 0
    print("Not as expected:", *problems, "The worker's log:", log.read_text(errors="replace"), sep="\n")
    return 1


def _stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise Stopped


if __name__ == "__main__":
    sys.exit(main())

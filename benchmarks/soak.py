"""Whether a worker at full load stays as it is: its memory, threads and file descriptors; and loses nothing.

    python benchmarks/soak.py [--minutes 10] [--pool prefork] [--concurrency 2]

A real worker on an emulator of SQS (ministack where it is installed, else moto) whose backlog a producer
keeps at a few hundred. Of a hundred tasks three fail once to three times and come back after 1 to 3 seconds,
one takes a second or two, the others nothing; every 15 seconds a pool child is killed, where there are any.

Flat is what is no more in the last fifth of the time than in the second, by the median of the samples, give
or take what `ALLOWED` says. The exit status is 1 if something grew, a task was lost, the worker was not busy
all the time, or the audit of one message in `AUDITED` found a broken rule or an unexplained run. Tasks of a
killed child run more than once, and messages that SQS hands out twice; moto does that now and then to polls
that overlap. Needs the test dependencies.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import boto3
import psutil
from servers import CREDENTIALS, emulator  # puts tests on the path
from support import audits
from support.app import behind, make_app
from support.diary import DIARY_VARIABLE, Diary
from support.worker import WorkerProcess

from celery_sqs_visibility.operate.audit.command import sentences

QUEUE = "soak"
BACKLOG = 300
BATCH = 10
SAMPLE_SECONDS = 5
KILL_SECONDS = 15
DRAIN_SECONDS = 120
LEAST_BUSY = 0.9  # the share of samples with a backlog
AUDITED = 10  # all events of one message in so many are written and audited; those of all would be gigabytes

OPTIONS = {"region": "us-east-1", "visibility_timeout": 30, "error_visibility_timeout": 1}


@dataclass(frozen=True)
class Sample:
    """The worker's main process, and the queue, at one moment.

    `in_flight` counts what the worker holds and what it has hidden; at full load `waiting` is never 0.
    """

    rss_mib: float
    threads: int
    files: int
    in_flight: int
    waiting: int


#: How much more each may be in the end: threads come and go with full batches, connections with them.
ALLOWED = Sample(rss_mib=8, threads=3, files=6, in_flight=100, waiting=BACKLOG)


class Queue:
    """The emulator's queue, as the producer and the samples see it. Safe to use from both their threads."""

    def __init__(self, endpoint):
        self._client = boto3.client("sqs", endpoint_url=endpoint)
        self._url = self._client.create_queue(QueueName=QUEUE)["QueueUrl"]

    def counts(self):
        """Messages visible, and in flight."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        told = self._client.get_queue_attributes(QueueUrl=self._url, AttributeNames=names)["Attributes"]
        return tuple(int(told[name]) for name in names)

    def send(self, bodies):
        """Ten at the most, all or an error."""
        entries = [{"Id": str(place), "MessageBody": body} for place, body in enumerate(bodies)]
        answer = self._client.send_message_batch(QueueUrl=self._url, Entries=entries)
        if answer.get("Failed"):
            raise RuntimeError(f"could not send {answer['Failed']}")


class Producer(threading.Thread):
    """Keeps the backlog at `BACKLOG` until it is told to stop; `sent` tasks have the keys from 0 on."""

    def __init__(self, app, queue):
        super().__init__(daemon=True)
        self.sent = 0
        self._app = app
        self._queue = queue
        self._stopping = threading.Event()

    def run(self):
        while not self._stopping.wait(0.05):
            waiting, _ = self._queue.counts()
            for _ in range((BACKLOG - waiting) // BATCH):
                self._queue.send([message(self._app, key) for key in range(self.sent, self.sent + BATCH)])
                self.sent += BATCH

    def stop(self):
        self._stopping.set()
        self.join()


def message(app, key):
    """The task of that key in kombu's wire format; Celery itself would make a request for each."""
    task = app.amqp.as_task_v2(str(uuid.uuid4()), f"soak_tasks.{kind(key)}", args=[key])
    delivery = {"exchange": "", "routing_key": QUEUE}
    properties = {**task.properties, "delivery_info": delivery, "body_encoding": "base64"}
    return json.dumps(
        {
            "headers": task.headers,
            "properties": properties,
            "body": base64.b64encode(json.dumps(task.body).encode()).decode(),
            "content-type": "application/json",
            "content-encoding": "utf-8",
        }
    )


def kind(key):
    """What the task of that key does."""
    place = key % 100
    return "slow" if place == 0 else "failing" if place % 33 == 1 else "quick"


def sample(worker, queue):
    main = psutil.Process(worker.pid)
    with main.oneshot():
        rss, threads, files = main.memory_info().rss, main.num_threads(), main.num_fds()
    waiting, in_flight = queue.counts()
    return Sample(rss / 2**20, threads, files, in_flight, waiting)


def watch(worker, queue, seconds, *, kill):
    """A sample each five seconds, printed, and now and then a killed child."""
    start = time.monotonic()
    samples, killed = [], 0
    print(f"{'seconds':>8}" + "".join(f"{field.name:>11}" for field in fields(Sample)), flush=True)
    while (elapsed := time.monotonic() - start) < seconds:
        samples.append(sample(worker, queue))
        print(f"{elapsed:8.0f}" + "".join(f"{value:11.0f}" for value in astuple(samples[-1])), flush=True)
        if kill and elapsed > KILL_SECONDS * (killed + 1):
            killed += kill_a_child(worker)
        time.sleep(SAMPLE_SECONDS)
    return samples, killed


def kill_a_child(worker):
    """Whether there was one to kill."""
    children = worker.children()
    with contextlib.suppress(IndexError, ProcessLookupError):
        os.kill(random.choice(children), signal.SIGKILL)
        return True
    return False


def grown(samples):
    """What is more in the last fifth than in the second: its name, both medians."""
    fifth = max(1, len(samples) // 5)
    verdicts = []
    for field in fields(Sample):
        early, late = (
            statistics.median(getattr(one, field.name) for one in part)
            for part in (samples[fifth : 2 * fifth], samples[-fifth:])
        )
        allowed = getattr(ALLOWED, field.name)
        flat = late <= early + allowed
        print(
            f"{field.name:>11}: {early:.1f} -> {late:.1f} ({'flat' if flat else 'GREW'}, allowed +{allowed})"
        )
        verdicts += [] if flat else [field.name]
    return verdicts


def soak(arguments, endpoint, directory):
    """Run it; whether all is well."""
    diary = Diary(directory / "diary.jsonl")
    os.environ[DIARY_VARIABLE] = str(diary.path)
    queue = Queue(endpoint)
    config = behind(endpoint, {"task_default_queue": QUEUE, "broker_transport_options": OPTIONS})
    producer = Producer(make_app("producer", config, set_as_current=False), queue)
    log = directory / "worker.log"
    events = audits.file_beside(log)
    worker = WorkerProcess(
        "soak_tasks",
        log,
        pool=arguments.pool,
        concurrency=arguments.concurrency,
        loglevel="INFO",
        config=config,
        import_paths=[Path(__file__).parent],
        env={audits.VARIABLE: str(events), audits.SHARE_VARIABLE: str(AUDITED)},
    )
    with worker:
        worker.wait_ready()
        producer.start()
        started = time.monotonic()
        samples, killed = watch(worker, queue, 60 * arguments.minutes, kill=arguments.pool == "prefork")
        producer.stop()
        took = time.monotonic() - started
        until = time.monotonic() + DRAIN_SECONDS
        while any(queue.counts()) and time.monotonic() < until:
            time.sleep(1)
        left = sum(queue.counts())
        worker.terminate()
        status = worker.wait_exit()
    done = Counter(entry["key"] for entry in diary.entries("done"))
    lost = producer.sent - len(done)
    twice = sum(times > 1 for times in done.values())
    busy = sum(one.waiting > 0 for one in samples[1:]) / len(samples[1:])
    print(
        f"{producer.sent} tasks in {took:.0f} s, {producer.sent / took:.0f} a second; there was a backlog "
        f"in {busy:.0%} of the samples\n{lost} lost, {left} messages left, {twice} done more than once; "
        f"{killed} children killed; the worker's exit status is {status}"
    )
    account = audits.account_of([events])
    print(f"audit of one message in {AUDITED}:", *sentences(account), sep="\n  ")
    audited = account.is_well and account.runs > 0
    return audited and not grown(samples) and busy > LEAST_BUSY and not lost and not left and not status


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--pool", default="prefork")
    parser.add_argument("--concurrency", type=int, default=2)
    arguments = parser.parse_args()
    os.environ.update(CREDENTIALS)
    with tempfile.TemporaryDirectory() as directory, emulator(Path(directory)) as endpoint:
        sys.exit(not soak(arguments, endpoint, Path(directory)))


if __name__ == "__main__":
    main()

"""Other packages in a real worker, each with a look at its effect; only `make others` runs this."""

import datetime as dt
import functools
import sys
from pathlib import Path

import pytest
from django.conf import settings
from health_check.contrib.celery import Ping
from health_check.exceptions import ServiceUnavailable
from support.processes import SOON, GuardedProcess
from support.redis_server import RedisServer
from support.worker import environment

TASKS = Path(__file__).with_name("tasks")
OPTIONS = {"visibility_timeout": 30, "region": "us-east-1", "wait_time_seconds": 1}


@pytest.fixture
def site(queue, producer, start_worker, tmp_path):
    """A queue, its producer, and the workers of `packaged`."""
    return Site(queue, producer, start_worker, tmp_path)


class Site:
    def __init__(self, queue, producer, start_worker, tmp_path):
        (tmp_path / "results").mkdir()
        self.config = {
            "task_default_queue": queue,
            "result_backend": f"file://{tmp_path / 'results'}",
            "broker_transport_options": OPTIONS,
        }
        self.queue = queue
        self._make_producer = producer
        self._start_worker = start_worker

    def start(self, **options):
        return self._start_worker("packaged", config=self.config, import_paths=[TASKS], **options)

    @functools.cached_property
    def producer(self):
        return self._make_producer(self.config)

    def send(self, task, *args):
        return self.producer.send_task(f"packaged.{task}", args)

    def is_empty(self, sqs):
        url = sqs.get_queue_url(QueueName=self.queue)["QueueUrl"]
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        answer = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)
        return set(answer["Attributes"].values()) == {"0"}


def test_celery_batches(site, diary, sqs, proxy):
    site.start(prefetch_multiplier=10)
    for key in range(20):
        site.send("collect", key)
    batches = diary.wait_for("batch", 2, timeout=SOON)
    assert sorted(key for batch in batches for key in batch["keys"]) == list(range(20))
    proxy.wait_for(lambda _: site.is_empty(sqs), timeout=SOON)


def test_celery_redbeat(site, diary, tmp_path, proxy):
    with RedisServer(tmp_path) as redis:
        site.config |= {
            "redbeat_redis_url": redis.url,
            "beat_schedule": {"tick": {"task": "packaged.once_failing", "schedule": 1, "args": ["tick"]}},
        }
        command = [sys.executable, "-m", "celery", "-A", "packaged", "beat", "--pidfile=", "-l", "INFO"]
        env = environment(site.config, [TASKS], AWS_ENDPOINT_URL_SQS=proxy.url)
        beat = GuardedProcess([*command, "-S", "redbeat.RedBeatScheduler"], tmp_path / "beat.log", env)
        with beat:
            site.start()
            diary.wait_for("done", 2, key="tick", timeout=SOON)


def test_ddtrace(site, diary, sqs, proxy):
    site.start(env={"PACKAGED_TRACER": "1", "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false"})
    result = site.send("once_failing", "a")
    diary.wait_for("done", key="a", timeout=SOON)
    runs = diary.wait_for("span", 2, name="celery.run", timeout=SOON)
    assert {run["tags"]["celery.id"] for run in runs} == {result.id}
    assert [run["tags"]["celery.state"] for run in runs] == ["RETRY", "SUCCESS"]
    diary.wait_for("span", name="sqs.command", timeout=SOON)
    proxy.wait_for(lambda _: site.is_empty(sqs), timeout=SOON)


def test_celery_aio_pool(site, diary, sqs, proxy):
    site.start(pool="custom", env={"CELERY_CUSTOM_WORKER_POOL": "celery_aio_pool.pool:AsyncIOPool"})
    site.send("awaiting", "a")
    diary.wait_for("done", key="a", timeout=SOON)
    proxy.wait_for(lambda _: site.is_empty(sqs), timeout=SOON)


def test_django_health_check(site):
    settings.configure()
    site.config["broker_transport_options"] = OPTIONS | {"remote_control": True}
    ping = Ping(app=site.producer, timeout=dt.timedelta(seconds=SOON), limit=1)
    site.start()
    ping.run()  # raises where no worker answers, or none consumes the queue
    site.producer.conf.task_default_queue = "another"
    with pytest.raises(ServiceUnavailable, match="No worker for Celery task queue another"):
        ping.run()

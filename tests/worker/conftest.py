"""One queue, one configuration, one producer and as many workers as a test likes."""

from __future__ import annotations

import dataclasses
import functools
import json
import uuid

import boto3
import pytest
from support.exclusive_stores import HANGING_STORES

TRANSPORT_OPTIONS = {"visibility_timeout": 30, "region": "us-east-1"}


@dataclasses.dataclass
class Site:
    """What a test of a real worker needs at hand."""

    queue: str
    config: dict
    proxy: object
    diary: object
    sqs: object
    start_worker: object
    app: object

    def send(self, task, *args, **kwargs):
        """Publish a task of `tasks/work.py` by name."""
        names = ("countdown", "delay_seconds", "link_error", "expires", "task_id")
        options = {key: kwargs.pop(key) for key in names if key in kwargs}
        return self.app.send_task(f"work.{task}", args, kwargs, **options)

    def begin(self, key):
        """Send a task that does nothing, and wait until it has begun."""
        self.send("quick", key)
        self.diary.wait_for("started", key=key)

    def give_back(self):
        """As a worker does with what it has fetched and not begun."""
        (message,) = self.sqs.receive_message(QueueUrl=self.url, WaitTimeSeconds=5)["Messages"]
        handle = message["ReceiptHandle"]
        self.sqs.change_message_visibility(QueueUrl=self.url, ReceiptHandle=handle, VisibilityTimeout=0)

    def start(self, module="work", **options):
        return self.start_worker(module, config=self.config, **options)

    @functools.cached_property
    def url(self):
        return self.sqs.get_queue_url(QueueName=self.queue)["QueueUrl"]

    def create_queue(self, **attributes):
        return self.sqs.create_queue(QueueName=self.queue, Attributes=attributes)["QueueUrl"]

    def create_queue_with_dead_letters(self, receives):
        """Create the queue with a redrive policy of that many receives; the URL of its dead-letter queue."""
        url = self.sqs.create_queue(QueueName=f"{self.queue}-dead")["QueueUrl"]
        answer = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
        policy = {"deadLetterTargetArn": answer["Attributes"]["QueueArn"], "maxReceiveCount": receives}
        self.create_queue(RedrivePolicy=json.dumps(policy))
        return url

    def counts(self, url=None):
        """Messages visible and hidden."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        answer = self.sqs.get_queue_attributes(QueueUrl=url or self.url, AttributeNames=names)
        return tuple(int(answer["Attributes"][name]) for name in names)

    @property
    def kept(self):
        """How many messages the queue has, hidden ones included."""
        return sum(self.counts())

    def gaps(self, key):
        """Seconds from each failure to the start after it."""
        failures = [entry["monotonic"] for entry in self.diary.entries("failing", key=key)]
        starts = [entry["monotonic"] for entry in self.diary.entries("started", key=key)]
        return [start - failure for failure, start in zip(failures, starts[1:], strict=False)]

    def brought(self):
        """The receives that brought something."""
        polls = self.proxy.calls("ReceiveMessage", queue=self.queue)
        return [poll for poll in polls if poll.response.get("Messages")]

    def changes(self):
        """The visibility timeouts the worker asked for after its receives, in order."""
        return [
            entry["VisibilityTimeout"]
            for call in self.proxy.calls("ChangeMessageVisibilityBatch")
            for entry in call.request["Entries"]
        ]


@pytest.fixture
def make_site(queue, proxy, diary, sqs, start_worker, producer, tmp_path):
    """`make_site(visibility_timeout=5, ...)`: a site with these transport options."""
    results = tmp_path / "results"
    results.mkdir()

    def make(settings=None, **options):
        config = {
            "task_default_queue": queue,
            "result_backend": f"file://{results}",
            "broker_transport_options": {**TRANSPORT_OPTIONS, **options},
            **(settings or {}),
        }
        return Site(queue, config, proxy, diary, sqs, start_worker, producer(config))

    return make


@pytest.fixture
def make_control_site(make_site):
    """A site whose workers take commands, in queues of its own. At the end this process has none."""
    made = []

    def make(settings=None, **options):
        prefix = f"c-{uuid.uuid4().hex[:8]}-"
        made.append(make_site(settings, remote_control=True, control_prefix=prefix, **options))
        return made[-1]

    yield make
    for site in made:
        with site.app.connection_for_read() as connection:
            connection.transport.context.end_control()


@pytest.fixture(params=HANGING_STORES)
def hanging_store(request, emulator, monkeypatch, tmp_path):
    """A store of exclusive keys that hangs while the test says so: see `support.exclusive_stores`."""
    with HANGING_STORES[request.param](emulator, monkeypatch, tmp_path) as store:
        yield store


@pytest.fixture
def make_fifo_site(make_site, queue):
    """A site whose queue is a FIFO queue."""

    def make(attributes=None, **options):
        name = f"{queue[:60]}.fifo"
        site = make_site({"task_default_queue": name}, **options)
        site.queue = name
        site.create_queue(FifoQueue="true", **(attributes or {}))
        return site

    return make


@pytest.fixture
def s3(emulator, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", emulator.url)
    client = boto3.client("s3")
    yield client
    client.close()

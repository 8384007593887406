"""A Lambda function, its queue and its event source mapping, without a server."""

import base64
import json
from datetime import UTC, datetime

from celery import Celery, Task
from celery.backends import cache
from celery.exceptions import Reject, WorkerShutdown, WorkerTerminate
from support import factories
from support.app import without_shared_tasks
from support.factories import EVERYTHING

from celery_sqs_visibility import VisibilityTask, lambda_handler, task_message
from celery_sqs_visibility.aws.fake import FakeObjectStore, FakeSQS
from celery_sqs_visibility.delivery import lease_table
from celery_sqs_visibility.delivery.settle.dead_letters import described
from celery_sqs_visibility.serverless.handler import MEMBERS
from celery_sqs_visibility.stores import guarded
from celery_sqs_visibility.stores.memory import MemoryStore
from celery_sqs_visibility.transport import broker_clients, broker_context

#: The API action that hides messages, and shows them.
CHANGES = "ChangeMessageVisibilityBatch"

#: What a task raises to end the process of its worker.
ENDS_OF_PROCESSES = {"shutdown": WorkerShutdown(0), "terminate": WorkerTerminate(1), "exit": SystemExit(1)}


def note(self, key, seconds=0):
    """It takes `seconds` of the test's clock; the key says what becomes of it."""
    sqs, visibility = self.request.sqs, getattr(self, "visibility", None)  # a stock task has none
    remaining = visibility and visibility.remaining()
    self.app.world.ran.append((key, self.request.retries, sqs["queue"], remaining))
    self.app.world.clock.advance(seconds)
    if key == "extend":
        visibility.extend(100)
    if key in ENDS_OF_PROCESSES:
        raise ENDS_OF_PROCESSES[key]
    if key == "reject":
        raise Reject("no", requeue=False)
    if key == "release":
        visibility.release()
    if key.startswith("bad"):
        raise ValueError(key)


class World:
    """A queue of a fake SQS, an app, and Lambda, which receives for it."""

    def __init__(self, monkeypatch, clock, name="q", options=None, **queue):
        self.ran = []
        without_shared_tasks(monkeypatch)
        self.clock = clock
        self.sqs = FakeSQS(self.clock)
        monkeypatch.setattr(broker_clients, "shared_sqs", lambda _settings: self.sqs)
        monkeypatch.setattr(broker_context, "_contexts", {})
        monkeypatch.setattr(lease_table, "_lease_table", None)
        monkeypatch.setattr(cache, "_DUMMY_CLIENT_CACHE", {})  # results: other tests have the same task ids
        self.payloads = FakeObjectStore()
        monkeypatch.setattr(broker_clients, "S3ObjectStore", lambda _settings, _bucket: self.payloads)
        self.keys = MemoryStore(self.clock)
        monkeypatch.setattr(guarded, "open_store", lambda _address, _settings: self.keys)
        self.dead = factories.queue(self.sqs, "dead")
        self.queue = factories.queue(self.sqs, name, **({"letters": self.dead} | queue))
        self.app = Celery("function", set_as_current=False, task_cls=VisibilityTask)
        self.app.world = self
        self.app.conf.update(
            broker_transport="celery_sqs_visibility",
            broker_transport_options=options or {},
            result_backend="cache+memory://",
            task_store_errors_even_if_ignored=True,
        )
        settings = {"error_visibility_timeout": [10, 60], "max_retries": 1}
        self.app.task(note, bind=True, name="note", shared=False, sqs_event="s3:*", **settings)
        self.app.task(note, bind=True, name="stock", base=Task, shared=False, acks_late=True)

    def handler(self):
        return lambda_handler(self.app, clock=self.clock, sleep=self.clock.advance)

    def send(self, *keys, task="note", group=None, **kwargs):
        factories.send(
            self.queue, *[task_message(task, [key], kwargs, task_id=key) for key in keys], group=group
        )

    def send_with_eta(self, key, seconds, **kwargs):
        """As a publisher does whose delay ends `seconds` before the ETA."""
        body = json.loads(task_message("note", [key], task_id=key))
        eta = datetime.fromtimestamp(self.clock.wall() + seconds, UTC)
        body["headers"]["eta"] = eta.isoformat()
        factories.send(self.queue, json.dumps(body), **kwargs)

    def event(self):
        """What Lambda receives, and its event source mapping makes of it."""
        return {
            "Records": [self.record(each) for each in self.sqs.receive(self.queue.url, 10, 0, EVERYTHING)]
        }

    def record(self, received):
        arn = self.sqs.queue_attributes(self.queue.url, ["QueueArn"])["QueueArn"]
        members = {name: received[theirs] for name, theirs in MEMBERS.items() if theirs in received}
        attributes = {
            name: {"stringValue": value["StringValue"], "dataType": value["DataType"]}
            for name, value in received.get("MessageAttributes", {}).items()
        }
        return {**members, "messageAttributes": attributes, "eventSource": "aws:sqs", "eventSourceARN": arn}

    def invoke(self, handler=None, seconds=60):
        """Call the function as Lambda does, which deletes what is not reported; their ids or S3 keys."""
        event = self.event()
        answer = json.loads(json.dumps((handler or self.handler())(event, Invocation(seconds))))
        failed = [each["itemIdentifier"] for each in answer.pop("batchItemFailures")]
        assert answer == {}
        done = [each["receiptHandle"] for each in event["Records"] if each["messageId"] not in failed]
        if done:
            self.sqs.delete(self.queue.url, done)
        bodies = {each["messageId"]: each["body"] for each in event["Records"]}
        return [_name(bodies[message_id]) for message_id in failed]

    def changes(self):
        return [seconds for batch in factories.entries(self.sqs, CHANGES) for _, seconds in batch]

    def state(self, key):
        return self.app.AsyncResult(key).state

    def letters(self):
        return [
            described(each["MessageAttributes"])["reason"]
            for each in self.sqs.receive(self.dead.url, 10, 0, EVERYTHING)
        ]


def _name(body):
    """The task id of a message, or the key of its payload in S3."""
    body = json.loads(body if body[0] in "[{" else base64.b64decode(body))
    return body["headers"]["id"] if isinstance(body, dict) else body[1]["s3Key"]


class Invocation:
    """Lambda's context object."""

    def __init__(self, seconds):
        self._milliseconds = int(seconds * 1000)

    def get_remaining_time_in_millis(self):
        return self._milliseconds

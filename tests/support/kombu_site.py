"""kombu's API on an SQS of its own."""

import uuid

from kombu import Connection, Exchange, Producer, Queue
from support.fake_topics import FakeSNS

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.queues import Queues
from celery_sqs_visibility.aws.topics import Topics
from celery_sqs_visibility.control.remote import RemoteControl
from celery_sqs_visibility.errors import QueueDoesNotExistError
from celery_sqs_visibility.transport.fanout import Fanout
from celery_sqs_visibility.transport.temporary_queues import TemporaryQueues


class KombuSite:
    """kombu's connections to an SQS of their own."""

    def __init__(self):
        self.sqs = FakeSQS(names_rest=False)
        self.sns = FakeSNS(self.sqs)
        self._user = uuid.uuid4().hex
        self._connections, self._contexts = [], []

    def connect(self, **options):
        """A connection of our transport; those with equal options share a context."""
        connection = Connection(
            f"sqs://{self._user}:secret@",
            transport="celery_sqs_visibility",
            transport_options={"wait_time_seconds": 1, **options},
        )
        context = connection.transport.context
        if context not in self._contexts:
            self._contexts.append(context)
            context.queues = Queues(self.sqs)
            context.control = RemoteControl(self.sqs, context.options)
            context.temporary_queues = TemporaryQueues(context.queues)
            topics = Topics(self.sns, context.queues.canonical_name, {}, lambda _: self.sns)
            context.fanout = Fanout(topics, context.queues)
        self._connections.append(connection)
        return connection

    def close(self):
        for connection in self._connections:
            connection.close()
        for context in self._contexts:
            context.control.close()

    def forget(self):
        """Keep no connection and no context: nothing is left but what the package keeps."""
        self.close()
        self._connections, self._contexts = [], []

    def actions(self):
        """The requests so far."""
        return [action for action, _ in self.sqs.calls]

    def attributes(self, name):
        return self.sqs.queue_attributes(self.sqs.queue_url(name), ["All"])

    def counts(self, name="q"):
        """Messages visible, hidden and delayed."""
        found, beginning = self.attributes(name), "ApproximateNumberOfMessages"
        return tuple(int(found[beginning + end]) for end in ("", "NotVisible", "Delayed"))

    def exists(self, name):
        try:
            return bool(self.sqs.queue_url(name))
        except QueueDoesNotExistError:
            return False


def declared_queue(channel, name="q", **options):
    """A kombu queue that is declared on the channel."""
    queue = Queue(name, Exchange(name), name, **options)(channel)
    queue.declare()
    return queue


def publish(channel, *bodies, name="q", **options):
    """Publish the bodies to the queue of that name, as JSON."""
    for body in bodies:
        Producer(channel).publish(body, routing_key=name, serializer="json", **options)

"""A queue with dead letters in a fake SQS."""

from __future__ import annotations

import dataclasses
import json
import threading
from types import SimpleNamespace

import pytest
from support import factories
from support.clock import FakeClock

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import OutgoingMessage, ReceiveOptions
from celery_sqs_visibility.aws.queues import Queues
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.core.settlements import Delete
from celery_sqs_visibility.delivery.settle.dead_letters import ATTRIBUTE, DeadLetters
from celery_sqs_visibility.operate import invocation
from celery_sqs_visibility.operate.dead_letters.letter import read_letter
from celery_sqs_visibility.operate.dead_letters.moves import Moves
from celery_sqs_visibility.operate.dead_letters.session import HeldMessages, find_place
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.payload_pointers import ReadablePayloads
from celery_sqs_visibility.transport.task_message import task_message

OPTIONS = ReceiveOptions(0, ("All",), ("All",))


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(invocation, "pause", lambda _failures: 0)


@dataclasses.dataclass
class Site:
    """`queue` with its dead-letter queue `letters`."""

    sqs: FakeSQS
    clock: FakeClock
    context: object
    suffix: str = ""

    def __post_init__(self):
        letters = factories.queue(self.sqs, f"dead{self.suffix}")
        self.letters = letters.url
        self.queue = factories.queue(self.sqs, f"orders{self.suffix}", letters=letters, most=5).url
        self.place = find_place(self.context, f"orders{self.suffix}", None)
        self.stop = threading.Event()
        self.held = HeldMessages(self.place.letters, self.clock, self.stop)
        self.moves = Moves(self.place, self.held, self.stop)

    def add(self, task="proj.add", body=None, group=None, mine=None, **said):
        """Add a dead letter; `mine` is an attribute of its sender's. Return its id."""
        said = {"reason": "failed", "source_queue": f"orders{self.suffix}", **said}
        texts = {ATTRIBUTE: json.dumps({name: text for name, text in said.items() if text}), "mine": mine}
        attributes = {
            name: {"DataType": "String", "StringValue": text} for name, text in texts.items() if text
        }
        letter = OutgoingMessage(body or task_message(task, [1]), attributes, None, group, group and task)
        return self.sqs.send(self.letters, letter)

    def give_up(self, message):
        """Make a dead letter of a received message, as a worker does."""
        delivery = factories.delivery(self.place.source, task="proj.add", receive_count=3)
        delivery.message_attributes = message.get("MessageAttributes", {})
        letters = DeadLetters(self.context.redrive, "worker@host")
        details = {"attempts": "4"}
        forward = letters.forward(delivery, "failed", message["Body"], lambda _: Delete(), details)
        target, (letter,) = letters.addressed(self.place.source, forward.messages)
        self.sqs.send(target.url, letter)
        self.sqs.delete(self.queue, [message["ReceiptHandle"]])

    def receive(self):
        """The letters, held."""
        received = [each for batch in self.held.batches() for each in batch]
        return [read_letter(self.place.letters, each, ReadablePayloads()) for each in received]

    def messages(self, url):
        return self.sqs.receive(url, 10, 0, OPTIONS)


@pytest.fixture
def make_site():
    def make(suffix="", **options):
        clock = FakeClock()
        sqs = FakeSQS(clock)
        context = SimpleNamespace(
            queues=Queues(sqs), redrive=RedriveBook(), options=Options.parse(options), payloads=None
        )
        return Site(sqs, clock, context, suffix)

    return make


@pytest.fixture
def site(make_site):
    return make_site()

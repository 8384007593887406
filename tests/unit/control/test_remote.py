"""What a command says of its caller."""

from __future__ import annotations

import json

import pytest
from support.clock import FakeClock

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import ReceiveOptions
from celery_sqs_visibility.control import wire
from celery_sqs_visibility.control.remote import RemoteControl
from celery_sqs_visibility.policy.options import Options

COMMANDS = "celery.pidbox"


class SlowSQS(FakeSQS):
    """Its list of queues takes five seconds, as making the clients of a new process may."""

    def list_queues(self, prefix):
        self.clock.advance(5)
        return super().list_queues(prefix)


def test_a_caller_waits_from_when_its_command_is_sent_however_long_that_takes():
    sqs, clock = SlowSQS(), FakeClock()
    sqs.clock = clock
    control = RemoteControl(sqs, Options.parse({"remote_control": True}), clock)
    queue = control.queues.create(COMMANDS, "node")
    reply_to = {"exchange": f"reply.{COMMANDS}", "routing_key": "caller"}
    command = {"method": "ping", "ticket": "t", "reply_to": reply_to}
    content = {"body": json.dumps(command), "content-type": "application/json", "content-encoding": "utf-8"}
    try:
        control.broadcast(COMMANDS, {**content, "headers": {wire.EXPIRES: clock.wall() + 1}})
    finally:
        control.close()
    (sent,) = sqs.receive(queue.url, 1, 0, ReceiveOptions(system_attributes=("All",)))
    assert wire.decode(sent).expires_in == pytest.approx(1, abs=0.5)  # less what it has waited

"""Publishing in users' unit tests, under the usual mocks of boto3: nothing opens a connection."""

import asyncio
import json
import socket
from functools import partial
from io import BytesIO
from types import SimpleNamespace

import boto3.session
import pytest
from botocore.awsrequest import AWSResponse
from botocore.stub import Stubber
from celery import Celery
from moto import mock_aws

from celery_sqs_visibility import VisibilityTask, apublish, publish_batch
from celery_sqs_visibility.core.pending import PendingMessages
from celery_sqs_visibility.delivery.publish import sender

URL = "https://sqs.us-east-1.amazonaws.com/123456789012/celery"


@pytest.fixture(autouse=True)
def connections(monkeypatch, tmp_path):
    """Connections and look-ups of hosts that were tried. All are refused, as where there is no network."""
    tried = []

    def refuse(*args, **_):
        tried.append(args)
        raise OSError("no network here")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    yield tried
    assert tried == []


@pytest.fixture
def publish(request):
    """Publishes 15 messages in all the ways that there are, without clients of other tests."""
    app = Celery("shop", task_cls=VisibilityTask, set_as_current=False)
    own_client = {"user_agent_extra": request.node.name}  # apps with the same settings share clients
    app.conf.broker_transport = "celery_sqs_visibility"
    app.conf.broker_transport_options = {"region": "us-east-1", "client-config": own_client}
    app.conf.task_publish_retry = False

    @app.task(shared=False)
    def task(number):
        pass

    async def publish_from_asyncio():
        await apublish(task.s(14))

    def publish():
        for number in range(2):
            task.delay(number)
        with publish_batch(app):
            for number in range(2, 14):
                task.delay(number)
        asyncio.run(publish_from_asyncio())

    yield publish
    app.close()


def answer_to(action, params):
    """What SQS answers to the requests of a publisher."""
    if action == "GetQueueUrl":
        return {"QueueUrl": URL}
    if action == "SendMessageBatch":
        done = [{"Id": e["Id"], "MessageId": "1", "MD5OfMessageBody": ""} for e in params["Entries"]]
        return {"Successful": done, "Failed": []}
    assert action == "SendMessage"
    return {"MessageId": "1"}


def messages_in_moto():
    client = boto3.session.Session().client("sqs", "us-east-1")
    url = client.get_queue_url(QueueName="celery")["QueueUrl"]
    attributes = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    return int(attributes["ApproximateNumberOfMessages"])


def test_motos_mock_takes_all_publications(publish):
    for _ in range(2):  # a process runs many tests, and each begins with an account of its own
        with mock_aws():
            publish()
            assert messages_in_moto() == 15


def test_a_replaced_method_of_boto3s_clients_takes_all_publications(publish, monkeypatch):
    """As moto's guide shows for actions that moto does not know."""
    sent = []

    def make_api_call(_self, action, params):
        sent.extend(params.get("Entries", [params] if action == "SendMessage" else []))
        return answer_to(action, params)

    monkeypatch.setattr("botocore.client.BaseClient._make_api_call", make_api_call)
    publish()
    assert len(sent) == 15


def test_a_listener_that_answers_requests_takes_all_publications(publish, monkeypatch):
    sent = []

    def answer(request, **_):
        action, params = request.headers["X-Amz-Target"], json.loads(request.body)
        if isinstance(action, bytes):
            action = action.decode()
        action = action.removeprefix("AmazonSQS.")
        if action == "ListQueues":
            return object()  # nothing reads it
        sent.extend(params.get("Entries", [params] if action == "SendMessage" else []))
        body = json.dumps(answer_to(action, params)).encode()
        return AWSResponse(request.url, 200, {}, SimpleNamespace(stream=BytesIO(body).readlines))

    change_clients(monkeypatch, lambda client: client.meta.events.register("before-send.sqs", answer))
    publish()
    assert len(sent) == 15


def test_a_stubbed_client_gives_the_answers_of_its_stubber(publish, monkeypatch):
    # The stubber expects its requests in this order, however slow the machine is.
    monkeypatch.setattr(sender, "PendingMessages", partial(PendingMessages, 60))
    monkeypatch.setattr(sender, "MAX_SENDERS", 1)
    client = boto3.session.Session().client("sqs", "us-east-1")
    stubber = Stubber(client)
    stubber.add_response("get_queue_url", answer_to("GetQueueUrl", {}))
    for _ in range(2):
        stubber.add_response("send_message", answer_to("SendMessage", {}))
    for size in (10, 2):
        entries = [{"Id": str(number)} for number in range(size)]
        stubber.add_response("send_message_batch", answer_to("SendMessageBatch", {"Entries": entries}))
    stubber.add_response("send_message", answer_to("SendMessage", {}))
    monkeypatch.setattr(boto3.session.Session, "client", lambda *_, **__: client)
    with stubber:
        publish()
        stubber.assert_no_pending_responses()


def change_clients(monkeypatch, change):
    original = boto3.session.Session.client

    def client(*args, **kwargs):
        made = original(*args, **kwargs)
        change(made)
        return made

    monkeypatch.setattr(boto3.session.Session, "client", client)

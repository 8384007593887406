"""The proxy does to calls what the tests of the package will believe it did."""

import contextlib
import http.client

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ConnectionClosedError
from support.faults import error, fail_entries, lose_response, reset_connection


@pytest.fixture
def client(proxy):
    """A client behind the proxy that gives up at the first failure."""
    config = Config(retries={"total_max_attempts": 1}, read_timeout=30)
    with contextlib.closing(boto3.client("sqs", endpoint_url=proxy.url, config=config)) as client:
        yield client


@pytest.fixture
def url(client, queue, proxy):
    url = client.create_queue(QueueName=queue)["QueueUrl"]
    proxy.clear()
    return url


def depth(sqs, queue):
    url = sqs.get_queue_url(QueueName=queue)["QueueUrl"]
    attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"])
    return int(attributes["Attributes"]["ApproximateNumberOfMessages"])


def test_every_call_is_written_down(client, proxy, url, queue):
    sent = client.send_message(QueueUrl=url, MessageBody="hello")
    (call,) = proxy.calls("SendMessage")
    assert (call.queue, call.status) == (queue, 200)
    assert call.request["MessageBody"] == "hello"
    assert call.response["MessageId"] == sent["MessageId"]
    assert call.started <= call.finished
    assert proxy.count("SendMessage", queue) == 1
    assert proxy.count("SendMessage", "another") == 0


def test_the_query_protocol_is_understood(proxy, emulator):
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=30)
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    connection.request("POST", "/", "Action=GetQueueUrl&QueueName=nowhere", form)
    connection.getresponse().read()
    connection.close()
    (call,) = proxy.calls("GetQueueUrl")
    assert call.queue == "nowhere"


def test_a_fault_hits_its_action_its_queue_and_so_many_times(client, proxy, url, queue):
    proxy.inject(error("InternalFailure", 500), "SendMessage", queue="another")
    injection = proxy.inject(error("InternalFailure", 500), "SendMessage", queue=queue, times=2)
    client.receive_message(QueueUrl=url)
    for _ in range(2):
        with pytest.raises(ClientError):
            client.send_message(QueueUrl=url, MessageBody="x")
    client.send_message(QueueUrl=url, MessageBody="x")
    assert injection.hits == 2


@pytest.mark.parametrize(
    ("fault", "error", "arrived"),
    [(lose_response(), ConnectionClosedError, 1), (reset_connection(), BotoCoreError, 0)],
    ids=["a lost response", "a reset connection"],
)
def test_a_lost_response_was_a_success_at_sqs_and_a_reset_connection_never_reached_it(
    client, proxy, sqs, url, queue, fault, error, arrived
):
    proxy.inject(fault, "SendMessage", times=1)
    with pytest.raises(error, match=r"reset|closed"):
        client.send_message(QueueUrl=url, MessageBody="x")
    assert depth(sqs, queue) == arrived
    assert proxy.calls("SendMessage")[0].status is None
    client.send_message(QueueUrl=url, MessageBody="x")
    assert depth(sqs, queue) == arrived + 1


def test_entries_of_a_batch_fail_and_sqs_gets_the_others(client, proxy, sqs, url, queue):
    proxy.inject(fail_entries("InternalError", sender_fault=False, positions=[1]), times=1)
    entries = [{"Id": str(i), "MessageBody": "x"} for i in range(3)]
    partly = client.send_message_batch(QueueUrl=url, Entries=entries)
    assert [entry["Id"] for entry in partly["Successful"]] == ["0", "2"]
    (failed,) = partly["Failed"]
    assert (failed["Id"], failed["Code"], failed["SenderFault"]) == ("1", "InternalError", False)
    assert depth(sqs, queue) == 2
    proxy.inject(fail_entries("AccessDenied"), "SendMessageBatch", times=1)
    wholly = client.send_message_batch(QueueUrl=url, Entries=entries)
    assert len(wholly["Failed"]) == 3
    assert depth(sqs, queue) == 2

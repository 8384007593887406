"""The proxy does to calls what the tests of the package will believe it did."""

from __future__ import annotations

import contextlib
import http.client
import threading
from concurrent.futures import ThreadPoolExecutor

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionClosedError,
    EndpointConnectionError,
    ReadTimeoutError,
)
from support.faults import (
    black_hole,
    error,
    fail_entries,
    hold_request,
    latency,
    lose_response,
    reset_connection,
)


@pytest.fixture
def new_client(proxy):
    """Make clients behind the proxy that give up at the first failure."""
    with contextlib.ExitStack() as clients:

        def new(read_timeout):
            once = {"total_max_attempts": 1}
            config = Config(retries=once, read_timeout=read_timeout, max_pool_connections=30)
            return clients.enter_context(
                contextlib.closing(boto3.client("sqs", endpoint_url=proxy.url, config=config))
            )

        yield new


@pytest.fixture
def client(new_client):
    """One that waits for an answer longer than a long poll takes."""
    return new_client(read_timeout=30)


@pytest.fixture
def url(client, queue, proxy):
    url = client.create_queue(QueueName=queue)["QueueUrl"]
    proxy.clear()
    return url


def depth(sqs, queue):
    url = sqs.get_queue_url(QueueName=queue)["QueueUrl"]
    attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"])
    return int(attributes["Attributes"]["ApproximateNumberOfMessages"])


def test_queue_urls_point_at_the_proxy(client, proxy, url):
    assert url.startswith(proxy.url)


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


def test_long_polls_do_not_block_each_other(client, proxy, url):
    release = threading.Event()
    with ThreadPoolExecutor(10) as pool, proxy.inject(hold_request(release), "ReceiveMessage"):
        polls = [pool.submit(client.receive_message, QueueUrl=url, WaitTimeSeconds=1) for _ in range(10)]
        proxy.wait_for(lambda _: len(proxy.in_flight("ReceiveMessage")) == 10)
        release.set()
        for poll in polls:
            poll.result(30)
    assert proxy.count("ReceiveMessage") == 10


def test_a_call_in_flight_is_seen(client, proxy, url):
    release = threading.Event()
    with ThreadPoolExecutor(1) as pool, proxy.inject(hold_request(release)):
        pool.submit(client.receive_message, QueueUrl=url)
        proxy.wait_for(lambda _: proxy.in_flight("ReceiveMessage"))
        assert proxy.calls() == []
        release.set()
        proxy.wait_for_calls("ReceiveMessage")
    assert proxy.in_flight() == []


def test_an_error_is_what_boto3_reports(client, proxy, url):
    with proxy.inject(error("ThrottlingException", 400, "slow down")), pytest.raises(ClientError) as caught:
        client.send_message(QueueUrl=url, MessageBody="x")
    assert caught.value.response["Error"]["Code"] == "ThrottlingException"
    assert caught.value.response["Error"]["Message"] == "slow down"
    client.send_message(QueueUrl=url, MessageBody="x")
    assert [call.status for call in proxy.calls("SendMessage")] == [400, 200]


def test_a_fault_hits_its_action_its_queue_and_so_many_times(client, proxy, url, queue):
    proxy.inject(error("InternalFailure", 500), "SendMessage", queue="another")
    injection = proxy.inject(error("InternalFailure", 500), "SendMessage", queue=queue, times=2)
    client.receive_message(QueueUrl=url)
    for _ in range(2):
        with pytest.raises(ClientError):
            client.send_message(QueueUrl=url, MessageBody="x")
    client.send_message(QueueUrl=url, MessageBody="x")
    assert injection.hits == 2


def test_a_rate_hits_a_share_of_the_calls(client, proxy, url):
    injection = proxy.inject(error("InternalFailure", 500), rate=0.5)
    for _ in range(40):
        with contextlib.suppress(ClientError):
            client.get_queue_url(QueueName="nowhere")
    assert 10 < injection.hits < 30


def test_the_first_fault_that_answers_wins_and_delays_add_up(client, proxy, url):
    proxy.inject(latency(0.2))
    proxy.inject(hold_request(0.2))
    proxy.inject(error("FirstError"), times=1)
    proxy.inject(error("SecondError"), times=1)
    codes = []
    for _ in range(2):
        with pytest.raises(ClientError) as caught:
            client.send_message(QueueUrl=url, MessageBody="x")
        codes.append(caught.value.response["Error"]["Code"])
    assert codes == ["FirstError", "SecondError"]
    assert all(call.finished - call.started >= 0.4 for call in proxy.calls("SendMessage"))


def test_a_held_request_reaches_sqs_when_the_test_says_so(client, proxy, sqs, url, queue):
    release = threading.Event()
    proxy.inject(hold_request(release), "SendMessage")
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(client.send_message, QueueUrl=url, MessageBody="x")
        proxy.wait_for(lambda _: proxy.in_flight("SendMessage"))
        assert depth(sqs, queue) == 0
        release.set()
        sending.result(30)
    assert depth(sqs, queue) == 1


def test_a_lost_response_was_a_success_at_sqs(client, proxy, sqs, url, queue):
    proxy.inject(lose_response(), "SendMessage", times=1)
    with pytest.raises(ConnectionClosedError):
        client.send_message(QueueUrl=url, MessageBody="x")
    assert depth(sqs, queue) == 1
    assert proxy.calls("SendMessage")[0].status is None


def test_a_reset_connection_never_reached_sqs(client, proxy, sqs, url, queue):
    proxy.inject(reset_connection(), times=1)
    with pytest.raises(BotoCoreError, match=r"reset|closed"):
        client.send_message(QueueUrl=url, MessageBody="x")
    assert depth(sqs, queue) == 0
    client.send_message(QueueUrl=url, MessageBody="x")


def test_a_black_hole_never_answers_until_it_is_cleared(client, new_client, proxy, url):
    with proxy.inject(black_hole()), pytest.raises(ReadTimeoutError):
        new_client(read_timeout=0.5).send_message(QueueUrl=url, MessageBody="x")
    client.send_message(QueueUrl=url, MessageBody="x")


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


def test_a_refusing_proxy_is_down_and_comes_back_on_its_port(client, proxy, url):
    client.send_message(QueueUrl=url, MessageBody="x")
    with ThreadPoolExecutor(1) as pool:
        polling = pool.submit(client.receive_message, QueueUrl=f"{url}", WaitTimeSeconds=20)
        proxy.wait_for(lambda _: proxy.in_flight("ReceiveMessage") or proxy.count("ReceiveMessage"))
        proxy.refuse()
        polling.exception(30)
    with pytest.raises(EndpointConnectionError):
        client.send_message(QueueUrl=url, MessageBody="x")
    proxy.accept()
    client.send_message(QueueUrl=url, MessageBody="x")

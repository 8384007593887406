"""What every implementation of the port to SQS must do: the fake, and boto3 with moto behind it.

Where moto is known to differ from Amazon, tests/unit/aws/test_fake.py asks the fake alone.
"""

from __future__ import annotations

import json
import threading
import time
import uuid

import pytest
from moto.server import ThreadedMotoServer

from celery_sqs_visibility.aws.boto import BotoSQS
from celery_sqs_visibility.aws.client_settings import ClientSettings, frozen_config
from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import OutgoingMessage, ReceiveOptions
from celery_sqs_visibility.errors import (
    QueueDoesNotExistError,
    ReceiptHandleInvalidError,
    RequestRefusedError,
    SQSError,
    UnavailableError,
)
from celery_sqs_visibility.events import SQSRequest, subscribe
from celery_sqs_visibility.policy.quotas import MESSAGE_BYTES

OPTIONS = ReceiveOptions(visibility_timeout=30, system_attributes=("All",), message_attributes=("All",))
BRIEFLY = ReceiveOptions(visibility_timeout=1, system_attributes=("All",))
# What lasts a second lasts longer for who is kept waiting, and never less: clocks differ by so much.
ALMOST_A_SECOND = 0.9


@pytest.fixture(scope="module")
def moto_url():
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()
    server._server.server_close()  # moto leaves the socket to the garbage collector, which complains


@pytest.fixture(scope="module")
def boto_sqs(moto_url):
    keys = {"access_key_id": "key", "secret_access_key": "secret"}
    sqs = BotoSQS(ClientSettings("us-east-1", moto_url, **keys, config=frozen_config({"read_timeout": 30})))
    yield sqs
    sqs.close()


@pytest.fixture(params=["memory", "boto3 on moto"])
def sqs(request):
    return FakeSQS() if request.param == "memory" else request.getfixturevalue("boto_sqs")


def unique(suffix=""):
    return f"q-{uuid.uuid4().hex}{suffix}"


@pytest.fixture
def url(sqs):
    return sqs.create_queue(unique(), {}, {})


def test_a_location_is_where_queues_are(sqs, url):
    location = sqs.location()
    assert location.region == "us-east-1"
    assert url.startswith(location.endpoint)


def send(sqs, url, *bodies, **fields):
    return [sqs.send(url, OutgoingMessage(body, **fields)) for body in bodies]


def receive(sqs, url, limit=10, wait=0, options=OPTIONS):
    return sqs.receive(url, limit, wait, options)


def bodies(messages):
    return [message["Body"] for message in messages]


def handle_of_one(sqs, url, options=OPTIONS):
    send(sqs, url, "task")
    (message,) = receive(sqs, url, options=options)
    return message["ReceiptHandle"]


def test_a_message_arrives_with_its_id_body_and_attributes(sqs, url):
    text = {"DataType": "String", "StringValue": "yes"}
    before = time.time()
    (message_id,) = send(sqs, url, "tâsk", attributes={"urgent": text})
    (message,) = receive(sqs, url)
    assert (message["MessageId"], message["Body"]) == (message_id, "tâsk")
    assert message["MessageAttributes"]["urgent"]["StringValue"] == "yes"
    assert message["MessageAttributes"]["urgent"]["DataType"] == "String"
    attributes = message["Attributes"]
    assert attributes["ApproximateReceiveCount"] == "1"
    assert int(attributes["SentTimestamp"]) / 1000 == pytest.approx(before, abs=60)
    assert int(attributes["ApproximateFirstReceiveTimestamp"]) >= int(attributes["SentTimestamp"])


def test_only_the_attributes_asked_for_come(sqs, url):
    text = {"DataType": "String", "StringValue": "x"}
    send(sqs, url, "task", attributes={"a": text, "b": text})
    (message,) = receive(sqs, url, options=ReceiveOptions(0, ("ApproximateReceiveCount",), ("a",)))
    assert list(message["Attributes"]) == ["ApproximateReceiveCount"]
    assert list(message["MessageAttributes"]) == ["a"]
    (message,) = receive(sqs, url, options=ReceiveOptions(0))
    assert not message.get("MessageAttributes")


def test_no_more_messages_come_than_were_asked_for(sqs, url):
    send(sqs, url, "1", "2", "3")
    assert len(receive(sqs, url, limit=2)) == 2
    assert len(receive(sqs, url, limit=2)) == 1


def test_a_received_message_hides_and_comes_back_with_a_new_handle(sqs, url):
    send(sqs, url, "task")
    asked = time.monotonic()
    (first,) = receive(sqs, url, options=BRIEFLY)
    (second,) = receive(sqs, url, wait=20)
    assert time.monotonic() - asked > ALMOST_A_SECOND
    assert receive(sqs, url) == []
    assert second["MessageId"] == first["MessageId"]
    assert second["ReceiptHandle"] != first["ReceiptHandle"]
    assert second["Attributes"]["ApproximateReceiveCount"] == "2"
    timestamp = "ApproximateFirstReceiveTimestamp"
    assert second["Attributes"][timestamp] == first["Attributes"][timestamp]


def test_the_queues_own_visibility_timeout_is_the_default(sqs):
    url = sqs.create_queue(unique(), {"VisibilityTimeout": "0"}, {})
    send(sqs, url, "task")
    unspecific = ReceiveOptions()
    assert len(receive(sqs, url, options=unspecific)) == len(receive(sqs, url, options=unspecific)) == 1


def test_an_extended_message_stays_hidden(sqs, url):
    handle = handle_of_one(sqs, url, BRIEFLY)
    assert sqs.change_visibility(url, [(handle, 60)]).failed == {}
    assert receive(sqs, url, wait=2) == []


def test_a_message_hidden_for_zero_seconds_is_back_at_once(sqs, url):
    handle = handle_of_one(sqs, url)
    assert sqs.change_visibility(url, [(handle, 0)]).failed == {}
    assert len(receive(sqs, url)) == 1


def test_a_deleted_message_is_gone(sqs, url):
    handle = handle_of_one(sqs, url, ReceiveOptions(0))
    for _ in range(2):
        assert sqs.delete(url, [handle]).failed == {}, "deleting twice is no error"
    assert receive(sqs, url) == []
    assert isinstance(sqs.change_visibility(url, [(handle, 60)]).failed[0], ReceiptHandleInvalidError)


@pytest.mark.parametrize("entries", [0, 11])
def test_a_batch_has_one_to_ten_entries(sqs, url, entries):
    for call in (
        lambda: sqs.delete(url, ["handle"] * entries),
        lambda: sqs.send_batch(url, [OutgoingMessage("task")] * entries),
    ):
        with pytest.raises(RequestRefusedError):
            call()
    assert receive(sqs, url) == []


def test_a_bad_handle_fails_its_own_delete_only(sqs, url):
    send(sqs, url, *"012345678")
    handles = [message["ReceiptHandle"] for message in receive(sqs, url)]
    handles.insert(4, "no such handle")
    failed = sqs.delete(url, handles).failed
    assert list(failed) == [4]
    assert isinstance(failed[4], ReceiptHandleInvalidError)
    assert sqs.queue_attributes(url, ["ApproximateNumberOfMessagesNotVisible"]) == {
        "ApproximateNumberOfMessagesNotVisible": "0"
    }


def test_a_bad_handle_and_a_bad_timeout_fail_their_own_extension_only(sqs, url):
    send(sqs, url, *"01234567")
    changes = [(message["ReceiptHandle"], 60) for message in receive(sqs, url)]
    changes.insert(0, ("no such handle", 60))
    changes.append((changes[1][0], 43201))
    failed = sqs.change_visibility(url, changes).failed
    assert {position: type(error) for position, error in failed.items()} == {
        0: ReceiptHandleInvalidError,
        9: RequestRefusedError,
    }


def test_a_batch_of_ten_sends_ten_as_they_are(sqs, url):
    text = {"DataType": "String", "StringValue": "x"}
    messages = [OutgoingMessage(f"täsk {number}", attributes={"a": text}) for number in range(10)]
    assert sqs.send_batch(url, messages).failed == {}
    received = receive(sqs, url)
    assert {message["Body"] for message in received} == {message.body for message in messages}
    assert received[0]["MessageAttributes"]["a"]["StringValue"] == "x"


def test_a_batch_sends_with_delays_of_its_own(sqs, url):
    sent = time.monotonic()
    sqs.send_batch(url, [OutgoingMessage("now"), OutgoingMessage("later", delay=1)])
    came = bodies(receive(sqs, url))
    assert "now" in came
    if "later" not in came:  # as it is, unless this took a second
        came += bodies(receive(sqs, url, wait=20))
    assert time.monotonic() - sent > ALMOST_A_SECOND
    assert sorted(came) == ["later", "now"]


def test_a_batch_to_a_fifo_queue_keeps_order_and_takes_a_duplicate_for_the_original(sqs):
    url = sqs.create_queue(unique(".fifo"), {"FifoQueue": "true"}, {})
    batch = [OutgoingMessage(n, group_id="a", deduplication_id=n) for n in "123"]
    assert sqs.send_batch(url, batch).failed == {}
    assert sqs.send_batch(url, batch).failed == {}
    assert bodies(receive(sqs, url)) == ["1", "2", "3"]


def test_a_batch_to_send_that_is_too_large_is_refused_as_a_whole(sqs, url):
    with pytest.raises(RequestRefusedError):
        sqs.send_batch(
            url, [OutgoingMessage("x" * (MESSAGE_BYTES // 2)), OutgoingMessage("y" * MESSAGE_BYTES)]
        )
    assert receive(sqs, url) == []


@pytest.mark.parametrize("limit", [0, 11])
def test_a_receive_asks_for_one_to_ten_messages(sqs, url, limit):
    with pytest.raises(RequestRefusedError):
        receive(sqs, url, limit=limit)


def test_a_created_queue_is_found_by_its_name_until_it_is_deleted(sqs):
    name = unique()
    url = sqs.create_queue(name, {"VisibilityTimeout": "77"}, {"team": "a"})
    for timeout in ("77", "78"):  # whoever creates it again gets the existing one
        assert sqs.create_queue(name, {"VisibilityTimeout": timeout}, {}) == url
    assert sqs.queue_url(name) == url
    assert url.endswith(name)
    assert sqs.queue_attributes(url, ["VisibilityTimeout", "RedrivePolicy"]) == {"VisibilityTimeout": "77"}
    sqs.delete_queue(url)
    with pytest.raises(QueueDoesNotExistError):
        sqs.queue_url(name)


def test_an_illegal_queue_name_is_refused(sqs):
    with pytest.raises(RequestRefusedError):
        sqs.create_queue("no.dots", {}, {})


def test_a_missing_queue_is_said_to_be_missing(sqs, url):
    missing = url + "-not"
    calls = [
        lambda: sqs.queue_url(unique()),
        lambda: receive(sqs, missing),
        lambda: send(sqs, missing, "task"),
        lambda: sqs.send_batch(missing, [OutgoingMessage("task")]),
        lambda: sqs.delete(missing, ["handle"]),
        lambda: sqs.change_visibility(missing, [("handle", 1)]),
        lambda: sqs.queue_attributes(missing, ["All"]),
        lambda: sqs.purge(missing),
        lambda: sqs.delete_queue(missing),
    ]
    for call in calls:
        with pytest.raises(QueueDoesNotExistError) as caught:
            call()
        assert caught.value.action


def test_a_purged_queue_is_empty(sqs, url):
    send(sqs, url, "1", "2")
    sqs.purge(url)
    assert receive(sqs, url) == []


def test_a_message_received_too_often_moves_to_the_dead_letter_queue(sqs):
    dead_letters = sqs.create_queue(unique(), {}, {})
    arn = sqs.queue_attributes(dead_letters, ["QueueArn"])["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 2})
    url = sqs.create_queue(unique(), {"RedrivePolicy": policy}, {})
    assert json.loads(sqs.queue_attributes(url, ["RedrivePolicy"])["RedrivePolicy"]) == json.loads(policy)
    (message_id,) = send(sqs, url, "poison")
    at_once = ReceiveOptions(0)
    assert len(receive(sqs, url, options=at_once)) == len(receive(sqs, url, options=at_once)) == 1
    assert receive(sqs, url, options=at_once) == []
    assert [message["MessageId"] for message in receive(sqs, dead_letters)] == [message_id]


def test_a_delay_over_15_minutes_is_refused(sqs, url):
    with pytest.raises(RequestRefusedError):
        send(sqs, url, "task", delay=901)


def test_a_long_poll_brings_a_message_sent_meanwhile(sqs, url):
    sender = threading.Timer(0.3, send, (sqs, url, "task"))
    sender.start()
    started = time.monotonic()
    messages = receive(sqs, url, wait=20)
    sender.join()
    assert bodies(messages) == ["task"]
    assert time.monotonic() - started < 15


def test_a_fifo_queue_keeps_a_groups_next_message_until_the_first_is_done(sqs):
    url = sqs.create_queue(unique(".fifo"), {"FifoQueue": "true"}, {})
    for number in "12":
        send(sqs, url, number, group_id="a", deduplication_id=number)
    send(sqs, url, "other", group_id="b", deduplication_id="3")
    (first,) = receive(sqs, url, limit=1)
    assert (first["Body"], first["Attributes"]["MessageGroupId"]) == ("1", "a")
    assert bodies(receive(sqs, url)) == ["other"]
    sqs.delete(url, [first["ReceiptHandle"]])
    assert bodies(receive(sqs, url)) == ["2"]


def test_a_receive_of_a_fifo_queue_may_have_an_id(sqs):
    url = sqs.create_queue(unique(".fifo"), {"FifoQueue": "true"}, {})
    for group in "ab":
        send(sqs, url, group, group_id=group, deduplication_id=group)
    received = [
        receive(sqs, url, limit=1, options=ReceiveOptions(30, attempt_id=uuid.uuid4().hex)) for _ in range(3)
    ]
    assert list(map(bodies, received)) == [["a"], ["b"], []]


def test_every_request_is_an_event_with_its_outcome(boto_sqs):
    heard = []
    end = subscribe(heard.append, SQSRequest)
    try:
        boto_sqs.create_queue(unique(), {}, {})
        with pytest.raises(QueueDoesNotExistError):
            boto_sqs.queue_url("missing")
    finally:
        end()
    assert [(request.action, request.outcome) for request in heard] == [
        ("CreateQueue", "ok"),
        ("GetQueueUrl", "NonExistentQueue"),
    ]
    assert all(request.seconds > 0 for request in heard)


def test_nobody_at_the_endpoint_is_unavailable():
    nobody = ClientSettings(
        "us-east-1", "http://127.0.0.1:1", access_key_id="key", secret_access_key="secret"
    )
    sqs = BotoSQS(nobody)
    with pytest.raises(UnavailableError) as caught:
        sqs.queue_url("q")
    sqs.close()
    assert (caught.value.action, caught.value.code) == ("GetQueueUrl", "EndpointConnectionError")
    assert not isinstance(caught.value.__cause__, SQSError)

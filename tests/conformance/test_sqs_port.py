"""What every implementation of the port to SQS must do: the fake, and boto3 with moto behind it.

Where moto is known to differ from Amazon, tests/unit/aws/test_fake_queue.py asks the fake alone.
"""

import time
import uuid

import pytest

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
def boto_sqs(emulator):
    keys = {"access_key_id": "key", "secret_access_key": "secret"}
    sqs = BotoSQS(
        ClientSettings("us-east-1", emulator.url, **keys, config=frozen_config({"read_timeout": 30}))
    )
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


@pytest.fixture
def fifo_url(sqs):
    return sqs.create_queue(unique(".fifo"), {"FifoQueue": "true"}, {})


def send(sqs, url, *bodies, **fields):
    return [sqs.send(url, OutgoingMessage(body, **fields)) for body in bodies]


def receive(sqs, url, limit=10, wait=0, options=OPTIONS):
    return sqs.receive(url, limit, wait, options)


def bodies(messages):
    return [message["Body"] for message in messages]


def error_types(result):
    return {position: type(error) for position, error in result.failed.items()}


def test_a_message_arrives_with_its_id_body_and_attributes(sqs, url):
    text = {"DataType": "String", "StringValue": "yes"}
    before = time.time()
    (message_id,) = send(sqs, url, "tâsk", attributes={"urgent": text})
    (message,) = receive(sqs, url)
    assert (message["MessageId"], message["Body"]) == (message_id, "tâsk")
    assert message["MessageAttributes"]["urgent"].items() >= text.items()
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


def test_a_deleted_message_is_gone(sqs, url):
    send(sqs, url, "task")
    (message,) = receive(sqs, url, options=ReceiveOptions(0))
    for _ in range(2):
        assert sqs.delete(url, [message["ReceiptHandle"]]).failed == {}, "deleting twice is no error"
    assert receive(sqs, url) == []
    changed = sqs.change_visibility(url, [(message["ReceiptHandle"], 60)])
    assert error_types(changed) == {0: ReceiptHandleInvalidError}


def test_an_entry_of_a_batch_fails_alone(sqs, url):
    send(sqs, url, *"01234567")
    handles = [message["ReceiptHandle"] for message in receive(sqs, url)]
    changes = [(handle, 60) for handle in handles]
    changed = sqs.change_visibility(url, [("no such handle", 60), *changes, (handles[0], 43201)])
    assert error_types(changed) == {0: ReceiptHandleInvalidError, 9: RequestRefusedError}
    deleted = sqs.delete(url, [*handles[:4], "no such handle", *handles[4:]])
    assert error_types(deleted) == {4: ReceiptHandleInvalidError}
    hidden = "ApproximateNumberOfMessagesNotVisible"
    assert sqs.queue_attributes(url, [hidden]) == {hidden: "0"}


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


def test_a_delay_for_an_eta_is_what_is_left_of_it_when_the_message_is_sent(sqs, url):
    past = OutgoingMessage("past", delay=900, visible_at=time.time() - 1)
    sqs.send(url, past)
    sqs.send_batch(url, [past, OutgoingMessage("later", delay=900, visible_at=time.time() + 60)])
    assert bodies(receive(sqs, url)) == ["past", "past"]


def test_a_batch_to_a_fifo_queue_keeps_order_and_takes_a_duplicate_for_the_original(sqs, fifo_url):
    batch = [OutgoingMessage(n, group_id="a", deduplication_id=n) for n in "123"]
    for _ in range(2):
        assert sqs.send_batch(fifo_url, batch).failed == {}
    assert bodies(receive(sqs, fifo_url)) == ["1", "2", "3"]


TASK = OutgoingMessage("task")
TOO_LARGE = [OutgoingMessage("x" * (MESSAGE_BYTES // 2)), OutgoingMessage("y" * MESSAGE_BYTES)]
REFUSED = {
    "a batch of no deletes": lambda sqs, url: sqs.delete(url, []),
    "a batch of eleven deletes": lambda sqs, url: sqs.delete(url, ["handle"] * 11),
    "a batch of no messages": lambda sqs, url: sqs.send_batch(url, []),
    "a batch of eleven messages": lambda sqs, url: sqs.send_batch(url, [TASK] * 11),
    "a batch that is too large": lambda sqs, url: sqs.send_batch(url, TOO_LARGE),
    "a receive of no messages": lambda sqs, url: receive(sqs, url, limit=0),
    "a receive of eleven messages": lambda sqs, url: receive(sqs, url, limit=11),
    "a delay over 15 minutes": lambda sqs, url: send(sqs, url, "task", delay=901),
    "an illegal queue name": lambda sqs, _url: sqs.create_queue("no.dots", {}, {}),
}


@pytest.mark.parametrize("request_of", REFUSED.values(), ids=REFUSED)
def test_what_no_queue_takes_is_refused_as_a_whole(sqs, url, request_of):
    with pytest.raises(RequestRefusedError):
        request_of(sqs, url)
    assert receive(sqs, url) == []


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


REQUESTS = {
    "queue_url": lambda sqs, _missing: sqs.queue_url(unique()),
    "receive": receive,
    "send": lambda sqs, missing: send(sqs, missing, "task"),
    "send_batch": lambda sqs, missing: sqs.send_batch(missing, [TASK]),
    "delete": lambda sqs, missing: sqs.delete(missing, ["handle"]),
    "change_visibility": lambda sqs, missing: sqs.change_visibility(missing, [("handle", 1)]),
    "queue_attributes": lambda sqs, missing: sqs.queue_attributes(missing, ["All"]),
    "purge": lambda sqs, missing: sqs.purge(missing),
    "delete_queue": lambda sqs, missing: sqs.delete_queue(missing),
}


@pytest.mark.parametrize("request_of", REQUESTS.values(), ids=REQUESTS)
def test_a_missing_queue_is_said_to_be_missing(sqs, url, request_of):
    with pytest.raises(QueueDoesNotExistError) as caught:
        request_of(sqs, url + "-not")
    assert caught.value.action


def test_no_more_messages_come_than_were_asked_for_and_none_of_a_purged_queue(sqs, url):
    send(sqs, url, "1", "2", "3")
    assert len(receive(sqs, url, limit=2)) == 2
    assert len(receive(sqs, url, limit=2)) == 1
    send(sqs, url, "4", "5")
    sqs.purge(url)
    assert receive(sqs, url) == []


def test_a_receive_of_a_fifo_queue_may_have_an_id(sqs, fifo_url):
    for group in "ab":
        send(sqs, fifo_url, group, group_id=group, deduplication_id=group)
    for expected in ["a"], ["b"], []:
        once = ReceiveOptions(30, attempt_id=uuid.uuid4().hex)
        assert bodies(receive(sqs, fifo_url, limit=1, options=once)) == expected


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
    sqs = BotoSQS(ClientSettings("us-east-1", "http://127.0.0.1:1"))
    with pytest.raises(UnavailableError) as caught:
        sqs.queue_url("q")
    sqs.close()
    assert (caught.value.action, caught.value.code) == ("GetQueueUrl", "EndpointConnectionError")
    assert not isinstance(caught.value.__cause__, SQSError)


def test_a_location_is_where_queues_are(sqs, url):
    location = sqs.location()
    assert location.region == "us-east-1"
    assert url.startswith(location.endpoint)


def test_queues_are_listed_by_prefix_over_all_pages(sqs, monkeypatch):
    monkeypatch.setattr("celery_sqs_visibility.aws.boto.LISTED_QUEUES", 2)
    prefix = unique("-")
    made = [sqs.create_queue(f"{prefix}{number}", {}, {}) for number in range(5)]
    assert sorted(sqs.list_queues(prefix)) == sorted(made)
    assert sqs.list_queues(unique()) == []


def test_tags_are_added_replaced_and_removed(sqs):
    url = sqs.create_queue(unique(), {}, {"a": "1", "b": "2"})
    sqs.tag_queue(url, {"b": "3", "c": "4"})
    assert sqs.queue_tags(url) == {"a": "1", "b": "3", "c": "4"}
    sqs.untag_queue(url, ["a", "c", "there is none"])
    assert sqs.queue_tags(url) == {"b": "3"}
    for request in (lambda url: sqs.tag_queue(url, {"a": "1"}), lambda url: sqs.untag_queue(url, ["a"])):
        with pytest.raises(QueueDoesNotExistError):
            request(url + "-missing")

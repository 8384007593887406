"""What every implementation of the port to SNS must do: the tests' fake, and boto3 with moto behind it."""

import uuid

import pytest
from support.fake_topics import FakeSNS

from celery_sqs_visibility.aws.boto import BotoSQS
from celery_sqs_visibility.aws.client_settings import ClientSettings
from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import OutgoingMessage, ReceiveOptions
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.aws.sns import SNS
from celery_sqs_visibility.aws.topics import TAGS, Topic, subscribe
from celery_sqs_visibility.errors import RequestRefusedError, SQSError, UnavailableError

EVERYTHING = ReceiveOptions(30, ("All",), ("All",))
STANDARD = {"FifoTopic": "false"}


@pytest.fixture(params=["memory", "boto3 on moto"])
def site(request):
    """Access to SQS and to SNS."""
    if request.param == "memory":
        sqs = FakeSQS()
        yield sqs, FakeSNS(sqs)
        return
    url = request.getfixturevalue("emulator").url
    settings = ClientSettings("us-east-1", url, access_key_id="key", secret_access_key="secret")
    ends = BotoSQS(settings), SNS(settings)
    yield ends
    for end in ends:
        end.close()


def unique():
    return f"t-{uuid.uuid4().hex}"


def queue(sqs):
    name = unique()
    return Queue(name, sqs.create_queue(name, {}, {}), sqs)


def receive(queue):
    return queue.sqs.receive(queue.url, 10, 0, EVERYTHING)


def test_a_topic_is_created_once(site):
    _, sns = site
    name = unique()
    arn = sns.create_topic(name, STANDARD, TAGS)
    assert arn.endswith(f":{name}")
    assert sns.create_topic(name, STANDARD, TAGS) == arn == sns.create_topic(name, {}, {})


def test_all_subscribed_queues_get_a_message_as_it_is(site):
    sqs, sns = site
    queues = [queue(sqs), queue(sqs)]
    topic = Topic("news", sns.create_topic(unique(), STANDARD, TAGS), sns)
    for each in queues:
        subscribe(each, topic)
    text = {"DataType": "String", "StringValue": "yes"}
    sns.publish(topic.arn, OutgoingMessage('{"body": "täsk"}', {"urgent": text}))
    for each in queues:
        (message,) = receive(each)
        assert message["Body"] == '{"body": "täsk"}'
        assert message["MessageAttributes"]["urgent"].items() >= text.items()


def test_to_subscribe_again_changes_nothing(site):
    sqs, sns = site
    source, topic = queue(sqs), Topic("news", sns.create_topic(unique(), STANDARD, TAGS), sns)
    assert subscribe(source, topic) == subscribe(source, topic)
    ((found,), token) = sns.subscriptions(topic.arn)
    assert (found.protocol, found.endpoint.rpartition(":")[2], token) == ("sqs", source.name, None)


def test_an_unsubscribed_queue_gets_nothing(site):
    sqs, sns = site
    source, topic = queue(sqs), Topic("news", sns.create_topic(unique(), STANDARD, TAGS), sns)
    arn = subscribe(source, topic)
    for _ in range(2):
        sns.unsubscribe(arn)
    sns.publish(topic.arn, OutgoingMessage("{}"))
    assert receive(source) == []


def test_a_topic_that_does_not_exist_is_not_found(site):
    _, sns = site
    with pytest.raises(RequestRefusedError) as caught:
        sns.publish(f"arn:aws:sns:us-east-1:123456789012:{unique()}", OutgoingMessage("{}"))
    assert caught.value.code == "NotFound"


def test_who_cannot_be_reached_is_unavailable():
    sns = SNS(
        ClientSettings("us-east-1", "http://127.0.0.1:9", access_key_id="key", secret_access_key="secret")
    )
    with pytest.raises(UnavailableError, match="no answer from SNS"):
        sns.create_topic("t", {}, {})
    sns.close()
    sns.close()


def test_settings_that_botocore_refuses_are_an_error_of_ours():
    settings = ClientSettings("us-east-1", "no URL", access_key_id="key", secret_access_key="secret")
    with pytest.raises(SQSError, match="no URL"):
        SNS(settings).create_topic("t", {}, {})


def test_a_fifo_topic_keeps_group_and_order_and_leaves_duplicates_out(site):
    sqs, sns = site
    name = f"{unique()}.fifo"
    source = Queue(name, sqs.create_queue(name, {"FifoQueue": "true"}, {}), sqs)
    topic = Topic("news.fifo", sns.create_topic(name, {"FifoTopic": "true"}, TAGS), sns)
    subscribe(source, topic)
    for body, deduplication_id in (("a", "1"), ("b", "2"), ("b", "2")):
        sns.publish(topic.arn, OutgoingMessage(body, group_id="g", deduplication_id=deduplication_id))
    messages = receive(source)
    assert [each["Body"] for each in messages] == ["a", "b"]
    assert {each["Attributes"]["MessageGroupId"] for each in messages} == {"g"}

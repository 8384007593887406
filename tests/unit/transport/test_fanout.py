"""Fanout exchanges over SNS, as kombu's API has them."""

import json
import logging

import pytest
from celery import Celery
from kombu import Consumer, Exchange, Producer, Queue
from kombu.common import Broadcast
from support.kombu_site import declared_queue
from support.processes import SOON, wait_until

from celery_sqs_visibility.aws.client_settings import ClientSettings
from celery_sqs_visibility.aws.topics import Topics
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    MessageTooLargeError,
    RemoteControlError,
    RequestRefusedError,
    UnavailableError,
    UnroutableError,
)
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.predefined import PredefinedTopic
from celery_sqs_visibility.policy.quotas import TOPIC_MESSAGE_BYTES
from celery_sqs_visibility.publish import publish_batch
from celery_sqs_visibility.transport import fanout
from celery_sqs_visibility.transport.fanout import Fanout

NEWS = Exchange("news", type="fanout")
ARN = "arn:aws:sns:eu-west-1:000000000000:news"


@pytest.fixture
def connection(site):
    return site.connect(supports_fanout=True)


@pytest.fixture
def consumer(channel):
    """A consumer of a `Broadcast` queue, with the bodies that it has got."""
    consumer = Consumer(channel, [Broadcast("news")], accept=["json"])
    consumer.bodies = []
    consumer.register_callback(lambda body, message: (consumer.bodies.append(body), message.ack()))
    consumer.consume()
    return consumer


def queue_of(consumer):
    (queue,) = consumer.queues
    return queue.name


def publish(channel, body="a", exchange=NEWS, **options):
    Producer(channel, exchange).publish(body, serializer="json", **options)


def published(site):
    return [arguments[1] for action, arguments in site.sns.calls if action == "Publish"]


def test_all_consumers_get_what_is_published(site, connection, consumer):
    other = site.connect(supports_fanout=True, wait_time_seconds=2)  # another process
    publish(other.channel(), "hello")
    connection.drain_events(timeout=SOON)
    assert consumer.bodies == ["hello"]
    name = queue_of(consumer).replace(".", "-")
    wait_until(lambda: site.counts(name) == (0, 0, 0), SOON, "the message to be deleted")


def test_a_message_goes_out_as_kombu_sends_it(site, channel):
    publish(
        channel, "hello", message_attributes={"plain": 1, "typed": {"DataType": "Number", "StringValue": "2"}}
    )
    (message,) = published(site)
    body = json.loads(message.body)
    assert body["properties"]["delivery_info"]["exchange"] == "news"
    assert message.attributes == {
        "plain": {"DataType": "String", "StringValue": "1"},
        "typed": {"DataType": "Number", "StringValue": "2"},
    }
    assert (message.group_id, message.deduplication_id) == (None, None)


def test_a_fifo_topic_gets_group_and_deduplication_id(site, channel):
    exchange = Exchange("news.fifo", type="fanout")
    publish(channel, exchange=exchange)
    publish(channel, exchange=exchange, MessageGroupId="g", MessageDeduplicationId="d")
    first, second = published(site)
    assert first.group_id == "default"
    assert first.deduplication_id
    assert (second.group_id, second.deduplication_id) == ("g", "d")


def test_who_only_publishes_makes_a_topic_and_no_queue(site, channel):
    Broadcast("news")(channel).declare()
    publish(channel)
    assert site.sns.actions() == ["CreateTopic", "Publish"]
    assert "CreateQueue" not in site.actions()


def test_what_a_task_sends_to_its_own_broadcast_queue_is_a_broadcast_still(connection, consumer):
    seen = []
    consumer.callbacks[:] = [lambda _body, message: (seen.append(message.is_broadcast), message.ack())]
    publish(consumer.channel)
    connection.drain_events(timeout=SOON)
    Producer(consumer.channel).publish("b", serializer="json", routing_key=queue_of(consumer))
    connection.drain_events(timeout=SOON)
    assert seen == [True, True]


def test_the_queue_is_subscribed_once_and_ends_with_its_consumer(site, consumer, caplog):
    name = queue_of(consumer).replace(".", "-")
    assert site.exists(name)
    consumer.consume()
    assert site.sns.actions().count("Subscribe") == 1
    consumer.cancel()
    assert not site.exists(name)
    assert site.sns.subscribed == {}
    assert "has no queues that expire" not in caplog.text


def test_a_queue_that_has_a_name_of_its_own_stays_with_its_subscriptions(site, channel):
    queue = Broadcast("news", queue="web-1")
    with Consumer(channel, [queue]):
        pass
    assert site.exists("web-1")
    assert len(site.sns.subscribed) == 1
    queue(channel).delete()
    assert not site.exists("web-1")
    assert site.sns.subscribed == {}


def test_a_queue_may_be_bound_to_several_exchanges(site, channel, connection):
    queue = declared_queue(channel, "q")
    for name in ("news", "alerts"):
        exchange = Exchange(name, type="fanout")(channel)
        exchange.declare()
        queue.bind_to(exchange)
    bodies = []
    with Consumer(channel, [queue], callbacks=[lambda body, message: (bodies.append(body), message.ack())]):
        publish(channel, 1)
        publish(channel, 2, Exchange("alerts", type="fanout"))
        while len(bodies) < 2:
            connection.drain_events(timeout=SOON)
    assert sorted(bodies) == [1, 2]


@pytest.fixture
def stale_policies(site, monkeypatch):
    """SQS tells the policy of a minute ago, in which nothing is; the policies that were written."""
    written = []
    answer, write = site.sqs.queue_attributes, site.sqs.set_queue_attributes
    monkeypatch.setattr(
        site.sqs, "queue_attributes", lambda *args: {**answer(*args), "Policy": '{"Statement": []}'}
    )
    monkeypatch.setattr(
        site.sqs, "set_queue_attributes", lambda url, new: (written.append(new["Policy"]), write(url, new))
    )
    return written


def test_the_policy_lets_in_all_topics_of_a_queue_though_sqs_tells_an_old_one(channel, stale_policies):
    queue = declared_queue(channel, "q")

    def consume(*names):
        for name in names:
            exchange = Exchange(name, type="fanout")(channel)
            exchange.declare()
            queue.bind_to(exchange)
        with Consumer(channel, [queue]):
            pass

    consume("news", "alerts")
    consume("later")
    assert all(f":{name}" in policy for policy in stale_policies for name in ("news", "alerts"))
    assert ":later" in stale_policies[-1]


def test_a_producer_of_celery_need_not_declare_the_exchange(site, channel):
    app = Celery("sender", set_as_current=False)
    app.conf.task_queues = [Broadcast("news")]
    assert app.amqp.queues
    Producer(channel).publish("a", exchange="news", routing_key="celery")
    with pytest.raises(UnroutableError):
        Producer(channel).publish("a", exchange="nobodys", routing_key="celery")
    assert len(published(site)) == 1
    app.close()


@pytest.mark.parametrize(("name", "kind"), [("celery.pidbox", "fanout"), ("celeryev", "topic")])
def test_celerys_own_exchanges_cost_nothing(site, channel, name, kind):
    exchange = Exchange(name, type=kind)
    publish(channel, exchange=exchange, routing_key="worker.online")
    with pytest.raises(RemoteControlError):
        Consumer(channel, [Queue("own", exchange, "#")])
    assert site.sns.calls == []


def test_in_a_block_of_publish_batch_a_broadcast_goes_out_at_once(site, channel):
    app = Celery("sender", set_as_current=False)
    app.connection_for_write = lambda: site.connect(supports_fanout=True)
    with publish_batch(app):
        Producer(channel).publish("queued", routing_key="q")
        publish(channel, "broadcast")
        assert len(published(site)) == 1
        assert "SendMessageBatch" not in site.actions()
    assert "SendMessageBatch" in site.actions()
    app.close()


def test_a_message_beyond_snss_limit_is_refused_with_its_size(site, channel):
    site.sns.failures["Publish"] = RequestRefusedError("Message too long", code="InvalidParameter")
    with pytest.raises(
        MessageTooLargeError, match=r"'\S+' has 2\d\d,\d{3} bytes .* takes fewer: 262,144 unless"
    ):
        publish(channel, "x" * (TOPIC_MESSAGE_BYTES * 3 // 4))


@pytest.mark.parametrize("size", [1, TOPIC_MESSAGE_BYTES * 3])
def test_another_refusal_keeps_its_sentence(site, channel, size):
    """Also that of a message which a topic with a larger MaximumMessageSize takes."""
    site.sns.failures["Publish"] = RequestRefusedError("no such thing", code="InvalidParameter")
    with pytest.raises(RequestRefusedError, match=r"^no such thing$"):
        publish(channel, "x" * size)


def test_more_than_ten_message_attributes_are_refused_since_sns_would_drop_the_message(site, channel):
    with pytest.raises(RequestRefusedError, match="has 11 attributes"):
        publish(channel, message_attributes=dict.fromkeys(map(str, range(11)), "x"))
    assert published(site) == []


def test_a_deleted_topic_is_an_error_that_says_so_and_is_made_anew(site, channel):
    publish(channel)
    site.sns.topics.clear()
    with pytest.raises(RequestRefusedError, match=r"was deleted, .* restart the workers"):
        publish(channel)
    publish(channel)
    assert site.sns.actions().count("CreateTopic") == 2


def test_a_publication_is_tried_again_as_the_policy_says(site, connection):
    site.sns.failures["Publish"] = UnavailableError("down")
    producer = Producer(connection)
    policy = {"max_retries": 2, "interval_start": 0, "interval_step": 0}
    with pytest.raises(Exception, match="down"):
        producer.publish("a", exchange=NEWS, declare=[NEWS], retry=True, retry_policy=policy)
    assert len(published(site)) == 3


@pytest.mark.parametrize("action", ["Subscribe", "CreateTopic"])
def test_a_consumer_without_a_right_hears_which(site, channel, action):
    site.sns.failures[action] = AccessDeniedError("denied")
    with (
        pytest.raises(AccessDeniedError, match=rf"allow .*sns:{action}"),
        Consumer(channel, [Broadcast("news")]),
    ):
        pass


def test_a_subscription_that_is_refused_names_queue_and_topic(site, channel):
    site.sns.failures["Subscribe"] = RequestRefusedError("already exists with different attributes")
    with pytest.raises(
        RequestRefusedError, match=r"queue 'bcast.* cannot be subscribed to topic arn.*attributes"
    ):
        Consumer(channel, [Broadcast("news")]).consume()


def test_of_a_predefined_topic_only_publish_is_needed(site, channel, caplog):
    site.sns.topics[ARN] = {}, {}
    context = channel.context
    topics = Topics(site.sns, str, {"news": PredefinedTopic(ARN)}, lambda _: site.sns)
    context.fanout = Fanout(topics, context.queues)
    for action in ("CreateTopic", "Subscribe", "ListSubscriptionsByTopic"):
        site.sns.failures[action] = AccessDeniedError("denied")
    publish(channel)
    with Consumer(channel, [Broadcast("news")]):
        pass
    assert "subscribe it yourself, with raw message delivery, or allow sqs:GetQueueAttributes" in caplog.text
    assert site.sns.actions() == ["Publish", "Subscribe"]


def test_a_subscription_that_cannot_be_ended_is_logged(site, consumer, caplog):
    site.sns.failures["Unsubscribe"] = AccessDeniedError("denied")
    consumer.cancel()
    assert "so its subscription stays" in caplog.text
    assert not site.exists(queue_of(consumer).replace(".", "-"))


@pytest.mark.parametrize(
    ("endpoint", "of_sns"),
    [
        (None, None),
        ("http://localhost:4566", "http://localhost:4566"),
        ("https://sqs.eu-west-1.amazonaws.com", None),
        ("https://vpce-1.sqs.eu-west-1.vpce.amazonaws.com", None),
    ],
)
def test_an_emulators_endpoint_is_snss_too_and_amazons_is_not(endpoint, of_sns):
    assert fanout._endpoint_of_sns(ClientSettings("eu-west-1", endpoint)) == of_sns


def test_a_predefined_topic_is_asked_in_its_own_region_with_its_own_keys(channel):
    exchanges = {"news": {"arn": ARN, "access_key_id": "k", "secret_access_key": "s"}}
    options = Options.parse(
        {"supports_fanout": True, "predefined_exchanges": exchanges, "region": "us-west-2"}
    )
    topics = fanout.topics_of(ClientSettings("us-west-2"), options)
    settings = topics.find("news").sns.settings
    assert (settings.region, settings.access_key_id) == ("eu-west-1", "k")


def test_the_worker_deletes_its_broadcast_queues_at_its_end(site, connection, consumer, caplog):
    caplog.set_level(logging.INFO)
    connection.transport.for_worker = True
    consumer.cancel()
    name = queue_of(consumer).replace(".", "-")
    assert site.exists(name), "it may connect anew"
    connection.transport.context.end_broadcasts()
    assert not site.exists(name)
    assert site.sns.subscribed == {}

"""Exchanges that SQS cannot have are refused, with a sentence."""

import pytest
from celery import Celery
from kombu import Consumer, Exchange, Producer, Queue, binding
from kombu.common import Broadcast

from celery_sqs_visibility.transport.routing import UnroutableError


def test_a_broadcast_queue_is_neither_declared_nor_consumed(site, channel):
    sentence = r"exchange 'news' is of type 'fanout'.*Set the transport option supports_fanout"
    with pytest.raises(UnroutableError, match=sentence):
        Broadcast("news")(channel).declare()
    with pytest.raises(UnroutableError, match=sentence):
        Consumer(channel, [Broadcast("news")])
    assert "CreateQueue" not in site.actions()


@pytest.mark.parametrize("kind", ["fanout", "topic", "headers", "x-delayed-message"])
def test_to_publish_to_another_exchange_than_a_direct_one_is_refused(site, channel, kind):
    exchange = Exchange("logs", type=kind)
    sentence = f"exchange 'logs' is of type '{kind}'"
    with pytest.raises(UnroutableError, match=sentence):
        Producer(channel, exchange).publish("a", routing_key="a.b", declare=[exchange])
    with pytest.raises(UnroutableError, match=sentence):
        Producer(channel).publish("a", exchange=exchange, routing_key="a.b", declare=[exchange])
    assert "SendMessage" not in site.actions()


def test_a_message_that_no_queue_would_get_is_refused(site, channel):
    sentence = "no queue is bound to exchange 'media' with routing key 'video'"
    with pytest.raises(UnroutableError, match=sentence):
        Producer(channel).publish("a", exchange="media", routing_key="video")
    Queue("q", Exchange("media"), "video")(channel).declare()
    Producer(channel).publish("a", exchange="media", routing_key="video")
    assert site.counts() == (1, 0, 0)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("celery.pidbox", "fanout"),
        ("mine.pidbox", "fanout"),
        ("reply.celery.pidbox", "direct"),
        ("celeryev", "topic"),
        ("our-events", "topic"),
    ],
)
def test_celerys_own_exchanges_are_let_through(site, channel, name, kind):
    app = Celery("events", set_as_current=False)
    app.conf.event_exchange = "our-events"
    assert app.conf.event_exchange
    exchange = Exchange(name, type=kind)
    Producer(channel).publish({}, exchange=exchange, routing_key="worker.online", declare=[exchange])
    assert "SendMessage" not in site.actions()
    app.close()


def test_a_route_by_exchange_and_routing_key_finds_the_queue_that_the_settings_bind(site, channel):
    app = Celery("routed", set_as_current=False)
    app.conf.task_queues = [
        Queue("films", Exchange("media"), "film"),
        Queue("more", bindings=[binding(Exchange("media"), "more"), binding(Exchange("media"), "film")]),
        Queue("others", Exchange("media", type="topic"), "topic"),
    ]
    app.conf.task_routes = {"watch": {"exchange": "media", "routing_key": "film"}}
    app.connection_for_write = lambda *_, **__: site.connect()
    app.send_task("watch", connection=site.connect())
    assert site.counts("films") == site.counts("more") == (1, 0, 0)
    with pytest.raises(UnroutableError, match="no queue is bound to exchange 'media'"):
        Producer(channel).publish("a", exchange="media", routing_key="topic")
    app.close()

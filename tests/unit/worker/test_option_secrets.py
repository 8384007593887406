"""What `celery inspect stats` shows of the transport options."""

from __future__ import annotations

from types import SimpleNamespace

from celery.worker.consumer.connection import Connection
from support.app import make_app

from celery_sqs_visibility.worker.bootsteps import Deliveries

URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/q"

OPTIONS = {
    "region": "eu-west-1",
    "exclusive_store": "redis://:PASSWORD@host/0",
    "predefined_queues": {"q": {"url": URL, "access_key_id": "KEY", "secret_access_key": "SECRET"}},
}


def test_stats_show_options_without_their_secrets():
    app = make_app("shown", {"broker_transport_options": OPTIONS}, set_as_current=False)
    with app.connection_for_read() as connection:
        parent = SimpleNamespace(connection=connection, steps=[object.__new__(Connection)])
        broker = object.__new__(Deliveries).info(parent)["broker"]
    shown = broker["transport_options"]
    assert shown["region"] == "eu-west-1"
    assert shown["exclusive_store"] == "redis://:**@host/0"
    assert shown["predefined_queues"]["q"] == {
        "url": URL,
        "access_key_id": "********",
        "secret_access_key": "********",
    }
    assert "transport" in broker
    app.close()


def test_without_a_connection_nothing_is_said():
    parent = SimpleNamespace(connection=None, steps=[object.__new__(Connection)])
    assert object.__new__(Deliveries).info(parent) is None

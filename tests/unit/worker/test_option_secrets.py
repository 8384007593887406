"""What `celery inspect stats`, `conf` and `report` show of settings and transport options."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from celery.app import utils
from celery.worker.consumer.connection import Connection
from support.app import make_app

from celery_sqs_visibility.worker.bootsteps import Deliveries
from celery_sqs_visibility.worker.option_secrets import mask_settings

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
    assert shown["exclusive_store"] == "redis://:********@host/0"
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


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("broker_url", "sqs://AKIA:SEC/RET+x@", "sqs://AKIA:********@"),
        ("broker_url", "sqs://AKIA:/SECRET@host:80//", "sqs://AKIA:********@host:80//"),
        ("broker_url", "sqs://", "sqs://"),
        ("broker_url", "sqs://?exclusive_store=redis%3A%2F%2F%3APW%40host&region=eu-west-1",
         "sqs://?exclusive_store=redis://:********@host&region=eu-west-1"),
        ("broker_url", ["sqs://A:S@", "sqs://B:T@"], ["sqs://A:********@", "sqs://B:********@"]),
        ("result_backend", "redis://:PW@host/1", "redis://:********@host/1"),
        ("result_backend", None, None),
        ("redis_password", "PW", "********"),
        ("broker_transport_options", {"client-config": {"proxies": {"https": "http://u:PW@proxy:1"}}},
         {"client-config": {"proxies": {"https": "http://u:********@proxy:1"}}}),
    ],
)  # fmt: skip
def test_celery_shows_settings_without_their_secrets(monkeypatch, name, value, shown):
    monkeypatch.setattr(utils, "filter_hidden_settings", utils.filter_hidden_settings)
    mask_settings()
    app = make_app("shown", set_as_current=False)
    app.conf[name] = value
    assert app.conf.table()[name] == shown
    assert "SEC/RET" not in utils.bugreport(app)
    app.close()

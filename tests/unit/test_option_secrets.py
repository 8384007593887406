"""What `celery inspect stats`, `conf` and `report` show of settings and transport options."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from celery.app import utils
from celery.worker.consumer.connection import Connection
from support.app import make_app
from support.worker import environment

from celery_sqs_visibility.option_secrets import mask_settings
from celery_sqs_visibility.worker.bootsteps import Deliveries

URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/q"

OPTIONS = {
    "region": "eu-west-1",
    "coordination_store": "redis://:PASSWORD@host/0",
    "predefined_queues": {"q": {"url": URL, "access_key_id": "KEY", "secret_access_key": "SECRET"}},
}


def test_stats_show_options_without_their_secrets():
    app = make_app("shown", {"broker_transport_options": OPTIONS}, set_as_current=False)
    with app.connection_for_read() as connection:
        parent = SimpleNamespace(connection=connection, steps=[object.__new__(Connection)])
        broker = object.__new__(Deliveries).info(parent)["broker"]
    shown = broker["transport_options"]
    assert shown["region"] == "eu-west-1"
    assert shown["coordination_store"] == "redis://:********@host/0"
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
        ("broker_url", "sqs://?coordination_store=redis%3A%2F%2F%3APW%40host&region=eu-west-1",
         "sqs://?coordination_store=redis://:********@host&region=eu-west-1"),
        ("broker_url", ["sqs://A:S@", "sqs://B:T@"], ["sqs://A:********@", "sqs://B:********@"]),
        ("failover_brokers", {"sqs://A:S@"}, ["sqs://A:********@"]),
        ("failover_brokers", frozenset({"sqs://A:S@"}), ["sqs://A:********@"]),
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


SHOWING = """
from {module} import app
{first}
print({shown})
"""


@pytest.mark.parametrize(
    ("first", "shown"),
    [
        ("", "app.bugreport()"),
        ("app.connection().transport", "app.conf.humanize()"),
        ("from celery_sqs_visibility import VisibilityTask", "app.conf.humanize()"),
        ("app.connection().transport", "app.conf.table()"),
    ],
    ids=["report", "a producer", "tasks", "table"],
)
def test_a_process_that_is_no_worker_shows_no_secrets(first, shown):
    proxies = {"https": "http://user:PASSWORD@proxy:1", "http": "user:PASSWORD@proxy:1"}
    options = {**OPTIONS, "client-config": {"proxies": proxies}}
    env = environment({"broker_transport_options": options})
    code = SHOWING.format(module="work", first=first, shown=shown)
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.count("user:********@proxy:1") == 2
    assert "PASSWORD" not in done.stdout
    assert "SECRET" not in done.stdout

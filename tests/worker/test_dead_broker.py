"""Nobody takes connections where SQS should be: kombu's connections say so, as those of other brokers do."""

from __future__ import annotations

import pytest
from kombu.exceptions import OperationalError

from celery_sqs_visibility.aws import boto
from celery_sqs_visibility.errors import UnreachableError

AT_ONCE = {"interval_start": 0, "interval_step": 0, "max_retries": 1}


@pytest.fixture
def app(make_site, monkeypatch):
    # Another test of this process may have reached the same port within the last seconds.
    monkeypatch.setattr(boto, "REACHED_SECONDS", 0)
    return make_site(**AT_ONCE).app


def test_a_connection_to_a_closed_port_fails_and_to_an_open_one_does_not(app, proxy):
    app.connection().ensure_connection(max_retries=1)
    app.connection().connect()
    assert app.connection().default_channel.connection is not None
    assert proxy.calls() == []
    app.close()


@pytest.mark.parametrize(
    ("connect", "error"),
    [
        (lambda connection: connection.connect(), ConnectionError),
        (lambda connection: connection.connection, UnreachableError),
        (lambda connection: connection.ensure_connection(max_retries=1, interval_start=0), OperationalError),
        (lambda connection: connection.default_channel, OperationalError),
    ],
    ids=["connect", "connection", "ensure_connection", "default_channel"],
)
def test_a_dead_broker_does_not_look_alive(app, proxy, connect, error):
    proxy.refuse()
    with app.connection() as connection:
        with pytest.raises(error, match=rf"SQS cannot be reached at 127.0.0.1:{proxy.port}: .*refused"):
            connect(connection)
        assert not connection.connected
        proxy.accept()
        connect(connection)
        assert connection.connected
    assert proxy.calls() == []


def test_a_connection_is_waited_for_while_the_broker_comes(app, proxy):
    proxy.refuse()
    told = []

    def errback(error, _interval):
        told.append(error)
        proxy.accept()

    with app.connection() as connection:
        connection.ensure_connection(errback, interval_start=0)
        assert connection.connected
    assert [type(error) for error in told] == [UnreachableError]

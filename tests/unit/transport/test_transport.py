"""A connection shows where it leads, and no secret."""

from __future__ import annotations

import pytest
from kombu import Connection
from kombu.asynchronous import Hub

HERE = "http://127.0.0.1:4566"


def connect(url, **options):
    return Connection(url, transport="celery_sqs_visibility", transport_options=options)


# With regions that no other test has: clients are shared by equal settings.
@pytest.mark.parametrize(
    ("url", "endpoint", "shown"),
    [
        (None, "", "sqs://eu-west-3"),
        ("sqs://", "", "sqs://eu-west-3"),
        ("sqs://AKIA:hush%2F@", "", "sqs://AKIA:**@eu-west-3"),
        ("sqs://AKIA:hush%2F@127.0.0.1:1//", HERE, "sqs://AKIA:**@127.0.0.1:1"),
        ("sqs://AK%2FIA:hush%2F@", HERE, "sqs://AK%2FIA:**@127.0.0.1:4566"),
    ],
)
def test_a_connection_is_shown_by_its_region_or_endpoint(monkeypatch, url, endpoint, shown):
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", endpoint)
    with connect(url, region="eu-west-3") as connection:
        assert connection.as_uri() == shown
        assert repr(connection).startswith(f"<Connection: {shown} at ")


def test_with_its_password_it_is_a_url_to_connect_by():
    with connect("sqs://AKIA:hush%2F@127.0.0.1:1//", region="eu-west-3") as connection:
        url = connection.as_uri(include_password=True)
        with connect(url) as same:
            assert same.transport.broker == connection.transport.broker


def test_predefined_queues_in_several_regions_are_all_shown():
    predefined = {
        region: {"url": f"https://sqs.{region}.amazonaws.com/1/q", "region": region}
        for region in ("eu-west-3", "eu-central-2")
    }
    with connect("sqs://", predefined_queues=predefined) as connection:
        assert connection.as_uri() == "sqs://eu-central-2,eu-west-3"


def test_settings_that_are_no_good_are_left_to_the_first_request():
    with connect("sqs://", region="not a region") as connection:
        assert connection.as_uri() == "sqs://"


def test_a_connection_knows_when_the_loop_that_consumes_came_round_last():
    with connect("sqs://", region="eu-west-3") as connection:
        transport, hub = connection.transport, Hub()
        made = transport.buffer.turned_at
        with pytest.raises(TimeoutError):
            transport.drain_events(connection, timeout=0)
        drained = transport.buffer.turned_at
        transport.register_with_event_loop(connection, hub)
        next(hub.create_loop())
        assert made < drained < transport.buffer.turned_at
        turned = transport.buffer.turned_at
        transport.close_connection(connection)
        assert not hub.on_tick
        hub.close()
        assert transport.buffer.turned_at == turned

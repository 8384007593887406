"""Connections: how they are shown, how many are pooled, and which publications they repeat."""

import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest
from celery import Celery
from kombu import Connection, pools
from kombu.asynchronous import Hub
from kombu.exceptions import OperationalError
from support.kombu_site import declared_queue
from support.processes import SOON

from celery_sqs_visibility.aws import attempts
from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.delivery.publish import retries
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    CredentialsRefusedError,
    ThrottledError,
    UnreachableError,
)
from celery_sqs_visibility.transport import broker_clients, broker_context, transport
from celery_sqs_visibility.transport.transport import CELERYS_POOL_LIMIT, POOL_LIMIT, raise_default_limit

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
        made = transport.buffer.looped_at
        with pytest.raises(TimeoutError):
            transport.drain_events(connection, timeout=0)
        drained = transport.buffer.looped_at
        transport.register_with_event_loop(connection, hub)
        next(hub.create_loop())
        assert made < drained < transport.buffer.looped_at
        looped = transport.buffer.looped_at
        transport.close_connection(connection)
        assert not hub.on_tick
        hub.close()
        assert transport.buffer.looped_at == looped


@pytest.fixture(autouse=True)
def _pools():
    pools.reset()
    pools.set_limit(CELERYS_POOL_LIMIT)
    yield
    pools.reset()
    pools.set_limit(CELERYS_POOL_LIMIT)


class Gathering(FakeSQS):
    """Answers when all threads are sending."""

    def __init__(self):
        super().__init__()
        self.all_here = threading.Barrier(1)

    def send(self, *arguments):
        self.all_here.wait(SOON)
        return super().send(*arguments)


@pytest.fixture
def sqs(monkeypatch):
    sqs = Gathering()
    monkeypatch.setattr(broker_clients, "shared_sqs", lambda _settings: sqs)
    monkeypatch.setattr(broker_context, "_contexts", {})
    monkeypatch.setattr(broker_context, "SharedRequests", lambda outgoing: outgoing)
    return sqs


def make_app(**settings):
    app = Celery("producer", broker="sqs://", broker_transport="celery_sqs_visibility", set_as_current=False)
    app.conf.broker_transport_options = {"region": "us-east-1"}
    app.conf.update(settings)
    return app


def test_more_threads_than_celerys_limit_publish_at_the_same_time(sqs):
    app = make_app()
    app.send_task("first")
    sqs.all_here = threading.Barrier(CELERYS_POOL_LIMIT + 6)
    with ThreadPoolExecutor(CELERYS_POOL_LIMIT + 6) as threads:
        list(threads.map(app.send_task, ["task"] * (CELERYS_POOL_LIMIT + 6)))
    assert len([action for action, _ in sqs.calls if action == "SendMessage"]) == CELERYS_POOL_LIMIT + 7


@pytest.mark.parametrize("limit", [0, 1, 9, 11, 100])
def test_a_limit_of_the_users_stays(sqs, limit):
    app = make_app(broker_pool_limit=limit)
    app.send_task("first")
    assert app.pool.limit == app.amqp.producer_pool.limit == limit


def test_pools_of_other_transports_stay(sqs):
    other = Celery("other", broker="memory://", set_as_current=False)
    other.send_task("first")
    app = make_app()
    app.send_task("first")
    raise_default_limit(type(app.connection_for_write().transport))
    assert (other.pool.limit, app.pool.limit) == (CELERYS_POOL_LIMIT, POOL_LIMIT)


SLOW_DOWN = ThrottledError("slow down")


@pytest.fixture(autouse=True)
def intervals(monkeypatch):
    """The failures in a row before each of kombu's retries, of which none waits."""
    intervals = []
    monkeypatch.setattr(transport, "retry_interval", lambda _, failures: intervals.append(failures) or 0)
    monkeypatch.setattr(attempts, "pause", lambda _failures: 0)
    return intervals


def test_at_the_end_of_a_run_an_attempt_is_made_again_until_the_error_or_the_deadline_has_passed(monkeypatch):
    def end_of_run():
        retries.set_deadline()
        assert retries.until_deadline(Mock(side_effect=[SLOW_DOWN, SLOW_DOWN, "sent"])) == "sent"
        with pytest.raises(AccessDeniedError):
            retries.until_deadline(Mock(side_effect=[AccessDeniedError("no"), "sent"]))
        retries.clear_deadline()
        with pytest.raises(ThrottledError):
            retries.until_deadline(Mock(side_effect=[SLOW_DOWN, "sent"]))
        monkeypatch.setattr(retries, "END_OF_RUN_SECONDS", 0.01)
        retries.set_deadline()
        with pytest.raises(ThrottledError):
            retries.until_deadline(Mock(side_effect=SLOW_DOWN))

    contextvars.copy_context().run(end_of_run)


def test_at_the_end_of_a_run_a_first_connection_is_waited_for(site):
    def publish(connection):
        site.sqs.fail_next("connect", UnreachableError("refused"), UnreachableError("refused"))
        return connection.default_channel

    def end_of_run():
        retries.set_deadline()
        assert publish(site.connect(max_retries=0))
        retries.clear_deadline()
        with pytest.raises(OperationalError, match="refused"):
            publish(site.connect(max_retries=0))

    contextvars.copy_context().run(end_of_run)


def test_a_connection_is_reached_once_and_not_again_for_what_it_publishes(site, connection, monkeypatch):
    looks = []
    monkeypatch.setattr(site.sqs, "reach", lambda: looks.append(1))
    producer = connection.Producer()
    for _ in range(3):
        producer.publish("a", routing_key="q")
    assert len(looks) == 1


@pytest.mark.parametrize("error", [SLOW_DOWN, CredentialsRefusedError("rotated")], ids=repr)
def test_kombu_waits_longer_before_each_retry_of_a_publication(site, connection, intervals, error):
    for _ in range(2):
        for _ in range(2):
            site.sqs.fail_next("SendMessage", error)
        connection.Producer().publish("a", routing_key="q", retry=True, retry_policy={"max_retries": 3})
    assert intervals == [1, 2, 1, 2]
    assert site.counts() == (2, 0, 0)


def test_a_publication_that_was_given_up_has_the_next_one_wait_for_nothing(site, connection, intervals):
    for most in (1, 3):
        for _ in range(most + 1):
            site.sqs.fail_next("SendMessage", SLOW_DOWN)
        with pytest.raises(OperationalError):
            connection.Producer().publish(
                "a", routing_key="q", retry=True, retry_policy={"max_retries": most}
            )
        connection.collect()
    connection.Producer().publish("a", routing_key="q")
    assert intervals == [1, 1, 2, 3]


def test_a_declaration_that_fails_counts_as_an_attempt(site, connection, channel):
    site.sqs.fail_next("GetQueueUrl", SLOW_DOWN)
    with pytest.raises(ThrottledError):
        declared_queue(channel)
    assert channel.context.publish_attempts(connection).failed == 1


def test_a_refusal_is_not_published_again(site, connection, intervals):
    site.sqs.fail_next("SendMessage", AccessDeniedError("no"))
    with pytest.raises(OperationalError):
        connection.Producer().publish("a", routing_key="q", retry=True, retry_policy={"max_retries": 3})
    assert intervals == []


def test_a_channel_whose_connection_was_closed_still_publishes(connection, channel):
    declared_queue(channel)
    connection.collect()  # as kombu does for another producer, before a retry
    channel.basic_publish(channel.prepare_message("{}"), exchange="", routing_key="q")

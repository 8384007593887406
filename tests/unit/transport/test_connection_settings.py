"""The broker URL is read with its secret as it is, and a wrong one is refused without showing it.

A wrong name in a retry policy concerns its publication alone; one among the user's options is refused.
"""

import subprocess
import sys

import pytest
from celery import Celery
from kombu import Connection

from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.transport import connection_settings
from celery_sqs_visibility.transport.connection_settings import BrokerURL, note_accepted, options_as_written

SECRET = "ab/c+d#e?f@g:h%"
QUOTED = "ab%2Fc%2Bd%23e%3Ff%40g%3Ah%25"
WAIT = ("wait_time_seconds", "5")
KEYS = {"userid": "AKIA", "password": SECRET}
POLICY = {"max_retries": 3, "interval_start": 0, "interval_step": 0.2, "interval_max": 1}


def broker(url=None, **settings):
    return Connection(url, transport="celery_sqs_visibility", **settings).transport.broker


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        (None, {}),
        ("sqs://", {}),
        ("SQS://", {}),
        ("celery_sqs_visibility://", {}),
        ("celery-sqs-visibility://", {}),
        ("sqs://localhost//", {}),
        ("sqs://localhost:4566", {"host": "localhost", "port": 4566}),
        ("sqs://[::1]:4566/", {"host": "[::1]", "port": 4566}),
        (f"sqs://AKIA:{QUOTED}@", KEYS),
        ("sqs://AKIA:ab/c+d#e?f@g:h%25@", KEYS),
        (f"sqs://AKIA:{QUOTED}@SQS.example:99//", {**KEYS, "host": "sqs.example", "port": 99}),
        ("https://sqs.eu-west-1.amazonaws.com", {"options": (("region", "eu-west-1"),)}),
        (
            f"https://AKIA:{QUOTED}@sqs.cn-north-1.amazonaws.com.cn/",
            {**KEYS, "options": (("region", "cn-north-1"),)},
        ),
        ("https://sqs.test:99", {"host": "sqs.test", "port": 99, "options": (("is_secure", "true"),)}),
        ("http://localhost:4566", {"host": "localhost", "port": 4566, "options": (("is_secure", "false"),)}),
        ("sqs://?region=eu-west-1&wait_time_seconds=5", {"options": (("region", "eu-west-1"), WAIT)}),
    ],
)
def test_the_parts_of_a_url(url, parts):
    assert broker(url) == BrokerURL(**parts)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("https://sqs.eu-west-1.amazonaws.com", "sqs://eu-west-1"),
        ("https://sqs.test:99", "sqs://sqs.test:99"),
    ],
)
def test_an_app_may_have_an_endpoint_as_broker_url(url, place):
    with Celery("w", broker=url, set_as_current=False) as app:
        app.conf.broker_transport = "celery_sqs_visibility"
        with app.connection_for_write() as connection:
            (location,) = connection.transport.context.queues.locations()
            assert location.endpoint.startswith("https://sqs.")
            assert connection.as_uri().rstrip("/") == place


@pytest.mark.parametrize("url", [None, "sqs://", "sqs://localhost", "sqs://AKIA@"])
def test_credentials_may_be_settings_of_their_own(url):
    assert broker(url, **KEYS) == BrokerURL(**KEYS)


@pytest.mark.parametrize("url", ["localhost", "sqs://localhost"])
def test_a_port_may_be_a_setting_of_its_own(url):
    assert broker(url, port=4566) == BrokerURL("localhost", 4566)


def test_a_connection_is_cloned_with_all_parts():
    connection = Connection("celery-sqs-visibility://AKIA:a/b@127.0.0.1:99//")
    before = connection.transport.broker
    assert connection.clone().transport.broker == before == BrokerURL("127.0.0.1", 99, "AKIA", "a/b")


def test_options_of_the_url_win():
    url = "celery-sqs-visibility://?region=eu-west-1&wait_time_seconds=5"
    connection = Connection(url, transport_options={"region": "us-east-1", "polling_interval": 2})
    usable = Connection(connection.as_uri(include_password=True))
    for transport in (connection.transport, connection.clone().transport, usable.transport):
        assert (transport.options.region, transport.options.wait_time_seconds) == ("eu-west-1", 5)
    assert connection.transport.options.polling_interval == 2


def test_a_url_is_shown_without_its_secret():
    connection = Connection("sqs://AKIA:a/b@127.0.0.1:99//", transport="celery_sqs_visibility")
    assert connection.as_uri().rstrip("/") == "sqs://AKIA:**@127.0.0.1:99"
    usable = connection.as_uri(include_password=True)
    assert usable == "celery-sqs-visibility://AKIA:a%2Fb@127.0.0.1:99//"
    assert Connection(usable).transport.broker == connection.transport.broker
    info = {name: value for name, value in connection.info().items() if name != "password"}
    assert "a/b" not in f"{info} {connection.host} {connection.transport.broker!r}"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://:hush@cache", "begins with 'redis://' and not with sqs://"),
        ("AKIA:hush@sqs://host", "begins with no scheme and not with sqs://"),
        ("sqs://AKIA:1?hush", "a query that is not a list of transport options"),
        ("sqs://AKIA:hush/hush", "no '@' after the secret"),
        ("sqs://AKIA:a@host:hush//", "a port that is not a number from 1 to 65535"),
        ("sqs://AKIA:hush@host:65536//", "a port that is not a number from 1 to 65535"),
        ("sqs://[::1]hush", "a port that is not a number from 1 to 65535"),
        ("sqs://AKIA@", "credentials without a secret"),
        ("sqs://:hush@", "credentials without a key"),
    ],
)
def test_a_wrong_url_is_refused_without_its_secret(url, said):
    with pytest.raises(OptionError) as caught:
        broker(url)
    assert said in str(caught.value)
    assert "hush" not in str(caught.value)


def test_a_scheme_with_underscores_does_and_that_is_said():
    with pytest.raises(OptionError, match="write celery-sqs-visibility://, or sqs:// together with"):
        Connection("celery_sqs_visibility://AKIA:hush@")


def test_kombu_alone_knows_the_transport_by_the_import_that_the_quickstart_names():
    script = (
        "import celery_sqs_visibility.alias, kombu; kombu.Connection('celery-sqs-visibility://').transport"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.fixture
def no_connection_yet(monkeypatch):
    monkeypatch.setattr(connection_settings, "_accepted", set())


@pytest.mark.usefixtures("no_connection_yet")
@pytest.mark.parametrize(
    "policy",
    [{**POLICY, "interval_stop": 1}, {"max_retries": 3, "timeout": 5}, {"max_retries": 1, "stop": 1}],
)
def test_a_wrong_key_of_a_retry_policy_refuses_that_publication_alone(site, connection, caplog, policy):
    (name,) = policy.keys() - POLICY.keys()
    note_accepted(connection.transport_options)  # which the fixture has forgotten
    for _ in range(2):
        with pytest.raises(TypeError, match=name):
            connection.Producer().publish("a", routing_key="q", retry=True, retry_policy=policy)
        connection.collect()
        connection.Producer().publish("b", routing_key="q", retry=True)
    assert site.counts() == (2, 0, 0)
    assert f"unknown transport option {name!r} is ignored" in caplog.text


@pytest.mark.usefixtures("no_connection_yet")
def test_so_does_one_of_the_first_publication_of_the_process(caplog):
    options = {"wait_time_seconds": 1}
    assert options_as_written({**options, **POLICY, "interval_stop": 1}) == {**options, **POLICY}


@pytest.mark.usefixtures("no_connection_yet")
@pytest.mark.parametrize(
    "options",
    [
        {"interval_stop": 1},
        {**POLICY, "visibilty_timeout": 600},
        {"visibilty_timeout": 600, **POLICY},
        {"max_retries": 3, "interval_stop": 1},
    ],
)
def test_an_option_that_the_user_misspelt_is_refused(options):
    with pytest.raises(OptionError, match="unknown transport option"):
        _ = Connection("sqs://", transport="celery_sqs_visibility", transport_options=options).transport

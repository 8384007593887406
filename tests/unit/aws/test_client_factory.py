"""Settings become clients: botocore's real configuration, regions and endpoints."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest
from botocore.awsrequest import AWSResponse
from botocore.loaders import JSONFileLoader
from botocore.validate import ParamValidationDecorator

from celery_sqs_visibility.aws.client_factory import (
    KEEPALIVE,
    Purpose,
    _warn_of_default_region,
    new_client,
    unknown_region,
)
from celery_sqs_visibility.aws.client_settings import ClientSettings, frozen_config

KEYS = {"access_key_id": "AKIAEXAMPLE", "secret_access_key": "hush"}


def config_of(purpose, **options):
    return new_client(ClientSettings(**KEYS, config=frozen_config(options)), purpose).meta.config


@pytest.mark.parametrize(
    ("purpose", "read_timeout"),
    [
        (Purpose.RECEIVE, 30),
        (Purpose.SHORT_POLL, 6),
        (Purpose.SETTLE, 4),
        (Purpose.PUBLISH, 5),
        (Purpose.PUBLISH_BATCH, 10),
    ],
)
@pytest.mark.parametrize("mode", [None, "adaptive"])
def test_each_purpose_has_its_timeouts_and_one_attempt(monkeypatch, purpose, read_timeout, mode):
    if mode is not None:
        monkeypatch.setenv("AWS_RETRY_MODE", mode)  # for the whole machine
    config = config_of(purpose)
    assert (config.connect_timeout, config.read_timeout) == (3, read_timeout)
    assert config.retries.items() >= {"total_max_attempts": 1, "mode": "standard"}.items()


def test_a_second_client_reads_no_description_of_services_again(monkeypatch):
    new_client(ClientSettings(**KEYS), Purpose.RECEIVE)
    read = []
    load_file = JSONFileLoader.load_file

    def note(self, path):
        read.append(path)
        return load_file(self, path)

    monkeypatch.setattr(JSONFileLoader, "load_file", note)
    new_client(ClientSettings(**KEYS), Purpose.SETTLE)
    assert read == []


@pytest.mark.parametrize("purpose", Purpose)
def test_every_client_is_fit_for_many_threads(purpose):
    options = frozen_config({"max_pool_connections": 5, "user_agent_extra": "mine"})
    client = new_client(ClientSettings(**KEYS, config=options), purpose)
    config = client.meta.config
    assert config.max_pool_connections == 64
    assert config.tcp_keepalive is True
    assert not isinstance(client._serializer, ParamValidationDecorator), "it costs CPU on every call"
    assert config.user_agent_extra.startswith("mine celery_sqs_visibility/")


def test_the_users_options_win_where_they_may():
    options = {
        "connect_timeout": 2,
        "read_timeout": 7,
        "max_pool_connections": 99,
        "retries": {"mode": "adaptive", "total_max_attempts": 8},
        "proxies": {"https": "http://proxy:3128"},
    }
    settle, publish = config_of(Purpose.SETTLE, **options), config_of(Purpose.PUBLISH, **options)
    assert (settle.connect_timeout, settle.read_timeout) == (publish.connect_timeout, publish.read_timeout)
    assert (settle.connect_timeout, settle.read_timeout, settle.max_pool_connections) == (2, 7, 99)
    assert settle.proxies == {"https": "http://proxy:3128"}
    assert publish.retries == {"mode": "adaptive", "total_max_attempts": 8}
    assert settle.retries["total_max_attempts"] == 1, "the settler retries by entry, against the deadline"


@pytest.mark.parametrize(
    ("purpose", "given", "used"),
    [
        (Purpose.RECEIVE, 5, 30),  # never cut off
        (Purpose.RECEIVE, 60, 60),
        (Purpose.RECEIVE, None, 30),  # never endless
        (Purpose.SHORT_POLL, 1, 6),
        (Purpose.SHORT_POLL, 60, 6),  # soon over
        (Purpose.SHORT_POLL, None, 6),
    ],
)
def test_a_polls_timeout_is_not_all_the_users(purpose, given, used):
    assert config_of(purpose, read_timeout=given).read_timeout == used


@pytest.mark.parametrize("purpose", Purpose)
def test_the_kernel_asks_whether_a_silent_peer_is_there(purpose):
    client = new_client(ClientSettings(**KEYS), purpose)
    options = client._endpoint.http_session._manager.connection_pool_kw["socket_options"]
    assert (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1) in options
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):  # Linux has them all
            assert (socket.IPPROTO_TCP, getattr(socket, name), value) in options


def region_of(settings=None):
    return new_client(settings or ClientSettings(**KEYS), Purpose.SETTLE).meta.region_name


def test_the_region_comes_from_settings_profile_environment_and_then_kombus_default(monkeypatch, tmp_path):
    assert region_of() == "us-east-1"
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    assert region_of() == "eu-north-1"
    (tmp_path / "config").write_text("[default]\nregion = eu-west-3\n")
    assert region_of() == "eu-west-3"
    assert region_of(ClientSettings("ap-south-1", **KEYS)) == "ap-south-1"


@pytest.fixture
def warnings(caplog):
    """Those of a process that has given none."""
    _warn_of_default_region.cache_clear()
    yield caplog
    _warn_of_default_region.cache_clear()


@pytest.mark.parametrize("endpoint", [None, "https://vpce-1.sqs.eu-west-1.vpce.amazonaws.com"])
def test_a_region_that_nobody_configured_is_warned_of_once_a_process(warnings, endpoint):
    for purpose in Purpose:
        new_client(ClientSettings(endpoint_url=endpoint, **KEYS), purpose)
    (warning,) = warnings.messages
    assert warning.startswith("no AWS region is configured: queues are looked for in us-east-1")
    assert (
        "set the transport option 'region', AWS_DEFAULT_REGION, or the region of the AWS profile" in warning
    )


@pytest.mark.parametrize("name", ["AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL_SQS"])
def test_a_region_that_is_configured_or_does_not_matter_is_not_warned_of(warnings, monkeypatch, name):
    monkeypatch.setenv(name, "http://127.0.0.1:1" if "URL" in name else "us-east-1")
    region_of()
    assert warnings.messages == []


def endpoint_of(settings):
    return new_client(settings, Purpose.SETTLE).meta.endpoint_url


def test_the_endpoint_comes_from_settings_environment_and_then_botocore(monkeypatch):
    assert endpoint_of(ClientSettings(**KEYS)) == "https://sqs.us-east-1.amazonaws.com"
    assert endpoint_of(ClientSettings(**KEYS, use_ssl=False)) == "http://sqs.us-east-1.amazonaws.com"
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", "http://localhost:4566")
    assert endpoint_of(ClientSettings(**KEYS)) == "http://localhost:4566"
    assert endpoint_of(ClientSettings(endpoint_url="http://localhost:1", **KEYS)) == "http://localhost:1"


@pytest.mark.parametrize("region", ["nowhere-1", "us-eats-1"])
def test_an_unknown_region_is_named_with_the_nearest(region):
    error = unknown_region(new_client(ClientSettings(region, **KEYS), Purpose.SETTLE))
    assert repr(region) in str(error)
    assert "The nearest is" in str(error)


@pytest.mark.parametrize(
    "settings",
    [ClientSettings("eu-west-1", **KEYS), ClientSettings("nowhere-1", "http://127.0.0.1:1", **KEYS)],
)
def test_a_region_that_is_known_or_does_not_make_the_endpoint_is_not_the_reason(settings):
    assert unknown_region(new_client(settings, Purpose.SETTLE)) is None


def test_an_app_id_of_the_environment_is_told(monkeypatch):
    monkeypatch.setenv("AWS_SDK_UA_APP_ID", "billing")
    client = new_client(ClientSettings("eu-west-1", **KEYS), Purpose.SETTLE)
    agents = []

    def answer(request, **_):
        agents.append(request.headers["User-Agent"])
        return AWSResponse(request.url, 200, {}, SimpleNamespace(stream=lambda: [b"{}"]))

    client.meta.events.register("before-send.sqs", answer)
    client.list_queues()
    assert b"app/billing" in agents[0]

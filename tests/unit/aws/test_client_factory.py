"""Settings become clients: botocore's real configuration, regions, endpoints, and credentials of roles."""

import socket
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from botocore.awsrequest import AWSResponse
from botocore.loaders import JSONFileLoader
from botocore.validate import ParamValidationDecorator
from support.faults import Answer, json_answer
from support.proxy import FaultProxy

from celery_sqs_visibility.aws.boto import BotoSQS
from celery_sqs_visibility.aws.client_factory import (
    KEEPALIVE,
    ClientPurpose,
    _warn_of_default_region,
    new_client,
    renewal_times,
    unknown_region,
)
from celery_sqs_visibility.aws.client_settings import ClientSettings, frozen_config
from celery_sqs_visibility.errors import AccessDeniedError

KEYS = {"access_key_id": "AKIAEXAMPLE", "secret_access_key": "hush"}


#: A read timeout that the user does not set; `None` is one that the user sets.
UNSET = object()


def client_of(purpose=ClientPurpose.SETTLE, region=None, endpoint_url=None, *, use_ssl=True, **options):
    config = frozen_config(options)
    return new_client(ClientSettings(region, endpoint_url, **KEYS, use_ssl=use_ssl, config=config), purpose)


@pytest.mark.parametrize(
    ("purpose", "given", "used"),
    [
        (ClientPurpose.RECEIVE, UNSET, 30),
        (ClientPurpose.SHORT_POLL, UNSET, 6),
        (ClientPurpose.SETTLE, UNSET, 4),
        (ClientPurpose.PUBLISH, UNSET, 5),
        (ClientPurpose.PUBLISH_BATCH, UNSET, 10),
        (ClientPurpose.SETTLE, 7, 7),
        (ClientPurpose.PUBLISH, 7, 7),
        (ClientPurpose.RECEIVE, 5, 30),  # never cut off
        (ClientPurpose.RECEIVE, 60, 60),
        (ClientPurpose.RECEIVE, None, 30),  # never endless
        (ClientPurpose.SHORT_POLL, 1, 6),
        (ClientPurpose.SHORT_POLL, 60, 6),  # soon over
        (ClientPurpose.SHORT_POLL, None, 6),
        (ClientPurpose.EXTEND_SOON, 60, 1.5),  # in time for another try
    ],
)
@pytest.mark.parametrize("mode", [None, "adaptive"])
def test_each_purpose_has_its_timeouts_and_one_attempt(monkeypatch, purpose, given, used, mode):
    if mode is not None:
        monkeypatch.setenv("AWS_RETRY_MODE", mode)  # for the whole machine
    config = client_of(purpose, **({} if given is UNSET else {"read_timeout": given})).meta.config
    assert (config.connect_timeout, config.read_timeout) == (min(3, used), used)
    assert config.retries.items() >= {"total_max_attempts": 1, "mode": "standard"}.items()


def test_a_second_client_reads_no_description_of_services_again(monkeypatch):
    client_of(ClientPurpose.RECEIVE)
    read = []
    load_file = JSONFileLoader.load_file

    def note(self, path):
        read.append(path)
        return load_file(self, path)

    monkeypatch.setattr(JSONFileLoader, "load_file", note)
    client_of(ClientPurpose.SETTLE)
    assert read == []


@pytest.mark.parametrize("purpose", ClientPurpose)
def test_every_client_is_fit_for_many_threads_and_silent_peers(purpose):
    client = client_of(purpose, max_pool_connections=5, user_agent_extra="mine")
    config = client.meta.config
    assert config.max_pool_connections == 64
    assert config.tcp_keepalive is True
    assert not isinstance(client._serializer, ParamValidationDecorator), "it costs CPU on every call"
    assert config.user_agent_extra.startswith("mine celery_sqs_visibility/")
    options = client._endpoint.http_session._manager.connection_pool_kw["socket_options"]
    assert (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1) in options
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):  # Linux has them all
            assert (socket.IPPROTO_TCP, getattr(socket, name), value) in options


@pytest.mark.parametrize(
    ("purpose", "retries"),
    [
        (
            ClientPurpose.SETTLE,
            {"mode": "standard", "total_max_attempts": 1},
        ),  # by entry, against the deadline
        (ClientPurpose.PUBLISH, {"mode": "adaptive", "total_max_attempts": 8}),
    ],
)
def test_the_users_options_win_where_they_may(purpose, retries):
    wanted = {"mode": "adaptive", "total_max_attempts": 8}
    proxies = {"https": "http://proxy:3128"}
    client = client_of(purpose, connect_timeout=2, max_pool_connections=99, retries=wanted, proxies=proxies)
    config = client.meta.config
    assert (config.connect_timeout, config.max_pool_connections, config.proxies) == (2, 99, proxies)
    assert config.retries == retries


def test_the_region_comes_from_settings_profile_environment_and_then_kombus_default(monkeypatch, tmp_path):
    assert client_of().meta.region_name == "us-east-1"
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    assert client_of().meta.region_name == "eu-north-1"
    (tmp_path / "config").write_text("[default]\nregion = eu-west-3\n")
    assert client_of().meta.region_name == "eu-west-3"
    assert client_of(region="ap-south-1").meta.region_name == "ap-south-1"


def test_the_endpoint_comes_from_settings_environment_and_then_botocore(monkeypatch):
    assert client_of().meta.endpoint_url == "https://sqs.us-east-1.amazonaws.com"
    assert client_of(use_ssl=False).meta.endpoint_url == "http://sqs.us-east-1.amazonaws.com"
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", "http://localhost:4566")
    assert client_of().meta.endpoint_url == "http://localhost:4566"
    assert client_of(endpoint_url="http://localhost:1").meta.endpoint_url == "http://localhost:1"


@pytest.mark.parametrize("region", ["nowhere-1", "us-eats-1"])
def test_an_unknown_region_that_makes_the_endpoint_is_named_with_the_nearest(region):
    error = unknown_region(client_of(region=region))
    assert repr(region) in str(error)
    assert "The nearest is" in str(error)
    assert unknown_region(client_of(region=region, endpoint_url="http://127.0.0.1:1")) is None
    assert unknown_region(client_of(region="eu-west-1")) is None


def test_an_app_id_of_the_environment_is_told(monkeypatch):
    monkeypatch.setenv("AWS_SDK_UA_APP_ID", "billing")
    client = client_of()
    agents = []

    def answer(request, **_):
        agents.append(request.headers["User-Agent"])
        return AWSResponse(request.url, 200, {}, SimpleNamespace(stream=lambda: [b"{}"]))

    client.meta.events.register("before-send.sqs", answer)
    client.list_queues()
    assert b"app/billing" in agents[0]


@pytest.fixture
def warnings(caplog):
    """Those of a process that has given none."""
    _warn_of_default_region.cache_clear()
    yield caplog
    _warn_of_default_region.cache_clear()


@pytest.mark.parametrize("endpoint", [None, "https://vpce-1.sqs.eu-west-1.vpce.amazonaws.com"])
def test_a_region_that_nobody_configured_is_warned_of_once_a_process(warnings, endpoint):
    for purpose in ClientPurpose:
        client_of(purpose, endpoint_url=endpoint)
    (warning,) = warnings.messages
    assert warning.startswith("no AWS region is configured: queues are looked for in us-east-1")
    assert (
        "set the transport option 'region', AWS_DEFAULT_REGION, or the region of the AWS profile" in warning
    )


@pytest.mark.parametrize("name", ["AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL_SQS"])
def test_a_region_that_is_configured_or_does_not_matter_is_not_warned_of(warnings, monkeypatch, name):
    monkeypatch.setenv(name, "http://127.0.0.1:1" if "URL" in name else "us-east-1")
    client_of()
    assert warnings.messages == []


ROLE = "arn:aws:iam::123456789012:role/worker"
ASSUMED = Answer(
    200,
    b"<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>AKIAROLE</AccessKeyId><SecretAccessKey>s"
    b"</SecretAccessKey><SessionToken>tok-en</SessionToken><Expiration>2999-01-01T00:00:00Z</Expiration>"
    b"</Credentials></AssumeRoleResult></AssumeRoleResponse>",
)
REFUSED = Answer(403, b"<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>")


@pytest.fixture
def proxy():
    with FaultProxy("http://127.0.0.1:9") as proxy:  # nothing is forwarded
        proxy.inject(lambda *_: json_answer(200, {"QueueUrl": "u"}), "GetQueueUrl")
        yield proxy


@pytest.fixture
def make_sqs(proxy, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", "http://sts.invalid")
    config = frozen_config({"proxies": {"http": proxy.url}})
    made = []

    def make(**role):
        settings = ClientSettings("eu-west-1", "http://sqs.invalid", **KEYS, config=config, **role)
        made.append(BotoSQS(settings))
        return made[-1]

    yield make
    for sqs in made:
        sqs.close()


@pytest.fixture
def sqs(make_sqs):
    return make_sqs(role_arn=ROLE)


def test_a_role_is_assumed_at_the_first_request_and_kept_until_it_is_due(proxy, sqs):
    with proxy.inject(lambda *_: ASSUMED, "AssumeRole"):
        for _ in range(2):
            sqs.queue_url("q")
    assert [call.action for call in proxy.calls()] == ["AssumeRole", "GetQueueUrl", "GetQueueUrl"]
    role = proxy.calls()[0].request
    assert (role["RoleArn"], role["RoleSessionName"], role["DurationSeconds"]) == (ROLE, "Celery", "900")


def lasting(seconds):
    """An answer of STS whose credentials end so many seconds from now."""
    end = datetime.now(UTC) + timedelta(seconds=seconds)
    return replace(ASSUMED, body=ASSUMED.body.replace(b"2999-01-01T00:00:00Z", end.isoformat().encode()))


def test_each_role_has_its_external_id_and_is_renewed_by_itself_before_its_end(proxy, make_sqs):
    seconds = {ROLE: 100, ROLE + "-2": 3600}  # of the first, 100 of 900 are left

    def answer(request, *_):
        return lasting(seconds[request.parameters["RoleArn"]])

    with proxy.inject(answer, "AssumeRole"):
        roles = [make_sqs(role_arn=ROLE, role_external_id="42"), make_sqs(role_arn=ROLE + "-2")]
        for sqs in roles * 2:
            sqs.queue_url("q")
    asked = [(call.request["RoleArn"], call.request.get("ExternalId")) for call in proxy.calls("AssumeRole")]
    assert asked == [(ROLE, "42"), (ROLE + "-2", None), (ROLE, "42")]


def test_a_role_that_may_not_be_assumed_is_named(proxy, sqs):
    with (
        proxy.inject(lambda *_: REFUSED, "AssumeRole"),
        pytest.raises(
            AccessDeniedError, match="GetQueueUrl needs AssumeRole, which was answered AccessDenied"
        ),
    ):
        sqs.queue_url("q")
    assert proxy.count("GetQueueUrl") == 0


@pytest.mark.parametrize(
    ("seconds", "buffer", "expected"),
    [
        (900, 0, (180, 60)),
        (3600, 600, (720, 600)),
        (900, 800, (850, 800)),
        (900, 900, (180, 60)),  # as kombu: a buffer as long as the life of the token is none
        (900, -5, (180, 60)),
    ],
)
def test_a_role_is_renewed_early_but_not_at_every_request(seconds, buffer, expected):
    settings = ClientSettings(role_arn=ROLE, role_seconds=seconds, role_buffer_seconds=buffer)
    assert renewal_times(settings) == expected

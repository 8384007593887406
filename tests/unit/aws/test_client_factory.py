"""Settings become clients: botocore's real configuration, endpoints, roles, sharing and forks."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
from botocore.awsrequest import AWSResponse
from botocore.loaders import JSONFileLoader
from botocore.validate import ParamValidationDecorator
from moto.server import ThreadedMotoServer

from celery_sqs_visibility.aws import shared as access
from celery_sqs_visibility.aws.boto import BotoSQS, unknown_region
from celery_sqs_visibility.aws.client_factory import (
    KEEPALIVE,
    ClientSettings,
    Purpose,
    frozen_config,
    new_client,
)
from celery_sqs_visibility.aws.roles import renewal_times
from celery_sqs_visibility.errors import ClockSkewError, CredentialsRefusedError, RequestRefusedError

KEYS = {"access_key_id": "AKIAEXAMPLE", "secret_access_key": "hush"}
ROLE = "arn:aws:iam::123456789012:role/worker"


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(monkeypatch, tmp_path):
    for name in ("REGION", "DEFAULT_REGION", "PROFILE", "ENDPOINT_URL", "ENDPOINT_URL_SQS"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def config_of(purpose, **options):
    return new_client(ClientSettings(**KEYS, config=frozen_config(options)), purpose).meta.config


@pytest.mark.parametrize(
    ("purpose", "read_timeout", "retries"),
    [
        (Purpose.RECEIVE, 30, {"total_max_attempts": 1, "mode": "standard"}),
        (Purpose.GLANCE, 6, {"total_max_attempts": 1, "mode": "standard"}),
        (Purpose.SETTLE, 4, {"total_max_attempts": 1, "mode": "standard"}),
        (Purpose.PUBLISH, 5, {"total_max_attempts": 1, "mode": "standard"}),
    ],
)
def test_each_purpose_has_its_timeouts_and_attempts(purpose, read_timeout, retries):
    config = config_of(purpose)
    assert (config.connect_timeout, config.read_timeout) == (3, read_timeout)
    assert config.retries.items() >= retries.items()


def test_what_makes_one_attempt_is_not_slowed_down_by_a_setting_for_the_whole_machine(monkeypatch):
    monkeypatch.setenv("AWS_RETRY_MODE", "adaptive")
    assert config_of(Purpose.SETTLE).retries["mode"] == "standard"


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


@pytest.mark.parametrize(("given", "used"), [(5, 30), (60, 60), (None, 30)])
def test_a_long_poll_is_never_cut_off_and_never_endless(given, used):
    assert config_of(Purpose.RECEIVE, read_timeout=given).read_timeout == used


@pytest.mark.parametrize("given", [1, 60, None])
def test_a_short_poll_that_gets_no_answer_is_soon_over(given):
    assert config_of(Purpose.GLANCE, read_timeout=given).read_timeout == 6


@pytest.mark.parametrize("purpose", Purpose)
def test_the_kernel_asks_whether_a_silent_peer_is_there(purpose):
    client = new_client(ClientSettings(**KEYS), purpose)
    options = client._endpoint.http_session._manager.connection_pool_kw["socket_options"]
    assert (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1) in options
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):  # Linux has them all
            assert (socket.IPPROTO_TCP, getattr(socket, name), value) in options


def test_settings_with_nested_options_are_hashable_and_equal_by_value():
    options = [
        {"retries": {"mode": "standard", "max_attempts": 2}, "client_cert": ["cert", "key"]},
        {"client_cert": ("cert", "key"), "retries": {"max_attempts": 2, "mode": "standard"}},
    ]
    one, other = (ClientSettings(config=frozen_config(each)) for each in options)
    assert one == other
    assert hash(one) == hash(other)


def test_secrets_stay_out_of_repr():
    config = frozen_config({"proxies": {"https": "http://user:pass@proxy"}})
    settings = ClientSettings("eu-west-1", **KEYS, session_token="tok-en", config=config)
    shown = repr(settings) + repr(BotoSQS(settings))
    assert "eu-west-1" in shown
    for secret in ("AKIAEXAMPLE", "hush", "tok-en", "pass@"):
        assert secret not in shown


def region_of(settings=None):
    return new_client(settings or ClientSettings(**KEYS), Purpose.SETTLE).meta.region_name


def test_the_region_comes_from_settings_profile_environment_and_then_kombus_default(monkeypatch, tmp_path):
    assert region_of() == "us-east-1"
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    assert region_of() == "eu-north-1"
    (tmp_path / "config").write_text("[default]\nregion = eu-west-3\n")
    assert region_of() == "eu-west-3"
    assert region_of(ClientSettings("ap-south-1", **KEYS)) == "ap-south-1"


def endpoint_of(settings):
    return new_client(settings, Purpose.SETTLE).meta.endpoint_url


def test_the_endpoint_comes_from_settings_environment_and_then_botocore(monkeypatch):
    assert endpoint_of(ClientSettings(**KEYS)) == "https://sqs.us-east-1.amazonaws.com"
    assert endpoint_of(ClientSettings(**KEYS, use_ssl=False)) == "http://sqs.us-east-1.amazonaws.com"
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", "http://localhost:4566")
    assert endpoint_of(ClientSettings(**KEYS)) == "http://localhost:4566"
    assert endpoint_of(ClientSettings(endpoint_url="http://localhost:1", **KEYS)) == "http://localhost:1"


@pytest.mark.parametrize(
    "settings",
    [
        ClientSettings(endpoint_url="not a url", **KEYS),
        ClientSettings("not a region", **KEYS),
        ClientSettings(config=frozen_config({"no_such_option": 1}), **KEYS),
    ],
    ids=["endpoint", "region", "option"],
)
def test_settings_that_cannot_work_are_refused(settings):
    with pytest.raises(RequestRefusedError) as caught:
        BotoSQS(settings).queue_url("q")
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("role", [None, ROLE])
def test_missing_credentials_are_said_to_be_missing(role):
    settings = ClientSettings(endpoint_url="http://127.0.0.1:1", role_arn=role)
    with pytest.raises(CredentialsRefusedError):
        BotoSQS(settings).queue_url("q")


def test_a_role_is_assumed_at_the_first_request_and_kept_until_it_is_due(monkeypatch):
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://{}:{}".format(*server.get_host_and_port()))
    client = new_client(ClientSettings(**KEYS, role_arn=ROLE), Purpose.SETTLE)
    credentials = client._request_signer._credentials
    assert credentials._frozen_credentials.access_key == ""
    client.list_queues()
    first = credentials.get_frozen_credentials()
    client.list_queues()
    assert credentials.get_frozen_credentials() is first
    assert first.access_key not in {"", "AKIAEXAMPLE"}
    assert first.token
    client.close()
    server.stop()
    server._server.server_close()


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


def test_equal_settings_share_their_access():
    one = access.shared_sqs(ClientSettings("eu-west-1", **KEYS))
    assert access.shared_sqs(ClientSettings("eu-west-1", **KEYS)) is one
    assert access.shared_sqs(ClientSettings("eu-west-2", **KEYS)) is not one
    access.close_shared()
    access.close_shared()


def output_of(script):
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    return json.loads(run.stdout)


FORK = """
import json, os, sys, threading
from celery_sqs_visibility.aws import shared as access
from celery_sqs_visibility.aws import process_lock as forks
from celery_sqs_visibility.aws.client_factory import ClientSettings, Purpose

settings = ClientSettings("us-east-1", access_key_id="a", secret_access_key="b")
sqs = access.shared_sqs(settings)
caller = sqs._caller(Purpose.SETTLE, "GetQueueUrl")
with forks.SESSIONS, access._lock:  # the child must not wait for locks that its parent held
    pid = os.fork()
    if pid == 0:
        def look():
            inherited = sqs._caller(Purpose.SETTLE, "GetQueueUrl")
            own = access.shared_sqs(settings)
            print(json.dumps([inherited is caller, own is sqs, own is access.shared_sqs(settings)]))
        looker = threading.Thread(target=look)
        looker.start()
        looker.join()
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(pid, 0)
"""


def test_a_forked_child_uses_neither_clients_nor_locks_of_its_parent():
    assert output_of(FORK) == [False, False, True]


def test_importing_this_floor_does_not_import_boto3():
    modules = [
        "shared",
        "boto",
        "fast_requests",
        "client_factory",
        "imitation",
        "fake",
        "queues",
        "redrive",
        "roles",
    ]
    imports = "".join(f"import celery_sqs_visibility.aws.{module}\n" for module in modules)
    script = (
        f"import sys, json\n{imports}print(json.dumps([m in sys.modules for m in ('boto3', 'botocore')]))"
    )
    assert output_of(script) == [False, False]


def access_key(sqs, purpose=Purpose.SETTLE):
    client = sqs._caller(purpose, "GetQueueUrl").client
    return client._request_signer._credentials.access_key


def write_credentials(tmp_path, key):
    text = f"[default]\naws_access_key_id = {key}\naws_secret_access_key = hush\n"
    (tmp_path / "credentials").write_text(text)


def refuse(sqs, caller):
    sqs._explained(CredentialsRefusedError("expired"), caller)


def test_credentials_that_were_rotated_in_their_file_are_read_when_the_old_ones_are_refused(tmp_path):
    write_credentials(tmp_path, "AKIAOLD")
    sqs = BotoSQS(ClientSettings())
    assert access_key(sqs) == "AKIAOLD"
    write_credentials(tmp_path, "AKIANEW")
    assert access_key(sqs) == "AKIAOLD", "a client keeps what it was made with"
    refuse(sqs, sqs._caller(Purpose.SETTLE, "GetQueueUrl"))
    assert access_key(sqs) == "AKIANEW"


def test_clients_are_made_anew_once_for_all_threads_that_failed_with_the_old_one(tmp_path):
    write_credentials(tmp_path, "AKIAOLD")
    sqs = BotoSQS(ClientSettings())
    old = sqs._caller(Purpose.SETTLE, "GetQueueUrl")
    refuse(sqs, old)
    new = sqs._caller(Purpose.SETTLE, "GetQueueUrl")
    refuse(sqs, old)
    assert new is not old
    assert sqs._caller(Purpose.SETTLE, "GetQueueUrl") is new


def test_connections_of_forgotten_clients_are_closed(tmp_path, monkeypatch):
    write_credentials(tmp_path, "AKIAOLD")
    sqs = BotoSQS(ClientSettings())
    callers = [sqs._caller(purpose, "GetQueueUrl") for purpose in (Purpose.SETTLE, Purpose.RECEIVE)]
    closed = []
    for caller in callers:
        monkeypatch.setattr(caller.client, "close", lambda caller=caller: closed.append(caller))
    refuse(sqs, callers[0])
    assert closed == callers[::-1]


def test_a_wrong_clock_is_no_reason_for_new_clients(tmp_path):
    write_credentials(tmp_path, "AKIAOLD")
    sqs = BotoSQS(ClientSettings())
    caller = sqs._caller(Purpose.SETTLE, "GetQueueUrl")
    sqs._explained(ClockSkewError("signature expired"), caller)
    assert sqs._caller(Purpose.SETTLE, "GetQueueUrl") is caller


def test_a_credentials_file_that_is_being_written_is_read_again(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "work")
    for half in ("", "[work"):
        (tmp_path / "credentials").write_text(half)
        with pytest.raises(CredentialsRefusedError):
            BotoSQS(ClientSettings()).queue_url("q")


def test_credentials_in_the_settings_stay_what_they_are():
    sqs = BotoSQS(ClientSettings(**KEYS))
    caller = sqs._caller(Purpose.SETTLE, "GetQueueUrl")
    refuse(sqs, caller)
    assert sqs._caller(Purpose.SETTLE, "GetQueueUrl") is caller


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


def test_sts_is_asked_by_the_way_that_client_config_says():
    config = frozen_config({"proxies": {"https": "http://127.0.0.1:9"}, "read_timeout": 60})
    client = new_client(ClientSettings("eu-west-1", **KEYS, role_arn=ROLE, config=config), Purpose.SETTLE)
    fetch = client._request_signer._credentials._refresh_using
    sts = fetch.__self__._client_creator("sts")
    assert sts.meta.config.proxies == {"https": "http://127.0.0.1:9"}
    assert sts.meta.config.read_timeout == 3


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


def test_credentials_of_a_role_are_fetched_anew_when_they_are_refused():
    sqs = BotoSQS(ClientSettings(**KEYS, role_arn=ROLE))
    caller = sqs._caller(Purpose.SETTLE, "GetQueueUrl")
    refuse(sqs, caller)
    assert sqs._caller(Purpose.SETTLE, "GetQueueUrl") is not caller

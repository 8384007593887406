"""The clients behind the port: made when needed, one a process, and replaced when they may be the reason."""

import json
import os
import re
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError
from support.faults import error, json_answer
from support.processes import free_port
from support.proxy import FaultProxy

from celery_sqs_visibility.aws import boto, client_factory
from celery_sqs_visibility.aws.boto import BotoSQS
from celery_sqs_visibility.aws.client_factory import ClientPurpose
from celery_sqs_visibility.aws.client_settings import ClientSettings, frozen_config
from celery_sqs_visibility.aws.port import MoveTask, OutgoingMessage, ReceiveOptions
from celery_sqs_visibility.errors import (
    AnswerLostError,
    ClockSkewError,
    CredentialsRefusedError,
    RequestRefusedError,
    SQSError,
    UnavailableError,
    UnreachableError,
)

KEYS = {"access_key_id": "AKIAEXAMPLE", "secret_access_key": "hush"}
ROLE = "arn:aws:iam::123456789012:role/worker"


def refusal(code, message=""):
    return ClientError({"Error": {"Code": code, "Message": message}}, "GetQueueUrl")


EXPIRED = refusal("ExpiredToken")


class FakeClient:
    """A boto3 client that raises `error`, calls it, or answers with `answer`."""

    def __init__(self, purpose):
        self.purpose = purpose
        self.error = None
        self.answer = {"QueueUrl": "u", "MessageId": "m"}
        self.closed = 0
        config = SimpleNamespace(retries={"total_max_attempts": 1})
        self.meta = SimpleNamespace(events=SimpleNamespace(register_first=lambda *_: None), config=config)

    def __getattr__(self, _action):
        return self._request

    def _request(self, **_):
        if callable(self.error):
            self.error()
        if self.error is not None:
            raise self.error
        return self.answer

    def close(self):
        self.closed += 1


@pytest.fixture
def clients(monkeypatch):
    """The clients that were made."""
    made = []

    def new_client(_settings, purpose):
        made.append(FakeClient(purpose))
        return made[-1]

    monkeypatch.setattr(boto, "new_client", new_client)
    return made


def test_each_use_has_a_client_of_its_own(clients):
    sqs = BotoSQS(ClientSettings())
    for _ in range(2):
        sqs.receive("u", 1, 20, ReceiveOptions())
        sqs.receive("u", 1, 1, ReceiveOptions())
        sqs.delete("u", ["handle"])
        sqs.change_visibility("u", [("handle", 1)], urgent=True)
        sqs.send("u", OutgoingMessage("x"))
        sqs.send_batch("u", [OutgoingMessage("x")])
    assert [client.purpose for client in clients] == [
        p for p in ClientPurpose if p is not ClientPurpose.PAYLOAD
    ]


@pytest.mark.parametrize(
    ("settings", "error", "cls", "renewed"),
    [
        (ClientSettings(), EXPIRED, CredentialsRefusedError, True),
        (ClientSettings(**KEYS, role_arn=ROLE), EXPIRED, CredentialsRefusedError, True),
        (ClientSettings(**KEYS), EXPIRED, CredentialsRefusedError, False),  # what is written down stays
        (ClientSettings(), refusal("InvalidSignatureException", "Signature expired"), ClockSkewError, False),
        (ClientSettings(), refusal("ThrottlingException"), SQSError, False),
    ],
    ids=["of the chain", "of a role", "of the settings", "a wrong clock", "another error"],
)
def test_refused_credentials_are_looked_for_anew_by_new_clients(clients, settings, error, cls, renewed):
    sqs = BotoSQS(settings)
    sqs.send("u", OutgoingMessage("x"))
    sqs.queue_url("q")
    clients[1].error = error
    with pytest.raises(cls):
        sqs.queue_url("q")
    assert [client.closed for client in clients] == [renewed, renewed]
    clients[1].error = None
    sqs.queue_url("q")
    assert len(clients) == 2 + renewed


def test_clients_are_made_anew_once_for_all_threads_that_failed_with_the_old_one(clients):
    sqs = BotoSQS(ClientSettings())
    sqs.queue_url("q")
    old = clients[0]

    def meanwhile():
        old.error = EXPIRED
        with pytest.raises(CredentialsRefusedError):
            sqs.queue_url("q")
        sqs.queue_url("q")

    old.error = meanwhile
    with pytest.raises(CredentialsRefusedError):
        sqs.queue_url("q")
    sqs.queue_url("q")
    assert [client.closed for client in clients] == [1, 0]


def test_a_processs_own_connections_are_closed_without_a_lock_when_nobody_keeps_them(clients, monkeypatch):
    sqs = BotoSQS(ClientSettings())
    with monkeypatch.context() as parent:
        parent.setattr(os, "getpid", lambda: -1)
        sqs.queue_url("q")
    sqs.queue_url("q")
    monkeypatch.setattr(boto, "SESSIONS", None)  # another thread may have it
    del sqs
    assert [client.closed for client in clients] == [0, 1]


def test_without_an_answer_the_clients_idle_connections_are_closed_and_it_stays(clients):
    sqs = BotoSQS(ClientSettings())
    sqs.send("u", OutgoingMessage("x"))
    sqs.queue_url("q")
    clients[1].error = ReadTimeoutError(endpoint_url="u")
    with pytest.raises(UnavailableError):
        sqs.queue_url("q")
    assert [client.closed for client in clients] == [0, 1]
    sqs.discard_idle_connections()
    assert [client.closed for client in clients] == [1, 2]
    clients[1].error = None
    sqs.queue_url("q")
    assert len(clients) == 2


@pytest.mark.parametrize(
    ("answer", "failed"),
    [
        ({"Successful": [{"Id": "0"}, {"Id": "1"}]}, {}),
        ({"Successful": [{"Id": "1"}]}, {0: AnswerLostError}),
        ({}, {0: AnswerLostError, 1: AnswerLostError}),
        (
            {
                "Successful": [{"Id": "0"}],
                "Failed": [{"Id": n, "Code": "InvalidParameterValue"} for n in "12x"],
            },
            {1: RequestRefusedError},
        ),
    ],
    ids=["all done", "one is missing", "all are missing", "unasked entries are ignored"],
)
def test_an_entry_without_a_result_has_failed(clients, answer, failed):
    sqs = BotoSQS(ClientSettings())
    sqs.queue_url("q")
    clients[0].answer = answer
    result = sqs.delete("u", ["one", "two"])
    assert {position: type(error) for position, error in result.failed.items()} == failed


def test_rotated_credentials_are_read_when_the_old_ones_are_refused(tmp_path):
    def write(key):
        text = f"[default]\naws_access_key_id = {key}\naws_secret_access_key = hush\n"
        (tmp_path / "credentials").write_text(text)

    keys = []

    def note_key(request, forward, _removed):
        keys.append(re.search("Credential=([^/]*)/", request.headers["authorization"])[1])
        return forward(request)

    write("OLD")
    with FaultProxy("http://127.0.0.1:9") as proxy:
        sqs = BotoSQS(ClientSettings("eu-west-1", proxy.url))
        proxy.inject(note_key)
        with proxy.inject(lambda *_: json_answer(200, {"QueueUrl": "u"})):
            sqs.queue_url("q")
            write("NEW")
            sqs.queue_url("q")
        with proxy.inject(error("InvalidClientTokenId")), pytest.raises(CredentialsRefusedError):
            sqs.queue_url("q")
        with proxy.inject(lambda *_: json_answer(200, {"QueueUrl": "u"})):
            sqs.queue_url("q")
        sqs.close()
    assert keys == ["OLD", "OLD", "OLD", "NEW"]


@pytest.mark.parametrize(
    "settings",
    [
        ClientSettings(endpoint_url="not a url", **KEYS),
        ClientSettings("not a region", **KEYS),
        ClientSettings(config=frozen_config({"no_such_option": 1}), **KEYS),
    ],
    ids=["endpoint", "region", "option"],
)
def test_settings_that_cannot_work_are_refused_in_one_sentence(settings):
    with pytest.raises(RequestRefusedError, match=r"^the settings are wrong: .*; correct the ") as caught:
        BotoSQS(settings).queue_url("q")
    assert "hush" not in str(caught.value)
    assert "ClientSettings" not in str(caught.value)
    assert (caught.value.__cause__, caught.value.__suppress_context__) == (None, True)


@pytest.mark.parametrize("role", [None, ROLE])
def test_missing_credentials_are_said_to_be_missing(role):
    settings = ClientSettings(endpoint_url="http://127.0.0.1:1", role_arn=role)
    with pytest.raises(CredentialsRefusedError, match="no AWS credentials were found; set AWS_ACCESS_KEY_ID"):
        BotoSQS(settings).queue_url("q")


@pytest.mark.parametrize("half", ["", "[work"])
def test_a_credentials_file_that_is_being_written_is_read_again(tmp_path, monkeypatch, half):
    monkeypatch.setenv("AWS_PROFILE", "work")
    (tmp_path / "credentials").write_text(half)
    with pytest.raises(CredentialsRefusedError):
        BotoSQS(ClientSettings()).queue_url("q")


def output_of(script):
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    return json.loads(run.stdout)


def test_importing_this_floor_does_not_import_boto3():
    modules = ["boto", "fast_requests", "client_factory", "fake", "queues", "redrive"]
    imports = "".join(f"import celery_sqs_visibility.aws.{module}\n" for module in modules)
    look = "print(json.dumps([m in sys.modules for m in ('boto3', 'botocore')]))"
    assert output_of(f"import sys, json\n{imports}{look}") == [False, False]


@pytest.mark.parametrize(
    ("answer", "task"),
    [
        ({"Results": []}, None),
        ({"Results": [{"Status": "RUNNING", "StartedTimestamp": 1}]}, MoveTask("RUNNING", started=1)),
        (
            {
                "Results": [
                    {
                        "Status": "FAILED",
                        "ApproximateNumberOfMessagesMoved": 3,
                        "ApproximateNumberOfMessagesToMove": 9,
                        "FailureReason": "AWS.SQS.QueueDoesNotExist",
                        "StartedTimestamp": 1,
                    }
                ]
            },
            MoveTask("FAILED", 3, 9, "AWS.SQS.QueueDoesNotExist", 1),
        ),
    ],
)
def test_move_tasks_are_those_of_amazon(answer, task):
    """moto has none."""
    requests = []

    def move(request, *_):
        requests.append((request.action, request.parameters))
        return json_answer(200, answer if request.action == "ListMessageMoveTasks" else {"TaskHandle": "h"})

    with FaultProxy("http://127.0.0.1:9") as proxy:
        sqs = BotoSQS(ClientSettings("eu-west-1", proxy.url, **KEYS))
        with proxy.inject(move):
            sqs.start_move_task("arn:dead", "arn:source", 500)
            assert sqs.latest_move_task("arn:dead") == task
        sqs.close()
    names = {"SourceArn": "arn:dead", "DestinationArn": "arn:source", "MaxNumberOfMessagesPerSecond": 500}
    assert requests == [
        ("StartMessageMoveTask", names),
        ("ListMessageMoveTasks", {"SourceArn": "arn:dead", "MaxResults": 1}),
    ]


@pytest.fixture
def listener():
    """A server that takes connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(20)
        yield server


def port_of(listener):
    return listener.getsockname()[1]


def sqs_at(port, **options):
    settings = ClientSettings("us-east-1", f"http://127.0.0.1:{port}", config=frozen_config(options), **KEYS)
    return BotoSQS(settings)


def test_an_endpoint_that_takes_a_connection_is_reached_once_for_a_while(listener, monkeypatch):
    reached = sqs_at(port_of(listener))
    for _ in range(3):
        reached.reach()
    connection, _ = listener.accept()
    with connection:
        assert connection.recv(1) == b"", "no request, and no TLS"
    monkeypatch.setattr(boto.os, "getpid", lambda: -1)
    reached.reach()  # a forked child looks itself
    listener.accept()[0].close()
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.accept()


def test_a_closed_port_is_out_of_reach_and_asked_again_each_time():
    port = free_port()
    dead = sqs_at(port)
    with pytest.raises(ConnectionError, match=rf"^SQS cannot be reached at 127\.0\.0\.1:{port}: .*refused"):
        dead.reach()
    with socket.create_server(("127.0.0.1", port)):
        dead.reach()


def test_behind_a_proxy_the_proxy_is_connected_to(listener):
    closed, proxy = free_port(), f"http://user:hush@127.0.0.1:{port_of(listener)}"
    sqs_at(closed, proxies={"http": proxy}).reach()
    listener.accept()[0].close()
    dead = sqs_at(port_of(listener), proxies={"http": f"http://user:hush@127.0.0.1:{closed}"})
    with pytest.raises(UnreachableError) as raised:
        dead.reach()
    assert f"SQS cannot be reached through the proxy at 127.0.0.1:{closed}" in str(raised.value)
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize("exempt", [True, False])
def test_a_proxy_of_the_environment_is_heeded_and_so_are_its_exceptions(listener, monkeypatch, exempt):
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1" if exempt else "elsewhere")
    if exempt:
        sqs_at(port_of(listener)).reach()
    else:
        with pytest.raises(UnreachableError, match="through the proxy"):
            sqs_at(port_of(listener)).reach()


def test_an_endpoint_whose_requests_a_listener_answers_is_reached_without_a_network(monkeypatch):
    def new_client(*args):
        client = client_factory.new_client(*args)
        client.meta.events.register("before-send.sqs", lambda request, **_: object())  # as moto's mocks
        return client

    with pytest.raises(UnreachableError):
        sqs_at(free_port()).reach()
    monkeypatch.setattr(boto, "new_client", new_client)
    sqs_at(free_port()).reach()


@pytest.mark.parametrize("region", ["nowhere-1", "not a region"])
def test_settings_that_lead_nowhere_are_told(region, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{free_port()}")  # nothing leaves this machine
    with pytest.raises(RequestRefusedError, match=region):
        BotoSQS(ClientSettings(region, **KEYS)).reach()

"""What a client's later requests have in common with its first, which botocore made."""

from __future__ import annotations

import base64
import json

import botocore
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from moto import mock_aws
from support.faults import Answer, Disconnected, error, json_answer
from support.proxy import FaultProxy

from celery_sqs_visibility.aws import form
from celery_sqs_visibility.aws.boto import BotoSQS
from celery_sqs_visibility.aws.caller import Caller
from celery_sqs_visibility.aws.clients import ClientSettings, Purpose, frozen_config
from celery_sqs_visibility.aws.errors import SQSError, Unavailable
from celery_sqs_visibility.aws.port import OutgoingMessage, ReceiveOptions

HANDLES = ["handle", "hände\N{SNOWMAN}"]
OPTIONS = ReceiveOptions(30, ("ApproximateReceiveCount",))
TIME_AND_SIZE = {"x-amz-date", "authorization", "content-length"}
ATTEMPTS = {"amz-sdk-invocation-id", "amz-sdk-request"}


class Recorder:
    """A fault that keeps the requests, and answers all of them alike."""

    def __init__(self):
        self.requests = []
        self.answer = json_answer(200, {"Successful": [{"Id": "0"}, {"Id": "1"}], "Failed": []})

    def __call__(self, request, forward, removed):
        self.requests.append(request)
        if isinstance(self.answer, Answer):
            return self.answer
        return self.answer(request, forward, removed)

    @property
    def made_by_botocore(self):
        return [request.headers.keys() >= ATTEMPTS for request in self.requests]


@pytest.fixture
def server():
    proxy = FaultProxy("http://127.0.0.1:9")  # nothing is forwarded
    with proxy:
        recorder = Recorder()
        recorder.proxy = proxy
        proxy.inject(recorder)
        yield recorder


def sqs_of(server, token=None, **config):
    settings = ClientSettings(
        "eu-west-1",
        server.proxy.url,
        access_key_id="AKIDEXAMPLE",
        secret_access_key="hush",
        session_token=token,
        config=frozen_config(config),
    )
    return BotoSQS(settings)


@pytest.fixture
def sqs(server):
    made = sqs_of(server)
    yield made
    made.close()


def url_on(server):
    return f"{server.proxy.url}/123456789012/q"


def signature_of(request, credentials, port):
    """The Authorization header that botocore gives a request with those signed headers."""
    names = request.headers["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
    headers = {name: request.headers[name] for name in names if name != "host"}
    again = AWSRequest("POST", f"http://127.0.0.1:{port}/", headers, request.body)
    again.context["timestamp"] = request.headers["x-amz-date"]
    signer = SigV4Auth(credentials, "sqs", "eu-west-1")
    text = signer.string_to_sign(again, signer.canonical_request(again))
    return signer.signature(text, again)


@pytest.mark.parametrize("token", [None, "a token"])
@pytest.mark.parametrize(
    "ask",
    [
        lambda sqs, url: sqs.delete(url, HANDLES),
        lambda sqs, url: sqs.change_visibility(url, [(handle, 7) for handle in HANDLES]),
        lambda sqs, url: sqs.receive(url, 10, 20, OPTIONS),
        lambda sqs, url: sqs.receive(url, 1, 0, OPTIONS),
    ],
    ids=["delete", "hide", "long poll", "short poll"],
)
def test_a_later_request_says_what_botocores_would(server, ask, token):
    sqs = sqs_of(server, token)
    for _ in range(2):
        ask(sqs, url_on(server))
    sqs.close()
    first, second = server.requests
    assert server.made_by_botocore == [True, False]
    assert (second.method, second.path, second.parameters) == (first.method, first.path, first.parameters)
    assert second.headers.keys() == first.headers.keys() - ATTEMPTS
    for name in second.headers.keys() - TIME_AND_SIZE:
        assert second.headers[name] == first.headers[name]
    credentials = Credentials("AKIDEXAMPLE", "hush", token)
    told = second.headers["authorization"].rpartition("Signature=")[2]
    assert told == signature_of(second, credentials, server.proxy.port)


def test_any_first_request_of_a_client_shows_the_form_of_the_others(server, sqs):
    server.answer = json_answer(200, {"QueueUrl": url_on(server)})
    assert sqs.queue_url("q") == url_on(server)
    server.answer = json_answer(200, {})
    sqs.delete(url_on(server), HANDLES)
    assert server.made_by_botocore == [True, False]


def test_what_a_worker_seldom_asks_is_botocores(server, sqs):
    server.answer = json_answer(200, {"QueueUrl": url_on(server)})
    for _ in range(3):
        sqs.queue_url("q")
    assert all(server.made_by_botocore)


def test_keys_that_are_renewed_sign_the_next_request(server, sqs):
    for _ in range(2):
        sqs.delete(url_on(server), HANDLES)
    credentials = sqs._caller(Purpose.SETTLE, "DeleteMessageBatch").client._request_signer._credentials
    credentials.access_key, credentials.secret_key, credentials.token = "AKIDNEW", "newer", "fresh"
    sqs.delete(url_on(server), HANDLES)
    newest = server.requests[-1]
    assert newest.headers["x-amz-security-token"] == "fresh"
    assert "Credential=AKIDNEW/" in newest.headers["authorization"]
    assert newest.headers["authorization"].endswith(signature_of(newest, credentials, server.proxy.port))


def test_messages_arrive_as_botocore_reads_them(server, sqs):
    message = {"MessageId": "m", "ReceiptHandle": "h", "Body": "tâsk", "Attributes": {"SentTimestamp": "1"}}
    server.answer = json_answer(200, {"Messages": [message]})
    answers = [sqs.receive(url_on(server), 10, 0, OPTIONS) for _ in range(2)]
    assert answers == [[message], [message]]


@pytest.mark.parametrize("payload", [{}, {"Messages": []}, {"Messages": None}])
def test_an_empty_answer_is_no_message(server, sqs, payload):
    server.answer = json_answer(200, payload)
    assert [sqs.receive(url_on(server), 10, 0, OPTIONS) for _ in range(2)] == [[], []]


def test_message_attributes_which_may_be_binary_are_left_to_botocore(server, sqs):
    attribute = {"DataType": "Binary", "BinaryValue": base64.b64encode(b"\xff").decode()}
    message = {"MessageId": "m", "ReceiptHandle": "h", "Body": "", "MessageAttributes": {"a": attribute}}
    server.answer = json_answer(200, {"Messages": [message]})
    for _ in range(2):
        (received,) = sqs.receive(url_on(server), 1, 0, ReceiveOptions(message_attributes=("All",)))
        assert received["MessageAttributes"]["a"]["BinaryValue"] == b"\xff"
    assert all(server.made_by_botocore)


def break_off(*_):
    raise Disconnected("no answer")


REFUSALS = {
    "handle": error("ReceiptHandleIsInvalid"),
    "no queue": error("AWS.SimpleQueueService.NonExistentQueue"),
    "throttled": error("ThrottlingException"),
    "failed": error("InternalFailure", 500),
    "unheard of": error("UnheardOf", 418),
    "denied": json_answer(403, {"__type": "com.amazonaws.sqs#AccessDeniedException", "Message": "no"}),
    "unknown key": json_answer(400, {"__type": "InvalidClientTokenId", "message": "who?"}),
    "no reason": json_answer(429, {}),
    "no body": Answer(500, b""),
    "a page": Answer(503, b"<html>back soon</html>", {"Content-Type": "text/html"}),
    "elsewhere": Answer(302, b"", {"Location": "http://127.0.0.1:9/"}),
    "broken off": break_off,
}


@pytest.mark.parametrize("answer", REFUSALS.values(), ids=REFUSALS.keys())
def test_an_error_is_the_one_that_botocore_raises(server, sqs, answer):
    server.answer = answer
    told = []
    for _ in range(2):
        with pytest.raises(SQSError) as caught:
            sqs.delete(url_on(server), HANDLES)
        told.append((type(caught.value), caught.value.code, str(caught.value)))
    assert server.made_by_botocore == [True, False]
    assert told[0] == told[1]


@pytest.mark.parametrize(
    "ends", [lambda server: server.proxy.refuse(), lambda server: None], ids=["down", "silent"]
)
def test_no_answer_is_the_error_that_botocore_raises(server, ends):
    sqs = sqs_of(server, read_timeout=0.3)
    sqs.delete(url_on(server), HANDLES)
    server.answer = lambda _request, _forward, removed: removed.wait() and break_off()
    ends(server)
    told = []
    caller = sqs._caller(Purpose.SETTLE, "DeleteMessageBatch")
    for known in (caller._form, None):  # directly, then by botocore
        caller._form = known
        with pytest.raises(Unavailable) as caught:
            sqs.delete(url_on(server), HANDLES)
        told.append((caught.value.code, str(caught.value)))
    assert told[0] == told[1]
    sqs.close()


@pytest.mark.parametrize("body", [b"<html>please log in</html>", b"[]", b'"yes"'])
def test_an_answer_that_is_not_from_sqs_is_no_success(server, sqs, body):
    sqs.delete(url_on(server), HANDLES)
    server.answer = Answer(200, body)
    with pytest.raises(Unavailable, match="ResponseParserError"):
        sqs.delete(url_on(server), HANDLES)


def test_requests_that_are_not_signed_are_botocores(server):
    sqs = sqs_of(server, signature_version=botocore.UNSIGNED)
    for _ in range(5):
        sqs.delete(url_on(server), HANDLES)
    assert all(server.made_by_botocore)
    sqs.close()


def test_requests_with_a_header_we_do_not_know_are_botocores(server, sqs):
    def add_header(request, **_):
        request.headers["x-amz-new"] = "?"

    caller = sqs._caller(Purpose.SETTLE, "DeleteMessageBatch")
    caller.client.meta.events.register("before-sign.sqs", add_header)
    for _ in range(5):
        sqs.delete(url_on(server), HANDLES)
    assert all(server.made_by_botocore)


def test_requests_whose_signature_comes_out_otherwise_are_botocores(server, sqs, monkeypatch):
    monkeypatch.setattr(form, "authorization", lambda *_: "another")
    for _ in range(5):
        sqs.delete(url_on(server), HANDLES)
    assert all(server.made_by_botocore)


def test_keys_renewed_while_the_form_was_looked_at_do_no_lasting_harm(server, sqs, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(form, "authorization", lambda *_: "another")
        sqs.delete(url_on(server), HANDLES)
    for _ in range(2):
        sqs.delete(url_on(server), HANDLES)
    assert server.made_by_botocore == [True, True, False]


def test_a_botocore_without_the_parts_we_know_makes_all_requests(server, sqs):
    caller = sqs._caller(Purpose.SETTLE, "DeleteMessageBatch")
    session = caller.client._endpoint.http_session
    caller.client._endpoint.http_session = None
    other = Caller(caller.client)
    caller.client._endpoint.http_session = session
    entries = [{"Id": "0", "ReceiptHandle": "h"}]
    for _ in range(2):
        other.call("DeleteMessageBatch", "delete_message_batch", {"QueueUrl": "q", "Entries": entries})
    assert all(server.made_by_botocore)


def test_who_listens_to_botocores_requests_hears_of_all(server, sqs):
    heard = []
    caller = sqs._caller(Purpose.SETTLE, "DeleteMessageBatch")
    caller.client.meta.events.register(
        "before-send.sqs.DeleteMessageBatch", lambda **told: heard.append(told)
    )
    for _ in range(3):
        sqs.delete(url_on(server), HANDLES)
    assert [json.loads(told["request"].body)["QueueUrl"] for told in heard] == [url_on(server)] * 3


def test_motos_mock_answers_all_requests():
    with mock_aws():
        sqs = BotoSQS(ClientSettings("us-east-1"))
        url = sqs.create_queue("q", {}, {})
        for body in ("first", "second"):
            sqs.send(url, OutgoingMessage(body))
            (message,) = sqs.receive(url, 1, 0, OPTIONS)
            assert message["Body"] == body
            assert not sqs.delete(url, [message["ReceiptHandle"]]).failed
        assert sqs._caller(Purpose.GLANCE, "ReceiveMessage")._form is not None
        sqs.close()

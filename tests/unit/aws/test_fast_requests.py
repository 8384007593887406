"""What a client's later requests have in common with its first, which botocore made."""

from __future__ import annotations

import base64
import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta, timezone

import botocore
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials, RefreshableCredentials
from botocore.exceptions import CredentialRetrievalError
from moto import mock_aws
from support.faults import Answer, Disconnected, error, json_answer
from support.proxy import FaultProxy

from celery_sqs_visibility.aws import form
from celery_sqs_visibility.aws.boto import BotoSQS
from celery_sqs_visibility.aws.client_factory import ClientSettings, Purpose, frozen_config
from celery_sqs_visibility.aws.error_codes import translate
from celery_sqs_visibility.aws.port import OutgoingMessage, ReceiveOptions
from celery_sqs_visibility.errors import CredentialsRefusedError, SQSError, UnavailableError

HANDLES = ["handle", "hände\N{SNOWMAN}"]
OPTIONS = ReceiveOptions(30, ("ApproximateReceiveCount",))
TIME_AND_SIZE = {"x-amz-date", "authorization", "content-length"}
ATTEMPTS = {"amz-sdk-invocation-id", "amz-sdk-request"}


DONE = json_answer(200, {"Successful": [{"Id": "0"}, {"Id": "1"}], "Failed": []})


class Recorder:
    """A fault that keeps the requests, and answers all of them alike."""

    def __init__(self):
        self.requests = []
        self.answer = DONE

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
        config=frozen_config({"read_timeout": 30, **config}),
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
    server.answer = DONE
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


def test_message_attributes_arrive_as_botocore_reads_them(server, sqs):
    encoded = {"DataType": "Binary", "BinaryValue": base64.b64encode(b"\xff").decode(), "StringValue": None}
    attributes = {"a": encoded, "BinaryValue": {"DataType": "String", "StringValue": "of that name"}}
    message = {"MessageId": "m", "ReceiptHandle": "h", "Body": "", "MessageAttributes": attributes}
    server.answer = json_answer(200, {"Messages": [message]})
    for _ in range(2):
        (received,) = sqs.receive(url_on(server), 1, 0, ReceiveOptions(message_attributes=("All",)))
        assert received["MessageAttributes"] == {
            "a": {"DataType": "Binary", "BinaryValue": b"\xff"},
            "BinaryValue": {"DataType": "String", "StringValue": "of that name"},
        }
    assert server.made_by_botocore == [True, False]


@pytest.mark.parametrize("value", ["not base64", "\xff"])
def test_bytes_that_are_not_readable_are_no_answer(server, sqs, value):
    message = {"MessageAttributes": {"a": {"DataType": "Binary", "BinaryValue": value}}}
    server.answer = json_answer(200, {})
    sqs.receive(url_on(server), 1, 0, OPTIONS)
    server.answer = json_answer(200, {"Messages": [message]})
    with pytest.raises(SQSError):
        sqs.receive(url_on(server), 1, 0, OPTIONS)


def break_off(*_):
    raise Disconnected("no answer")


REFUSALS = {
    "handle": error("ReceiptHandleIsInvalid"),
    "no queue": error("QueueDoesNotExist"),
    "no queue, in two protocols": json_answer(
        400,
        {"__type": "com.amazonaws.sqs#QueueDoesNotExist", "message": "no"},
        **{"x-amzn-query-error": "AWS.SimpleQueueService.NonExistentQueue;Sender"},
    ),
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
    sqs.delete(url_on(server), HANDLES)
    server.answer = answer
    caller = sqs._caller(Purpose.SETTLE, "DeleteMessageBatch")
    params = {"QueueUrl": url_on(server), "Entries": [{"Id": "0", "ReceiptHandle": "handle"}]}
    told = []
    for ask in (
        lambda: caller._imitation.call("DeleteMessageBatch", params),
        lambda: caller.client.delete_message_batch(**params),
    ):
        with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever the client raises
            ask()
        error = translate(caught.value, "DeleteMessageBatch")
        told.append((type(error), error.code, str(error), type(caught.value).__name__))
    assert server.made_by_botocore == [True, False, True]
    assert told[0] == told[1]


@pytest.mark.parametrize("refusal", ["unknown key", "denied", "unheard of", "elsewhere"])
def test_of_a_refusal_botocore_has_the_last_word(server, sqs, refusal):
    for _ in range(2):
        sqs.delete(url_on(server), HANDLES)
    server.answer = REFUSALS[refusal]
    with pytest.raises(SQSError):
        sqs.delete(url_on(server), HANDLES)
    server.answer = DONE
    for _ in range(2):
        sqs.delete(url_on(server), HANDLES)
    made_by_botocore = server.made_by_botocore
    assert made_by_botocore[:4] == [True, False, False, True]
    assert made_by_botocore[-1] is False


@pytest.mark.parametrize("refusal", ["denied", "unheard of", "elsewhere"])
def test_where_only_imitations_are_refused_there_are_soon_no_more(server, sqs, refusal, caplog):
    def fussy(request, *more):
        answer = DONE if request.headers.keys() >= ATTEMPTS else REFUSALS[refusal]
        return answer if isinstance(answer, Answer) else answer(request, *more)

    server.answer = fussy
    for _ in range(6):
        assert not sqs.delete(url_on(server), HANDLES).failed
    assert server.made_by_botocore == [True, *[False, True] * 3, True, True]
    (record,) = caplog.records
    assert "botocore's from now on" in record.getMessage()


def test_an_error_of_our_own_is_nobodys_trouble(server, sqs, monkeypatch):
    sqs.delete(url_on(server), HANDLES)
    with monkeypatch.context() as patch:
        patch.setattr(form, "timestamp", lambda _seconds: 1 / 0)
        assert not sqs.delete(url_on(server), HANDLES).failed
    for _ in range(2):
        sqs.delete(url_on(server), HANDLES)
    assert server.made_by_botocore == [True, True, False, False]


def test_an_imitation_is_no_model(server, sqs):
    caller = sqs._caller(Purpose.SETTLE, "DeleteMessageBatch")
    sqs.delete(url_on(server), HANDLES)
    models = []

    def forget(request, **_):
        if not models:
            models.append(request)
            caller._imitation, caller._looks = None, 1  # as another thread may, just now

    caller.client.meta.events.register_first("before-send.sqs", forget)
    for _ in range(3):
        sqs.delete(url_on(server), HANDLES)
    assert server.made_by_botocore == [True, False, True, False]


@pytest.mark.parametrize("refusal", ["throttled", "failed", "no queue", "handle", "broken off"])
def test_after_other_errors_requests_stay_cheap(server, sqs, refusal):
    sqs.delete(url_on(server), HANDLES)
    server.answer = REFUSALS[refusal]
    for _ in range(2):
        with pytest.raises(SQSError):
            sqs.delete(url_on(server), HANDLES)
    assert server.made_by_botocore == [True, False, False]


@pytest.mark.parametrize(
    "ends", [lambda server: server.proxy.refuse(), lambda server: None], ids=["down", "silent"]
)
def test_no_answer_is_the_error_that_botocore_raises(server, ends):
    sqs = sqs_of(server, read_timeout=0.3)
    with suppress(UnavailableError):  # in time or not, it is a model
        sqs.delete(url_on(server), HANDLES)
    server.answer = lambda _request, _forward, removed: removed.wait() and break_off()
    ends(server)
    told = []
    caller = sqs._caller(Purpose.SETTLE, "DeleteMessageBatch")
    assert caller._imitation
    for known in (caller._imitation, None):  # ours, then botocore's
        caller._imitation = known
        with pytest.raises(UnavailableError) as caught:
            sqs.delete(url_on(server), HANDLES)
        told.append((caught.value.code, str(caught.value)))
    assert told[0] == told[1]
    sqs.close()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>please log in</html>",
        b"[]",
        b'"yes"',
        b'{"Successful": [{"Id": "0',
        b'{"Successful": {"Id": "0"}}',
        b'{"Failed": ["0"]}',
        b"\xff",
    ],
)
def test_an_answer_that_is_not_from_sqs_is_none(server, sqs, body):
    sqs.delete(url_on(server), HANDLES)
    server.answer = Answer(200, body)
    with pytest.raises(UnavailableError, match="ResponseParserError"):
        sqs.delete(url_on(server), HANDLES)


def test_what_an_answer_does_not_mention_is_not_done(server, sqs):
    server.answer = json_answer(200, {"Successful": [{"Id": "1"}]})
    for _ in range(2):
        failed = sqs.delete(url_on(server), HANDLES).failed
        assert {position: type(error) for position, error in failed.items()} == {0: UnavailableError}


def test_what_was_not_asked_about_is_not_told(server, sqs):
    named = [{"Id": name, "Code": "InternalError", "SenderFault": False} for name in ("1", "2", "x")]
    server.answer = json_answer(200, {"Successful": [{"Id": "0"}], "Failed": named})
    for _ in range(2):
        assert sqs.delete(url_on(server), HANDLES).failed.keys() == {1}


def test_nulls_are_read_as_nothing(server, sqs):
    message = {"MessageId": "m", "ReceiptHandle": "h", "Body": "", "Attributes": None}
    server.answer = json_answer(200, {"Messages": [message]})
    answers = [sqs.receive(url_on(server), 10, 0, OPTIONS) for _ in range(2)]
    assert answers == [[{"MessageId": "m", "ReceiptHandle": "h", "Body": ""}]] * 2


def test_requests_that_are_not_signed_are_botocores(server):
    sqs = sqs_of(server, signature_version=botocore.UNSIGNED)
    for _ in range(5):
        sqs.delete(url_on(server), HANDLES)
    assert all(server.made_by_botocore)
    sqs.close()


@pytest.mark.parametrize(
    "extra", ["plain", "B\N{LATIN SMALL LETTER U WITH DIAERESIS}ro", "\N{KATAKANA LETTER TA}"]
)
def test_any_user_agent_is_sent_as_botocore_sends_it(server, extra):
    sqs = sqs_of(server, user_agent_extra=extra)
    for _ in range(2):
        sqs.delete(url_on(server), HANDLES)
    first, second = server.requests
    assert second.headers["user-agent"] == first.headers["user-agent"]
    assert server.made_by_botocore == [True, False]
    sqs.close()


def test_a_host_among_the_headers_is_known(server, sqs):
    def add_host(request, **_):
        request.headers["Host"] = f"127.0.0.1:{server.proxy.port}"

    caller = sqs._caller(Purpose.SETTLE, "DeleteMessageBatch")
    caller.client.meta.events.register("before-sign.sqs", add_host)
    for _ in range(2):
        sqs.delete(url_on(server), HANDLES)
    assert server.made_by_botocore == [True, False]


def test_requests_to_a_path_are_botocores(server):
    settings = ClientSettings(
        "eu-west-1", f"{server.proxy.url}/sqs", access_key_id="a", secret_access_key="b"
    )
    sqs = BotoSQS(settings)
    for _ in range(5):
        sqs.delete(url_on(server), HANDLES)
    assert all(server.made_by_botocore)
    sqs.close()


def test_requests_of_a_traced_function_are_botocores(server, sqs, monkeypatch):
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "f")
    monkeypatch.setenv("_X_AMZN_TRACE_ID", "Root=1-2-3")
    for _ in range(5):
        sqs.delete(url_on(server), HANDLES)
    assert all(server.made_by_botocore)


def test_keys_that_renew_themselves_do_so_in_time(server, sqs):
    fetched = itertools.count(1)

    def fetch():
        number = next(fetched)
        expiry = datetime.now(timezone.utc) + timedelta(hours=1)
        return {
            "access_key": f"AKID{number}",
            "secret_key": "hush",
            "token": f"token {number}",
            "expiry_time": expiry.isoformat(),
        }

    keys = RefreshableCredentials.create_from_metadata(fetch(), fetch, "test")
    sqs._caller(Purpose.SETTLE, "DeleteMessageBatch").client._request_signer._credentials = keys
    for _ in range(2):
        sqs.delete(url_on(server), HANDLES)
    keys._expiry_time = datetime.now(timezone.utc)
    sqs.delete(url_on(server), HANDLES)
    tokens = [request.headers["x-amz-security-token"] for request in server.requests]
    assert tokens == ["token 1", "token 1", "token 2"]
    assert server.made_by_botocore == [True, False, False]


def test_keys_that_cannot_be_renewed_are_told_as_such(server, sqs):
    def fetch():
        raise CredentialRetrievalError(provider="test", error_msg="no")

    sqs.delete(url_on(server), HANDLES)
    keys = RefreshableCredentials("a", "b", "c", datetime.now(timezone.utc), fetch, "test")
    caller = sqs._caller(Purpose.SETTLE, "DeleteMessageBatch")
    caller._imitation._form._credentials = keys
    with pytest.raises(CredentialsRefusedError, match="CredentialRetrievalError"):
        sqs.delete(url_on(server), HANDLES)


def test_threads_may_begin_at_once(server, sqs):
    with ThreadPoolExecutor(8) as threads:
        told = list(threads.map(lambda _: sqs.delete(url_on(server), HANDLES).failed, range(100)))
    assert told == [{}] * 100
    assert not all(server.made_by_botocore)


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


def test_a_botocore_without_the_parts_we_know_makes_all_requests(server, sqs, monkeypatch, caplog):
    sqs._caller(Purpose.SETTLE, "DeleteMessageBatch")  # making a client takes it, too
    monkeypatch.delattr("botocore.parsers.create_parser")
    with caplog.at_level("INFO", "celery_sqs_visibility"):
        for _ in range(5):
            sqs.delete(url_on(server), HANDLES)
    assert all(server.made_by_botocore)
    (record,) = caplog.records
    assert "create_parser" in record.getMessage()


def test_who_listens_to_botocores_requests_hears_of_all(server, sqs):
    heard = []
    caller = sqs._caller(Purpose.SETTLE, "DeleteMessageBatch")
    caller.client.meta.events.register(
        "before-send.sqs.DeleteMessageBatch", lambda request, **_: heard.append(request)
    )
    for _ in range(3):
        sqs.delete(url_on(server), HANDLES)
    assert [json.loads(request.body)["QueueUrl"] for request in heard] == [url_on(server)] * 3
    assert all(request.headers["Authorization"] for request in heard)


def test_motos_mock_answers_all_requests():
    with mock_aws():
        sqs = BotoSQS(ClientSettings("us-east-1"))
        url = sqs.create_queue("q", {}, {})
        for body in ("first", "second"):
            sqs.send(url, OutgoingMessage(body))
            (message,) = sqs.receive(url, 1, 0, OPTIONS)
            assert message["Body"] == body
            assert not sqs.delete(url, [message["ReceiptHandle"]]).failed
        assert sqs._caller(Purpose.GLANCE, "ReceiveMessage")._imitation is not None
        sqs.close()

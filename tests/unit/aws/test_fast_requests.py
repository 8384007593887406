"""Frequent requests are made like the client's first, and the client makes all others."""

import base64
import functools
import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from importlib import import_module

import botocore
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.client import BaseClient
from botocore.credentials import Credentials, ReadOnlyCredentials, RefreshableCredentials
from botocore.exceptions import CredentialRetrievalError
from botocore.handlers import BUILTIN_HANDLERS
from botocore.signers import RequestSigner
from botocore.stub import Stubber
from hypothesis import given
from hypothesis import strategies as st
from moto import mock_aws
from moto.core.models import botocore_stubber
from support.faults import Answer, Disconnected, error, json_answer
from support.proxy import FaultProxy

from celery_sqs_visibility.aws.client_factory import ClientPurpose, new_client
from celery_sqs_visibility.aws.client_settings import ClientSettings, frozen_config
from celery_sqs_visibility.aws.error_codes import translate
from celery_sqs_visibility.aws.fast_requests import MAX_MISTAKES, Caller, FastRequests, SignedForm

DELETE = "DeleteMessageBatch"
RECEIVE = "ReceiveMessage"
ENTRIES = [{"Id": "0", "ReceiptHandle": "handle"}, {"Id": "1", "ReceiptHandle": "hände\N{SNOWMAN}"}]
VARYING_HEADERS = {"x-amz-date", "authorization", "content-length"}
CLIENTS_OWN_HEADERS = {"amz-sdk-invocation-id", "amz-sdk-request"}
DONE = json_answer(200, {"Successful": [{"Id": "0"}, {"Id": "1"}], "Failed": []})


class Server:
    """Answers all requests alike and keeps them."""

    def __init__(self, proxy):
        self.proxy = proxy
        self.requests = []
        self.answer = DONE
        self.deletion = {"QueueUrl": f"{proxy.url}/123456789012/q", "Entries": ENTRIES}

    def __call__(self, request, forward, removed):
        self.requests.append(request)
        return self.answer if isinstance(self.answer, Answer) else self.answer(request, forward, removed)

    @property
    def fast(self):
        """Of each request, whether it was a fast one: the client counts its attempts in headers."""
        return [not request.headers.keys() & CLIENTS_OWN_HEADERS for request in self.requests]


@pytest.fixture
def server():
    with FaultProxy("http://127.0.0.1:9") as proxy:  # nothing is forwarded
        server = Server(proxy)
        proxy.inject(server)
        yield server


@pytest.fixture
def without_moto(monkeypatch):
    """moto listens to the requests of all clients that are made after it was imported."""
    others = [each for each in BUILTIN_HANDLERS if each[1] is not botocore_stubber]
    monkeypatch.setattr("botocore.handlers.BUILTIN_HANDLERS", others)


@pytest.fixture
def make_caller(server, without_moto):
    callers = []

    def make(token=None, path="", **config):
        keys = {"access_key_id": "AKIDEXAMPLE", "secret_access_key": "hush", "session_token": token}
        url = server.proxy.url + path
        settings = ClientSettings("eu-west-1", url, **keys, config=frozen_config(config))
        callers.append(Caller(new_client(settings, ClientPurpose.SETTLE)))
        return callers[-1]

    yield make
    for caller in callers:
        caller.close()


@pytest.fixture
def caller(make_caller):
    return make_caller()


@pytest.fixture
def delete(server, caller):
    return lambda: caller.call(DELETE, server.deletion)


@pytest.fixture
def delete_by_client(server, caller):
    return lambda: caller.client.delete_message_batch(**server.deletion)


@pytest.fixture
def instrumented():
    """OpenTelemetry's instrumentation of botocore, from a moment of the test on; the spans' names."""
    botocores = import_module("opentelemetry.instrumentation.botocore").BotocoreInstrumentor()
    sdk = import_module("opentelemetry.sdk.trace")
    export = import_module("opentelemetry.sdk.trace.export")
    memory = import_module("opentelemetry.sdk.trace.export.in_memory_span_exporter").InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(memory))

    def instrument():
        botocores.instrument(tracer_provider=provider)
        return lambda: [span.name for span in memory.get_finished_spans()]

    yield instrument
    botocores.uninstrument()


def patched_by_a_function(monkeypatch):
    """As Python's own `functools.wraps` makes one; the requests that it sees."""
    seen = []
    original = BaseClient._make_api_call

    @functools.wraps(original)
    def see(self, action, params):
        seen.append(action)
        return original(self, action, params)

    monkeypatch.setattr(BaseClient, "_make_api_call", see)
    return lambda: seen


def signature_is_valid(request, credentials):
    """Whether botocore signs the request's signed headers and body in the same way."""
    signed, _, signature = request.headers["authorization"].partition("SignedHeaders=")[2].partition(", ")
    headers = {name: request.headers[name] for name in signed.split(";") if name != "host"}
    again = AWSRequest("POST", f"http://{request.headers['host']}{request.path}", headers, request.body)
    again.context["timestamp"] = request.headers["x-amz-date"]
    signer = SigV4Auth(credentials, "sqs", "eu-west-1")
    text = signer.string_to_sign(again, signer.canonical_request(again))
    return signature == f"Signature={signer.signature(text, again)}"


@pytest.mark.parametrize(
    "config",
    [
        {"user_agent_extra": "plain"},
        {"token": "a token", "user_agent_extra": "B\N{LATIN SMALL LETTER U WITH DIAERESIS}ro"},
        {"user_agent_extra": "\N{KATAKANA LETTER TA}"},
        {"path": "/sqs"},
        {"signature_version": botocore.UNSIGNED},
    ],
    ids=["plain", "with a token", "beyond Latin-1", "at a path", "unsigned"],
)
@pytest.mark.parametrize(
    ("action", "params"),
    [
        (DELETE, {"Entries": ENTRIES}),
        (
            "ChangeMessageVisibilityBatch",
            {"Entries": [{**entry, "VisibilityTimeout": 7} for entry in ENTRIES]},
        ),
        (RECEIVE, {"MaxNumberOfMessages": 10, "MessageSystemAttributeNames": ["SentTimestamp"]}),
    ],
    ids=["delete", "change visibility", "receive"],
)
def test_a_fast_request_is_the_clients_but_for_its_count_of_attempts(
    server, make_caller, action, params, config
):
    caller = make_caller(**config)
    for _ in range(3):
        caller.call(action, {"QueueUrl": server.deletion["QueueUrl"], **params})
    first, *others = server.requests
    assert server.fast == [False, True, True]
    for each in others:  # signed by botocore, and filled in
        assert (each.method, each.path, each.parameters) == (first.method, first.path, first.parameters)
        assert each.headers.keys() == first.headers.keys() - CLIENTS_OWN_HEADERS
        for name in each.headers.keys() - VARYING_HEADERS:
            assert each.headers[name] == first.headers[name]
        if "signature_version" not in config:
            assert signature_is_valid(each, Credentials("AKIDEXAMPLE", "hush", config.get("token")))


@pytest.fixture
def signed(monkeypatch):
    """The requests that botocore has signed in full."""
    original, seen = RequestSigner.sign, []

    def sign(self, action, request, **options):
        seen.append(action)
        return original(self, action, request, **options)

    monkeypatch.setattr(RequestSigner, "sign", sign)
    return seen


def test_botocore_signs_the_first_request_for_an_action_in_full(server, signed, caller, delete):
    for _ in range(3):
        delete()
    for _ in range(3):
        caller.call(RECEIVE, {"QueueUrl": "u"})
    assert signed == [DELETE, DELETE, RECEIVE]
    assert len({request.headers["authorization"] for request in server.requests}) > 1


def test_botocore_signs_again_on_another_day(server, signed, delete, monkeypatch):
    delete()
    delete()
    monkeypatch.setattr("celery_sqs_visibility.aws.fast_requests.time_now", lambda: "20000101T000000Z")
    delete()
    assert signed == [DELETE] * 3
    assert all(server.fast[1:])


@pytest.mark.parametrize("closes", [True, False], ids=["by the server", "by the client"])
def test_a_connection_that_is_closed_is_opened_by_botocore(server, signed, caller, delete, closes):
    for _ in range(3):
        delete()
    if closes:
        server.answer = json_answer(200, {"Successful": [{"Id": "0"}], "Failed": []}, Connection="close")
        delete()
        server.answer = DONE
    else:
        caller.close()
    for _ in range(3):
        delete()
    assert signed == [DELETE] * 3
    assert server.fast == [False] + [True] * (len(server.requests) - 1)


def test_a_form_that_sqs_refuses_before_it_has_accepted_it_is_used_no_more(server, signed, send):
    send()
    send()  # signed by botocore, and accepted
    server.answer = DENIED
    with pytest.raises(Exception, match="AccessDenied"):
        send()
    server.answer = STORED
    send()
    assert signed == ["SendMessage"] * 3
    assert server.fast == [False, True, True, True]


def test_where_botocore_signs_in_another_way_it_signs_each_request(server, signed, delete, monkeypatch):
    monkeypatch.setattr("celery_sqs_visibility.aws.fast_requests.SignedForm", lambda *_: 1 / 0)
    for _ in range(4):
        delete()
    assert signed == [DELETE] * 4
    assert server.fast == [False, True, True, True]


def test_the_client_makes_requests_that_are_seldom_and_its_first_is_the_template(server, caller, delete):
    server.answer = json_answer(200, {"QueueUrl": "u"})
    for _ in range(3):
        assert caller.call("GetQueueUrl", {"QueueName": "q"})["QueueUrl"] == "u"
    server.answer = DONE
    delete()
    assert server.fast == [False, False, False, True]


def test_threads_may_begin_at_once(server, delete):
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: delete()["Failed"], range(100)))
    assert answers == [[]] * 100
    assert any(server.fast)


def test_renewed_credentials_sign_the_next_request_until_they_cannot_be_renewed(server, caller, delete):
    numbers = iter("12")

    def fetch():
        number = next(numbers, None)
        if number is None:
            raise CredentialRetrievalError(provider="test", error_msg="no")
        expiry = datetime.now(UTC) + timedelta(hours=1)
        keys = {"access_key": f"AKID{number}", "secret_key": "hush", "token": f"token {number}"}
        return {**keys, "expiry_time": expiry.isoformat()}

    credentials = RefreshableCredentials.create_from_metadata(fetch(), fetch, "test")
    caller.client._request_signer._credentials = credentials
    for _ in range(2):
        delete()
    credentials._expiry_time = datetime.now(UTC)
    delete()
    assert server.fast == [False, True, True]
    tokens = [request.headers["x-amz-security-token"] for request in server.requests]
    assert tokens == ["token 1", "token 1", "token 2"]
    assert "Credential=AKID2/" in server.requests[-1].headers["authorization"]
    assert signature_is_valid(server.requests[-1], credentials)
    credentials._expiry_time = datetime.now(UTC)
    with pytest.raises(CredentialRetrievalError):  # the client's error
        delete()
    assert len(server.requests) == 3


BINARY = {"DataType": "Binary", "BinaryValue": base64.b64encode(b"\xff").decode(), "StringValue": None}
MESSAGE = {"MessageId": "m", "ReceiptHandle": "h", "Body": "tâsk", "Attributes": {"SentTimestamp": "1"}}
ATTRIBUTES = {"a": BINARY, "BinaryValue": {"DataType": "String", "StringValue": "of that name"}}


@pytest.mark.parametrize(
    "answer",
    [
        {"Messages": [MESSAGE]},
        {"Messages": [{**MESSAGE, "Attributes": None}]},
        {"Messages": [{**MESSAGE, "MessageAttributes": ATTRIBUTES}]},
        {"Messages": []},
        {"Messages": None},
        {},
    ],
)
def test_an_answer_is_read_as_the_client_reads_it(server, caller, answer):
    server.answer = json_answer(200, answer)
    by_client, fast = (caller.call(RECEIVE, {"QueueUrl": "u"}) for _ in range(2))
    by_client.pop("ResponseMetadata")
    assert fast == by_client
    assert server.fast == [False, True]


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
        b'{"Messages": [{"MessageAttributes": {"a": {"BinaryValue": "not base64"}}}]}',
        '{"Messages": [{"MessageAttributes": {"a": {"BinaryValue": "\xff"}}}]}'.encode(),
    ],
)
def test_what_is_not_an_answer_of_sqs_is_an_error_and_not_asked_for_twice(server, delete, body):
    delete()
    server.answer = Answer(200, body)
    with pytest.raises(botocore.parsers.ResponseParserError):
        delete()
    assert server.fast == [False, True]


def break_off(*_):
    raise Disconnected("no answer")


REFUSALS = {
    "throttled": error("ThrottlingException"),
    "failed": error("InternalFailure", 500),
    "no queue": error("QueueDoesNotExist"),
    "no queue, in two protocols": json_answer(
        400,
        {"__type": "com.amazonaws.sqs#QueueDoesNotExist", "message": "no"},
        **{"x-amzn-query-error": "AWS.SimpleQueueService.NonExistentQueue;Sender"},
    ),
    "handle": error("ReceiptHandleIsInvalid"),
    "no reason": json_answer(429, {}),
    "no body": Answer(500, b""),
    "a page": Answer(503, b"<html>back soon</html>", {"Content-Type": "text/html"}),
    "broken off": break_off,
}
#: These may be about the form of the request.
SUSPICIOUS = {
    "unheard of": error("UnheardOf", 418),
    "denied": json_answer(403, {"__type": "com.amazonaws.sqs#AccessDeniedException", "Message": "no"}),
    "unknown key": json_answer(400, {"__type": "InvalidClientTokenId", "message": "who?"}),
    "elsewhere": Answer(302, b"", {"Location": "http://127.0.0.1:9/"}),
}


def said(ask):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever the client raises
        ask()
    error = translate(caught.value, DELETE)
    return type(caught.value).__name__, type(error), error.code, str(error)


@pytest.mark.parametrize(
    ("answer", "repeated"),
    [pytest.param(answer, False, id=name) for name, answer in REFUSALS.items()]
    + [pytest.param(answer, True, id=name) for name, answer in SUSPICIOUS.items()],
)
def test_a_refusal_is_the_clients_who_repeats_a_request_whose_form_may_be_the_reason(
    server, delete, delete_by_client, answer, repeated
):
    delete()
    server.answer = answer
    for _ in range(MAX_MISTAKES):
        assert said(delete) == said(delete_by_client)
    server.answer = DONE
    delete()
    by_both = [True, False, False] if repeated else [True, False]
    assert server.fast == [False, *by_both * MAX_MISTAKES, True]


@pytest.mark.parametrize("answer", SUSPICIOUS.values(), ids=SUSPICIOUS)
def test_where_only_fast_requests_are_refused_there_are_soon_no_more(server, delete, answer, caplog):
    def fussy(request, *more):
        if request.headers.keys() >= CLIENTS_OWN_HEADERS:
            return DONE
        return answer if isinstance(answer, Answer) else answer(request, *more)

    server.answer = fussy
    for _ in range(6):
        assert not delete()["Failed"]
    assert server.fast == [False, *[True, False] * MAX_MISTAKES, False, False]
    (record,) = caplog.records
    assert "from now on" in record.getMessage()


def test_after_an_error_of_our_own_the_client_makes_the_request(server, delete, monkeypatch):
    delete()
    with monkeypatch.context() as patch:
        patch.setattr(FastRequests, "answer", lambda *_: 1 / 0)
        assert not delete()["Failed"]
    delete()
    assert server.fast == [False, False, True]


@pytest.mark.parametrize("ends", ["down", "silent"])
def test_no_answer_is_the_clients_error(server, make_caller, ends):
    caller = make_caller(read_timeout=1)
    caller.call(DELETE, server.deletion)
    server.answer = lambda _request, _forward, removed: removed.wait() and break_off()
    if ends == "down":
        server.proxy.refuse()
    assert said(lambda: caller.call(DELETE, server.deletion)) == said(
        lambda: caller.client.delete_message_batch(**server.deletion)
    )
    assert server.fast in ([False], [False, True, False])


def test_listeners_to_the_clients_requests_hear_of_fast_ones_and_may_add_headers(server, caller, delete):
    numbers = itertools.count()
    heard = []

    def add_header(request, **_):
        request.headers["x-amz-new"] = str(next(numbers))

    def hear(request, **_):
        heard.append(request)

    caller.client.meta.events.register("before-sign.sqs", add_header)
    caller.client.meta.events.register(f"before-send.sqs.{DELETE}", hear)
    for _ in range(3):
        delete()
    assert server.fast == [False, True, True]
    assert [request.headers["x-amz-new"] for request in server.requests] == ["0", "1", "2"]
    assert signature_is_valid(server.requests[-1], Credentials("AKIDEXAMPLE", "hush"))
    assert [json.loads(request.body) for request in heard] == [server.deletion] * 3
    assert all(request.headers["Authorization"] for request in heard)


def test_a_listener_that_comes_later_is_heard_of_too(server, caller, delete):
    heard = []
    for _ in range(2):
        delete()
    caller.client.meta.events.register(
        f"before-send.sqs.{DELETE}", lambda request, **_: heard.append(request)
    )
    for _ in range(2):
        delete()
    assert server.fast == [False, True, True, True]
    assert len(heard) == 2


def test_a_stubber_answers_in_place_of_fast_requests_while_it_is_active(server, caller, delete):
    for _ in range(2):
        delete()
    stubber = Stubber(caller.client)
    for _ in range(2):
        stubber.add_response("delete_message_batch", {"Successful": [{"Id": "7"}], "Failed": []})
    with stubber:
        assert [delete()["Successful"] for _ in range(2)] == [[{"Id": "7"}]] * 2
    for _ in range(2):
        delete()
    assert server.fast == [False, True, True, True]


def trace(monkeypatch):
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "f")
    monkeypatch.setenv("_X_AMZN_TRACE_ID", "Root=1-2-3")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (trace, "'x-amzn-trace-id'"),
        (lambda monkeypatch: monkeypatch.delattr("botocore.parsers.create_parser"), "create_parser"),
    ],
    ids=["a header of one request", "a part that botocore lacks"],
)
def test_the_client_makes_all_requests_where_the_template_cannot_be_used(
    server, delete, monkeypatch, caplog, change, reason
):
    change(monkeypatch)
    with caplog.at_level("INFO", "celery_sqs_visibility"):
        for _ in range(3):
            delete()
    assert server.fast == [False] * 3
    (record,) = caplog.records
    assert reason in record.getMessage()


STORED = json_answer(200, {"MessageId": "1"})
DENIED = json_answer(403, {"__type": "com.amazon.coral.service#AccessDeniedException", "message": "no"})
GATEWAY = error("", 400)


@pytest.fixture
def send(server, caller):
    server.answer = STORED
    params = {"QueueUrl": server.deletion["QueueUrl"], "MessageBody": "h\xe4"}

    def send(**more):
        return caller.call("SendMessage", {**params, **more}, is_json=not more)

    return send


def test_a_publication_is_fast_but_for_the_first_and_for_bytes(server, send):
    attributes = {"a": {"DataType": "Binary", "BinaryValue": b"\xff"}}
    for more in ({}, {}, {"MessageAttributes": attributes}):
        assert send(**more)["MessageId"] == "1"
    assert server.fast == [False, True, False]
    assert server.requests[0].body == server.requests[1].body


@pytest.mark.parametrize(
    ("answer", "fast"),
    [(DENIED, [True, False]), (GATEWAY, [True]), (break_off, [True])],
    ids=["refused", "perhaps stored", "no answer"],
)
def test_the_client_repeats_a_publication_only_where_sqs_has_refused_it(server, send, answer, fast):
    send()
    server.answer = answer
    with pytest.raises(Exception, match=r"."):
        send()
    assert server.fast == [False, *fast]


def test_no_publication_is_repeated_once_sqs_has_accepted_one_of_that_form(server, send):
    send()
    send()
    server.answer = DENIED
    with pytest.raises(Exception, match="AccessDenied"):
        send()
    assert server.fast == [False, True, True]


def test_the_client_makes_all_requests_that_it_is_to_try_several_times(server):
    settings = ClientSettings(
        "eu-west-1",
        server.proxy.url,
        access_key_id="AKIDEXAMPLE",
        secret_access_key="hush",
        config=frozen_config({"retries": {"max_attempts": 2}}),
    )
    caller = Caller(new_client(settings, ClientPurpose.PUBLISH))
    server.answer = STORED
    for _ in range(3):
        caller.call("SendMessage", {"QueueUrl": "u", "MessageBody": "b"})
    caller.close()
    assert server.fast == [False, False, False]


def test_motos_mock_answers_fast_requests():
    with mock_aws():
        caller = Caller(new_client(ClientSettings("us-east-1"), ClientPurpose.SETTLE))
        url = caller.call("CreateQueue", {"QueueName": "q"})["QueueUrl"]
        for body in ("first", "second"):
            caller.call("SendMessage", {"QueueUrl": url, "MessageBody": body})
            (message,) = caller.call(RECEIVE, {"QueueUrl": url})["Messages"]
            assert message["Body"] == body
            entries = [{"Id": "0", "ReceiptHandle": message["ReceiptHandle"]}]
            assert caller.call(DELETE, {"QueueUrl": url, "Entries": entries})["Successful"] == [{"Id": "0"}]
        caller.close()


@pytest.mark.parametrize("by", ["OpenTelemetry", "a function"])
def test_who_patches_clients_sees_every_request_from_then_on(server, delete, request, monkeypatch, by):
    delete()
    delete()
    if by == "OpenTelemetry":
        seen = request.getfixturevalue("instrumented")()
    else:
        seen = patched_by_a_function(monkeypatch)
    delete()
    delete()
    assert server.fast == [False, True, False, False]
    assert [name.removeprefix("SQS.") for name in seen()] == [DELETE, DELETE]


HEADERS = {
    "content-type": "application/x-amz-json-1.0",
    "x-amz-target": "AmazonSQS.DeleteMessageBatch",
    "user-agent": "Boto3 \N{KATAKANA LETTER TA}".encode(),
}
TIME, LATER, TOMORROW = "20260102T030405Z", "20260102T235959Z", "20260103T000000Z"


def auth_of(token=None, key="AKID"):
    return SigV4Auth(ReadOnlyCredentials(key, "hush", token), "sqs", "eu-west-1")


def sign_at(auth, time, body):
    """As botocore signs it at that time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("botocore.auth.SIGV4_TIMESTAMP", time)
        request = AWSRequest("POST", "https://sqs.eu-west-1.amazonaws.com/", dict(HEADERS), body)
        auth.add_auth(request)
    return request


def lines_of(request):
    head, _, body = request.partition(b"\r\n\r\n")
    first, *headers = head.split(b"\r\n")
    return first, {header.partition(b": ")[0].lower(): header.partition(b": ")[2] for header in headers}, body


def as_sent(request):
    """The headers of a request that botocore has signed, as http.client would encode them."""
    headers = request.prepare().headers.items()
    return {
        name.lower().encode(): value if isinstance(value, bytes) else value.encode("latin-1")
        for name, value in headers
    }


@given(body=st.binary(min_size=1), token=st.none() | st.just("a token+/="))
def test_another_body_at_another_time_is_signed_as_botocore_signs_it(body, token):
    auth = auth_of(token)
    form = SignedForm(auth, sign_at(auth, TIME, b"{}"))
    first, headers, sent = lines_of(form.filled_in(auth, LATER, body))
    expected = as_sent(sign_at(auth, LATER, body))
    added = {b"host": b"sqs.eu-west-1.amazonaws.com", b"accept-encoding": b"identity"}
    assert (first, headers, sent) == (b"POST / HTTP/1.1", expected | added, body)


@pytest.mark.parametrize(
    ("auth", "time", "holds"),
    [
        (auth_of("token"), LATER, True),
        (auth_of("token"), TOMORROW, False),
        (auth_of("another"), LATER, False),
        (auth_of("token", "AKIDB"), LATER, False),
    ],
    ids=["later", "another day", "another token", "another key"],
)
def test_a_form_is_for_one_day_and_one_set_of_credentials(auth, time, holds):
    form = SignedForm(auth_of("token"), sign_at(auth_of("token"), TIME, b"{}"))
    assert form.is_for(auth, time) is holds


def unsigned():
    return AWSRequest("POST", "https://sqs.eu-west-1.amazonaws.com/", dict(HEADERS), b"{}")


def signed_otherwise():
    request = sign_at(auth_of(), TIME, b"{}")
    request.headers.replace_header("Authorization", "Bearer of news")
    return request


def with_the_time_twice():
    request = unsigned()
    request.headers["x-also-at"] = TIME
    request.context["timestamp"] = TIME
    request.headers["X-Amz-Date"] = TIME
    return request


@pytest.mark.parametrize(
    "request_",
    [unsigned(), signed_otherwise(), with_the_time_twice(), sign_at(auth_of(key="B"), TIME, b"{}")],
)
def test_a_signature_of_another_form_is_refused(request_):
    with pytest.raises(ValueError, match="form"):
        SignedForm(auth_of(), request_)

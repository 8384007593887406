"""A form that is filled in is what botocore would have signed."""

from __future__ import annotations

import botocore
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.aws.fast_requests import SignedForm

HEADERS = {
    "content-type": "application/x-amz-json-1.0",
    "x-amz-target": "AmazonSQS.DeleteMessageBatch",
    "user-agent": "Boto3 \N{KATAKANA LETTER TA}".encode(),
}
TIME, LATER, TOMORROW = "20260102T030405Z", "20260102T235959Z", "20260103T000000Z"


def auth_of(token=None, key="AKID"):
    return SigV4Auth(ReadOnlyCredentials(key, "hush", token), "sqs", "eu-west-1")


def signed(auth, time, body, url="https://sqs.eu-west-1.amazonaws.com/"):
    """As botocore signs it at that time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("botocore.auth.SIGV4_TIMESTAMP", time)
        request = AWSRequest("POST", url, dict(HEADERS), body)
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
    form = SignedForm(auth, signed(auth, TIME, b"{}"))
    first, headers, sent = lines_of(form.filled_in(auth, LATER, body))
    expected = as_sent(signed(auth, LATER, body))
    added = {b"host": b"sqs.eu-west-1.amazonaws.com", b"accept-encoding": b"identity"}
    assert (first, headers, sent) == (b"POST / HTTP/1.1", expected | added, body)


def test_a_form_keeps_the_endpoints_path_and_port():
    auth = auth_of()
    form = SignedForm(auth, signed(auth, TIME, b"{}", "http://127.0.0.1:9324/sqs/a b"))
    first, headers, _ = lines_of(form.filled_in(auth, TIME, b"{}"))
    assert (first, headers[b"host"]) == (b"POST /sqs/a b HTTP/1.1", b"127.0.0.1:9324")


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
    form = SignedForm(auth_of("token"), signed(auth_of("token"), TIME, b"{}"))
    assert form.is_for(auth, time) is holds


def unsigned():
    return AWSRequest("POST", "https://sqs.eu-west-1.amazonaws.com/", dict(HEADERS), b"{}")


def signed_otherwise():
    request = signed(auth_of(), TIME, b"{}")
    request.headers.replace_header("Authorization", "Bearer of news")
    return request


def with_the_time_twice():
    request = unsigned()
    request.headers["x-also-at"] = TIME
    request.context["timestamp"] = TIME
    request.headers["X-Amz-Date"] = TIME
    return request


@pytest.mark.parametrize(
    "request_", [unsigned(), signed_otherwise(), with_the_time_twice(), signed(auth_of(key="B"), TIME, b"{}")]
)
def test_a_signature_of_another_form_is_refused(request_):
    with pytest.raises(ValueError, match="form"):
        SignedForm(auth_of(), request_)


def test_botocore_is_the_one_that_this_is_written_for():
    assert botocore.auth.SIGV4_TIMESTAMP == "%Y%m%dT%H%M%SZ"

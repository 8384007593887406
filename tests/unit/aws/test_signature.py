"""Our signature of a request is the one that botocore makes."""

from __future__ import annotations

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.aws.signature import (
    Scope,
    authorization,
    signed_host,
    signing_key,
    timestamp,
)

NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=20)
KEYS = st.text("ABCDEFGHabcdefgh0123456789+/=", min_size=1, max_size=40)
HOSTS = st.sampled_from(
    ["https://sqs.eu-west-1.amazonaws.com", "http://127.0.0.1:4566", "http://[::1]:4566", "https://Host:443"]
)


@given(
    body=st.binary(max_size=300),
    region=NAMES,
    access_key=KEYS.map(lambda key: key.replace("/", "")),
    secret_key=KEYS,
    token=st.none() | KEYS,
    host=HOSTS,
    seconds=st.integers(0, 250_000_000_000),
)
def test_it_is_botocores(body, region, access_key, secret_key, token, host, seconds):
    headers = {
        "content-type": "application/x-amz-json-1.0",
        "host": signed_host(host),
        "x-amz-date": timestamp(seconds),
    }
    if token:
        headers["x-amz-security-token"] = token
    request = AWSRequest("POST", f"{host}/", {k: v for k, v in headers.items() if k != "host"}, body)
    request.context["timestamp"] = headers["x-amz-date"]
    signer = SigV4Auth(Credentials(access_key, secret_key, token), "sqs", region)
    signature = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
    listed = signer.signed_headers(signer.headers_to_sign(request))
    scope = Scope(region, "sqs")
    key = signing_key(secret_key, scope, headers["x-amz-date"][:8])
    assert authorization(access_key, key, scope, headers, body) == (
        f"AWS4-HMAC-SHA256 Credential={signer.scope(request)}, SignedHeaders={listed}, Signature={signature}"
    )


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0, "19700101T000000Z"), (1_795_284_000.999, "20261121T180000Z")]
)
def test_a_timestamp_is_in_utc_and_in_whole_seconds(seconds, expected):
    assert timestamp(seconds) == expected

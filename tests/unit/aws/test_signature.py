"""Our signature of a request is the one that botocore makes."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from botocore import auth
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.aws.signature import Scope, authorization, signed_host, timestamp

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
    seconds=st.datetimes().filter(lambda moment: moment.year > 1970),
)
def test_it_is_botocores(body, region, access_key, secret_key, token, host, seconds):
    request = AWSRequest("POST", f"{host}/", {"Content-Type": "application/x-amz-json-1.0"}, body)
    with patch.object(auth, "get_current_datetime", lambda: seconds):
        SigV4Auth(Credentials(access_key, secret_key, token), "sqs", region).add_auth(request)
    headers = {
        "content-type": "application/x-amz-json-1.0",
        "host": signed_host(host),
        "x-amz-date": request.headers["X-Amz-Date"],
    }
    if token:
        headers["x-amz-security-token"] = token
    ours = authorization(access_key, secret_key, Scope(region, "sqs"), headers, body)
    assert ours == request.headers["Authorization"]


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0, "19700101T000000Z"), (1_795_284_000.999, "20261121T180000Z")]
)
def test_a_timestamp_is_in_utc_and_in_whole_seconds(seconds, expected):
    assert timestamp(seconds) == expected

"""A role's credentials: fetched when needed, renewed in time, by the way that the settings name."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from support.faults import Answer, json_answer
from support.proxy import FaultProxy

from celery_sqs_visibility.aws.boto import BotoSQS
from celery_sqs_visibility.aws.client_settings import ClientSettings, frozen_config
from celery_sqs_visibility.aws.roles import renewal_times
from celery_sqs_visibility.errors import AccessDeniedError

KEYS = {"access_key_id": "AKIAEXAMPLE", "secret_access_key": "hush"}
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

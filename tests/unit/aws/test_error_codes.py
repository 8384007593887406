"""What botocore raises, and what we make of it."""

from __future__ import annotations

import json

import pytest
from botocore import exceptions
from botocore.parsers import ResponseParserError

from celery_sqs_visibility.aws.error_codes import translate, translate_entry
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    ClockSkewError,
    CredentialsRefusedError,
    OverLimitError,
    QueueDoesNotExistError,
    ReceiptHandleInvalidError,
    RequestRefusedError,
    ThrottledError,
    UnavailableError,
    UnrecognizedResponseError,
)

HANDLE_EXPIRED = "Value AQEB= for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired."
NOT_AVAILABLE = (
    "Value AQEB= for parameter ReceiptHandle is invalid. Reason: Message does not exist or is not "
    "available for visibility timeout change."
)
BEYOND = (
    "Value 43200 for parameter VisibilityTimeout is invalid. Reason: Total VisibilityTimeout for the "
    "message is beyond the limit [43200 seconds]."
)


def answer(code, message="", status=400, operation="ReceiveMessage", **error):
    response = {
        "Error": {"Code": code, "Message": message, **error},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return exceptions.ClientError(response, operation)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("InternalError", UnavailableError),
        ("InternalFailure", UnavailableError),
        ("ServiceUnavailable", UnavailableError),
        ("RequestTimeout", UnavailableError),
        ("RequestThrottled", ThrottledError),
        ("Throttling", ThrottledError),
        ("ThrottlingException", ThrottledError),
        ("TooManyRequestsException", ThrottledError),
        ("RequestLimitExceeded", ThrottledError),
        ("SlowDown", ThrottledError),
        ("KmsThrottled", ThrottledError),
        ("KMS.ThrottlingException", ThrottledError),
        ("AWS.SimpleQueueService.QueueDeletedRecently", ThrottledError),
        ("OverLimit", OverLimitError),
        ("com.amazonaws.sqs#OverLimit", OverLimitError),
        ("ExpiredToken", CredentialsRefusedError),
        ("ExpiredTokenException", CredentialsRefusedError),
        ("RequestExpired", ClockSkewError),
        ("InvalidClientTokenId", CredentialsRefusedError),
        ("UnrecognizedClientException", CredentialsRefusedError),
        ("SignatureDoesNotMatch", CredentialsRefusedError),
        ("InvalidSignatureException", CredentialsRefusedError),
        ("MissingAuthenticationToken", CredentialsRefusedError),
        ("RequestTimeTooSkewed", ClockSkewError),
        ("AccessDenied", AccessDeniedError),
        ("AccessDeniedException", AccessDeniedError),
        ("UnauthorizedOperation", AccessDeniedError),
        ("KmsAccessDenied", AccessDeniedError),
        ("KMS.AccessDeniedException", AccessDeniedError),
        ("KMS.DisabledException", AccessDeniedError),
        ("QueueDoesNotExist", QueueDoesNotExistError),
        ("com.amazonaws.sqs#QueueDoesNotExist", QueueDoesNotExistError),
        ("AWS.SimpleQueueService.NonExistentQueue", QueueDoesNotExistError),
        ("ReceiptHandleIsInvalid", ReceiptHandleInvalidError),
        ("MessageNotInflight", ReceiptHandleInvalidError),
        ("AWS.SimpleQueueService.MessageNotInflight", ReceiptHandleInvalidError),
        ("InvalidParameterValue", RequestRefusedError),
        ("BatchRequestTooLong", RequestRefusedError),
        ("AWS.SimpleQueueService.TooManyEntriesInBatchRequest", RequestRefusedError),
    ],
)
def test_a_code_has_its_class(code, expected):
    assert type(translate(answer(code), "ReceiveMessage")) is expected


@pytest.mark.parametrize("code", ["SignatureDoesNotMatch", "InvalidSignatureException"])
@pytest.mark.parametrize(
    "said", ["Signature expired: 20260101T000000Z is now earlier than", "Signature not yet current"]
)
def test_a_signature_out_of_time_is_a_matter_of_the_clock(code, said):
    assert type(translate(answer(code, said), "ReceiveMessage")) is ClockSkewError


@pytest.mark.parametrize("action", ["ChangeMessageVisibility", "ChangeMessageVisibilityBatch"])
def test_a_missing_permission_is_named(action):
    error = translate(answer("AccessDeniedException", "no", operation=action), action)
    assert str(error).endswith("(the permission is sqs:ChangeMessageVisibility)")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (HANDLE_EXPIRED, ReceiptHandleInvalidError),
        (NOT_AVAILABLE, ReceiptHandleInvalidError),
        (BEYOND, RequestRefusedError),
    ],
)
@pytest.mark.parametrize("code", ["InvalidParameterValue", "InvalidParameterValueException"])
def test_an_invalid_parameter_may_be_the_handle(code, message, expected):
    assert type(translate(answer(code, message), "ChangeMessageVisibility")) is expected
    entry = {"Id": "0", "Code": code, "Message": message, "SenderFault": True}
    assert type(translate_entry(entry, "ChangeMessageVisibilityBatch")) is expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, RequestRefusedError),
        (401, CredentialsRefusedError),
        (403, AccessDeniedError),
        (404, RequestRefusedError),
        (408, UnavailableError),
        (429, ThrottledError),
        (500, UnavailableError),
        (503, UnavailableError),
    ],
)
def test_an_unknown_code_is_judged_by_its_status(status, expected):
    assert type(translate(answer("Novelty", status=status), "ReceiveMessage")) is expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (302, UnrecognizedResponseError),
        (400, UnrecognizedResponseError),
        (401, CredentialsRefusedError),
        (403, AccessDeniedError),
        (404, UnrecognizedResponseError),
        (407, UnrecognizedResponseError),
        (408, UnavailableError),
        (429, ThrottledError),
        (503, UnavailableError),
    ],
)
def test_sqs_gives_a_code_with_each_refusal(status, expected):
    for code in ("", str(status)):  # botocore puts the status where a code should be
        assert type(translate(answer(code, status=status), "DeleteMessageBatch")) is expected


def test_expired_credentials_are_not_a_missing_permission_though_both_are_403():
    assert type(translate(answer("ExpiredToken", status=403), "ReceiveMessage")) is CredentialsRefusedError


def test_the_code_of_the_other_protocol_counts_when_the_first_is_unknown():
    error = translate(answer("Novelty", QueryErrorCode="com.amazonaws.sqs#RequestThrottled"), "SendMessage")
    assert type(error) is ThrottledError


@pytest.mark.parametrize(
    ("exception", "expected"),
    [
        (exceptions.EndpointConnectionError(endpoint_url="u"), UnavailableError),
        (exceptions.ConnectTimeoutError(endpoint_url="u"), UnavailableError),
        (exceptions.ReadTimeoutError(endpoint_url="u"), UnavailableError),
        (exceptions.ConnectionClosedError(endpoint_url="u"), UnavailableError),
        (exceptions.HTTPClientError(error="e"), UnavailableError),
        (exceptions.SSLError(endpoint_url="u", error="e"), UnavailableError),
        (exceptions.ProxyConnectionError(proxy_url="u"), UnavailableError),
        (ResponseParserError("not JSON"), UnavailableError),
        (ConnectionResetError("reset"), UnavailableError),
        (KeyError("QueueUrl"), UnavailableError),
        (json.JSONDecodeError("no", "", 0), UnavailableError),
        (exceptions.NoCredentialsError(), CredentialsRefusedError),
        (exceptions.PartialCredentialsError(provider="p", cred_var="v"), CredentialsRefusedError),
        (exceptions.CredentialRetrievalError(provider="p", error_msg="e"), CredentialsRefusedError),
        (exceptions.TokenRetrievalError(provider="p", error_msg="e"), CredentialsRefusedError),
        (exceptions.UnauthorizedSSOTokenError(), CredentialsRefusedError),
        (exceptions.ProfileNotFound(profile="p"), CredentialsRefusedError),
        (exceptions.ConfigParseError(path="p"), CredentialsRefusedError),
        (exceptions.ParamValidationError(report="r"), RequestRefusedError),
        (exceptions.UnknownEndpointError(service_name="s", region_name="r"), RequestRefusedError),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_an_exception_without_an_answer_has_its_class(exception, expected):
    error = translate(exception, "ReceiveMessage")
    assert type(error) is expected
    assert (error.code, error.action) == (type(exception).__name__, "ReceiveMessage")


def test_the_message_names_action_and_code_and_keeps_the_cause():
    cause = answer("com.amazonaws.sqs#RequestThrottled", "Slow down.")
    error = translate(cause, "ReceiveMessage")
    assert str(error) == "ReceiveMessage was answered RequestThrottled: Slow down."
    assert error.__cause__ is cause


def test_another_request_made_on_the_way_is_named():
    cause = answer("AccessDenied", "No.", status=403, operation="AssumeRole")
    error = translate(cause, "SendMessage")
    assert str(error) == "SendMessage needs AssumeRole, which was answered AccessDenied: No."
    assert error.action == "SendMessage"


def test_our_own_errors_pass_unchanged():
    error = ThrottledError("slow down", code="c", action="a")
    assert translate(error, "SendMessage") is error


def test_an_entry_that_failed_by_the_servers_fault_is_worth_another_try():
    entry = {"Id": "3", "Code": "Novelty", "SenderFault": False}
    error = translate_entry(entry, "DeleteMessageBatch")
    assert type(error) is UnavailableError
    assert str(error) == "DeleteMessageBatch was answered Novelty: no reason given"

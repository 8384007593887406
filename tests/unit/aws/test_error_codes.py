"""botocore's exceptions and SQS's codes become our errors."""

import pickle

import pytest
from botocore import exceptions
from botocore.parsers import ResponseParserError

from celery_sqs_visibility.aws.error_codes import reword, translate, translate_entry
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    AnswerLostError,
    ClockSkewError,
    CredentialsRefusedError,
    ObjectDoesNotExistError,
    OverLimitError,
    QueueDoesNotExistError,
    ReceiptHandleInvalidError,
    RequestRefusedError,
    ThrottledError,
    TLSError,
    UnavailableError,
    UnrecognizedResponseError,
)

NO_TARGET = "Value {} for parameter RedrivePolicy is invalid. Reason: Dead letter target does not exist."
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


CODES = {
    UnavailableError: "InternalError InternalFailure ServiceUnavailable RequestTimeout",
    ThrottledError: "RequestThrottled Throttling ThrottlingException TooManyRequestsException SlowDown "
    "RequestLimitExceeded KmsThrottled KMSThrottling KMS.ThrottlingException "
    "AWS.SimpleQueueService.QueueDeletedRecently",
    OverLimitError: "OverLimit com.amazonaws.sqs#OverLimit",
    CredentialsRefusedError: "ExpiredToken ExpiredTokenException InvalidClientTokenId SignatureDoesNotMatch "
    "UnrecognizedClientException InvalidSignatureException MissingAuthenticationToken",
    ClockSkewError: "RequestExpired RequestTimeTooSkewed",
    AccessDeniedError: "AccessDenied AccessDeniedException UnauthorizedOperation KmsAccessDenied "
    "KMS.AccessDeniedException KMS.DisabledException AuthorizationError KMSDisabled KMSAccessDenied",
    ObjectDoesNotExistError: "NoSuchKey",
    QueueDoesNotExistError: "QueueDoesNotExist com.amazonaws.sqs#QueueDoesNotExist "
    "AWS.SimpleQueueService.NonExistentQueue",
    ReceiptHandleInvalidError: "ReceiptHandleIsInvalid MessageNotInflight "
    "AWS.SimpleQueueService.MessageNotInflight",
    RequestRefusedError: "InvalidParameterValue BatchRequestTooLong "
    "AWS.SimpleQueueService.TooManyEntriesInBatchRequest TopicLimitExceeded NotFound InvalidParameter",
}


@pytest.mark.parametrize(
    ("code", "expected"), [(code, cls) for cls, codes in CODES.items() for code in codes.split()]
)
def test_a_code_has_its_class(code, expected):
    assert type(translate(answer(code), "ReceiveMessage")) is expected


@pytest.mark.parametrize("code", ["SignatureDoesNotMatch", "InvalidSignatureException"])
@pytest.mark.parametrize("said", ["Signature expired: 2026 is now earlier than", "Signature not yet current"])
def test_a_signature_out_of_time_is_a_matter_of_the_clock(code, said):
    assert type(translate(answer(code, said), "ReceiveMessage")) is ClockSkewError


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (HANDLE_EXPIRED, ReceiptHandleInvalidError),
        (NOT_AVAILABLE, ReceiptHandleInvalidError),
        (BEYOND, RequestRefusedError),
        (NO_TARGET, QueueDoesNotExistError),
    ],
)
@pytest.mark.parametrize("code", ["InvalidParameterValue", "InvalidParameterValueException"])
def test_an_invalid_parameter_may_be_the_handle_or_the_dead_letter_queue(code, message, expected):
    assert type(translate(answer(code, message), "ChangeMessageVisibility")) is expected
    entry = {"Id": "0", "Code": code, "Message": message, "SenderFault": True}
    assert type(translate_entry(entry, "ChangeMessageVisibilityBatch")) is expected


@pytest.mark.parametrize(
    ("status", "with_a_code", "without"),
    [
        *((status, RequestRefusedError, UnrecognizedResponseError) for status in (302, 400, 404, 407)),
        (401, CredentialsRefusedError, CredentialsRefusedError),
        (403, AccessDeniedError, AccessDeniedError),
        (408, UnavailableError, UnavailableError),
        (429, ThrottledError, ThrottledError),
        (500, UnavailableError, UnavailableError),
        (503, UnavailableError, UnavailableError),
    ],
)
def test_an_unknown_code_or_none_is_judged_by_its_status(status, with_a_code, without):
    assert type(translate(answer("Novelty", status=status), "ReceiveMessage")) is with_a_code
    for code in ("", str(status)):  # botocore puts the status where a code should be
        assert type(translate(answer(code, status=status), "DeleteMessageBatch")) is without


def test_a_known_code_counts_more_than_the_status_and_an_unknown_one():
    error = answer("ExpiredToken", status=403)
    assert type(translate(error, "ReceiveMessage")) is CredentialsRefusedError
    error = answer("Novelty", QueryErrorCode="com.amazonaws.sqs#RequestThrottled")
    assert type(translate(error, "SendMessage")) is ThrottledError


@pytest.mark.parametrize(
    ("exception", "expected"),
    [
        (exceptions.EndpointConnectionError(endpoint_url="u"), UnavailableError),
        (exceptions.ConnectTimeoutError(endpoint_url="u"), UnavailableError),
        (exceptions.ReadTimeoutError(endpoint_url="u"), AnswerLostError),
        (exceptions.ConnectionClosedError(endpoint_url="u"), AnswerLostError),
        (exceptions.HTTPClientError(error="e"), AnswerLostError),
        (exceptions.SSLError(endpoint_url="u", error="UNEXPECTED_EOF_WHILE_READING"), AnswerLostError),
        (exceptions.SSLError(endpoint_url="u", error="[SSL: CERTIFICATE_VERIFY_FAILED]"), TLSError),
        (exceptions.ProxyConnectionError(proxy_url="u"), UnavailableError),
        (ResponseParserError("not JSON"), AnswerLostError),
        (ConnectionResetError("reset"), AnswerLostError),
        (KeyError("QueueUrl"), AnswerLostError),
        (exceptions.NoCredentialsError(), CredentialsRefusedError),
        (exceptions.PartialCredentialsError(provider="p", cred_var="v"), CredentialsRefusedError),
        (exceptions.CredentialRetrievalError(provider="p", error_msg="e"), CredentialsRefusedError),
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


@pytest.mark.parametrize(
    ("exception", "said"),
    [
        (exceptions.NoCredentialsError(), "no AWS credentials were found; set AWS_ACCESS_KEY_ID"),
        (exceptions.ProfileNotFound(profile="p"), "The config profile (p) could not be found; set AWS_"),
        (exceptions.SSLError(endpoint_url="u", error="CERTIFICATE_VERIFY_FAILED"), "in AWS_CA_BUNDLE"),
        (
            exceptions.SSLError(endpoint_url="u", error="WRONG_VERSION_NUMBER"),
            "leave out the option is_secure",
        ),
        (exceptions.ConnectionClosedError(endpoint_url="http://u"), "set the option is_secure"),
    ],
    ids=repr,
)
def test_of_wrong_settings_the_sentence_says_what_to_do(exception, said):
    error = translate(exception, "ReceiveMessage")
    assert said in str(error)
    assert type(exception).__name__ not in str(error)


def test_refused_credentials_are_said_to_be_checked_but_not_for_a_wrong_clock():
    hint = "check the AWS credentials in the environment"
    assert hint in str(translate(answer("InvalidClientTokenId", "no."), "ReceiveMessage"))
    assert hint not in str(translate(answer("RequestExpired", "no."), "ReceiveMessage"))


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (answer("com.amazonaws.sqs#RequestThrottled", "No."), "was answered RequestThrottled: No."),
        (
            answer("AccessDenied", "No.", operation="AssumeRole"),
            "needs AssumeRole, which was answered AccessDenied: No.",
        ),
    ],
    ids=["of the action itself", "of another request on the way"],
)
def test_the_message_names_action_and_code_and_keeps_the_cause(cause, said):
    error = translate(cause, "ReceiveMessage")
    assert (str(error), error.action) == (f"ReceiveMessage {said}", "ReceiveMessage")
    assert error.__cause__ is cause


def test_silence_of_sns_names_sns():
    silent = translate(exceptions.ReadTimeoutError(endpoint_url="u"), "Publish", "SNS")
    assert "Publish got no answer from SNS" in str(silent)


def test_an_entry_that_failed_by_the_servers_fault_is_worth_another_try():
    entry = {"Id": "3", "Code": "Novelty", "SenderFault": False}
    error = translate_entry(entry, "DeleteMessageBatch")
    assert type(error) is UnavailableError
    assert str(error) == "DeleteMessageBatch was answered Novelty: no reason given"


def test_our_own_errors_pass_unchanged_and_survive_pickling_and_new_words():
    error = ThrottledError("slow down", code="c", action="a")
    assert translate(error, "SendMessage") is error
    pickled = pickle.loads(pickle.dumps(error))
    other_words = reword(error, "wait: slow down")
    assert (str(pickled), str(other_words)) == ("slow down", "wait: slow down")
    for each in pickled, other_words:
        assert (type(each), each.code, each.action) == (ThrottledError, "c", "a")


@pytest.mark.parametrize(
    ("service", "action", "message", "told"),
    [
        ("sqs", "ChangeMessageVisibility", "no", "no (the permission is sqs:ChangeMessageVisibility)"),
        ("sqs", "ChangeMessageVisibilityBatch", "no", "no (the permission is sqs:ChangeMessageVisibility)"),
        ("sns", "Publish", "no", "no (the permission is sns:Publish)"),
        ("s3", "GetObject", "no", "no (the permission is s3:GetObject)"),
        ("s3", "DeleteObjects", "no", "no (the permission is s3:DeleteObject)"),
        ("s3", "PutObject", "may not perform kms:GenerateDataKey", "may not perform kms:GenerateDataKey"),
    ],
)
@pytest.mark.parametrize("code", ["AccessDenied", "AccessDeniedException", "AuthorizationError"])
def test_a_missing_permission_is_named(code, service, action, message, told):
    error = translate(answer(code, message, 403, action), action, service)
    assert type(error) is AccessDeniedError
    assert str(error) == f"{action} was answered {code}: {told}"


def test_a_page_in_place_of_an_answer_is_shown_in_one_short_line():
    error = translate(answer("502", "<html>\n<title>502 Bad Gateway</title>\n" * 99, 502), "ReceiveMessage")
    assert str(error).startswith("ReceiveMessage was answered 502: 502 Bad Gateway 502 Bad Gateway")
    for each in (error, error.__cause__):  # a traceback shows both
        assert (len(str(each)) < 250, "\n" in str(each), "<" in str(each)) == (True, False, False)


def test_a_page_without_a_tag_is_cut_as_well():
    error = translate(answer("503", "upstream connect error\n" * 99, 503), "ReceiveMessage")
    assert str(error).startswith("ReceiveMessage was answered 503: upstream connect error upstream")
    assert (len(str(error)) < 250, len(str(error.__cause__)) < 250) == (True, True)


def test_a_refusal_with_a_code_keeps_all_that_aws_says():
    reason = "the policy <arn:aws:iam::1:policy/p>\n" * 20
    error = translate(answer("AccessDenied", reason, 403), "ReceiveMessage")
    assert reason in str(error)
    assert reason in str(error.__cause__)


def test_a_page_in_place_of_an_answer_is_called_so():
    error = translate(KeyError("QueueUrl"), "GetQueueUrl")
    assert "its answer has no 'QueueUrl': is the endpoint right" in str(error)


def test_an_answer_that_points_elsewhere_says_where():
    response = {
        "Error": {"Code": "307", "Message": "Temporary Redirect"},
        "ResponseMetadata": {"HTTPStatusCode": 307, "HTTPHeaders": {"location": "https://login.example/"}},
    }
    error = translate(exceptions.ClientError(response, "GetQueueUrl"), "GetQueueUrl")
    assert "(redirected to https://login.example/: check the endpoint)" in str(error)

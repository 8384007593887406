"""Translation of botocore's exceptions and AWS error codes to the classes in `errors`.

Exceptions are looked up by name, because importing botocore's classes would cost every producer time.

Sources: "Common errors" and the Errors sections of the Amazon SQS and SNS API References; botocore's
exceptions.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

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
    SQSError,
    ThrottledError,
    TLSError,
    UnavailableError,
    UnrecognizedResponseError,
)
from celery_sqs_visibility.policy.message_limits import truncated

E = TypeVar("E", bound=SQSError)

#: Codes of each class, without namespaces and without the "Exception" that some protocols append.
_CODES: Final[dict[type[SQSError], str]] = {
    UnavailableError: "InternalError InternalFailure InternalServerError InternalService ServiceUnavailable "
    "RequestTimeout IDPCommunicationError",
    # The last two ask for a wait of 60 seconds.
    ThrottledError: "RequestThrottled Throttling Throttled ThrottledRequest RequestThrottledByService "
    "TooManyRequests RequestLimitExceeded BandwidthLimitExceeded LimitExceeded PriorRequestNotComplete "
    "ProvisionedThroughputExceeded TransactionInProgress SlowDown KmsThrottled KmsThrottling "
    "QueueDeletedRecently PurgeQueueInProgress",
    OverLimitError: "OverLimit",
    ClockSkewError: "RequestExpired RequestTimeTooSkewed",
    CredentialsRefusedError: "ExpiredToken InvalidClientTokenId UnrecognizedClient AuthFailure "
    "SignatureDoesNotMatch InvalidSignature IncompleteSignature MissingAuthenticationToken "
    "InvalidAccessKeyId InvalidToken InvalidIdentityToken IDPRejectedClaim",
    # A KMS key that is disabled or missing needs an administrator, like a missing permission.
    AccessDeniedError: "AccessDenied AuthorizationError UnauthorizedOperation NotAuthorized Unauthorized "
    "OptInRequired "
    "KmsAccessDenied KmsDisabled KmsInvalidKeyUsage KmsInvalidState KmsNotFound KmsOptInRequired",
    QueueDoesNotExistError: "QueueDoesNotExist NonExistentQueue",
    ObjectDoesNotExistError: "NoSuchKey",
    ReceiptHandleInvalidError: "ReceiptHandleIsInvalid MessageNotInflight InvalidIdFormat",
    # SNS sends these with the status of a missing permission.
    RequestRefusedError: "FilterPolicyLimitExceeded SubscriptionLimitExceeded TopicLimitExceeded",
}

#: botocore's exceptions by the name of the class or a base. After any other, the request may have been sent.
_EXCEPTIONS: Final[dict[type[SQSError], str]] = {
    # There was no connection to send the request through.
    UnavailableError: "ConnectTimeoutError EndpointConnectionError ProxyConnectionError",
    CredentialsRefusedError: "NoCredentialsError PartialCredentialsError CredentialRetrievalError "
    "NoAuthTokenError TokenRetrievalError UnknownCredentialError RefreshWithMFAUnsupportedError "
    "MetadataRetrievalError SSOError LoginError "
    # Someone may be writing the files with profiles and keys.
    "ProfileNotFound ConfigNotFound ConfigParseError InvalidConfigError",
    RequestRefusedError: "ParamValidationError ValidationError NoRegionError UnknownRegionError "
    "UnknownEndpointError EndpointProviderError InvalidRetryConfigurationError "
    "InvalidEndpointConfigurationError InvalidProxiesConfigError",
}

#: Names of botocore's exceptions for a dependency that did not answer in time, or could not be reached.
_SILENCES: Final = frozenset(
    {"ConnectTimeoutError", "ReadTimeoutError", "EndpointConnectionError", "ProxyConnectionError"}
)

_GIVE_CREDENTIALS: Final = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a role, or write sqs://KEY:SECRET@ as "
    "broker_url"
)

#: OpenSSL's errors that settings cause, and what to do about them. Other errors are temporary.
_TLS_REMEDIES: Final = {
    "CERTIFICATE_VERIFY_FAILED": "name the file of its certificate authority in AWS_CA_BUNDLE",
    "WRONG_VERSION_NUMBER": "the endpoint does not use TLS: leave out the option is_secure, or write http://",
}


def _inverted(table: Mapping[type[SQSError], str]) -> dict[str, type[SQSError]]:
    return {name: cls for cls, names in table.items() for name in names.split()}


_CLASS_BY_CODE: Final = _inverted(_CODES)
_CLASS_BY_EXCEPTION: Final = _inverted(_EXCEPTIONS)

# SQS sends InvalidParameterValue for an expired handle, but also for other errors.
_HANDLE_IS_GONE: Final = re.compile(
    r"message does not exist|not available for visibility|receipt ?handle\b.*\b(invalid|not valid|expired)",
    re.IGNORECASE | re.DOTALL,
)

# The target of a redrive policy may be so new that a part of SQS does not know it.
_TARGET_IS_MISSING: Final = re.compile(r"dead letter target does not exist", re.IGNORECASE)

# SQS's JSON protocol uses one code for a wrong clock and a wrong key.
_CLOCK_IS_WRONG: Final = re.compile(r"signature (expired|not yet current)", re.IGNORECASE)

#: Permissions whose name is not that of the action without "Batch".
_PERMISSIONS: Final = {"DeleteObjects": "DeleteObject"}

_SERVER_ERROR_STATUS: Final = 500
_CLASS_BY_STATUS: Final[dict[int, type[SQSError]]] = {
    401: CredentialsRefusedError,
    403: AccessDeniedError,
    408: UnavailableError,
    429: ThrottledError,
}


def translate(exc: Exception, action: str, service: str = "sqs") -> SQSError:
    """Return the `SQSError` to raise for botocore's exception. An `SQSError` is returned unchanged.

    The exception becomes its `__cause__`, unless settings are wrong: then boto3's traceback does not help. If
    another request failed on the way, such as AssumeRole, the message names it.
    """
    if isinstance(exc, SQSError):
        return exc
    response = getattr(exc, "response", None)
    if isinstance(response, Mapping) and "Error" in response:
        status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode") or 0)
        operation = getattr(exc, "operation_name", action)
        shorten(exc)
        error = _answered(response["Error"], status, action, operation, service)
        if status in range(300, 400):  # botocore follows no redirects of SQS
            location = response["ResponseMetadata"].get("HTTPHeaders", {}).get("location")
            error = reword(error, f"{error} (redirected to {location or 'nowhere'}: check the endpoint)")
    else:
        cls = _class_of_exception(exc)
        error = cls(_unanswered(cls, exc, action, service), code=type(exc).__name__, action=action)
        if cls not in (UnavailableError, AnswerLostError):
            return error
    error.__cause__ = exc
    return error


def shorten(exc: Exception) -> None:
    """Shorten botocore's exception to one line if the answer was a page, for example a proxy's.

    Tracebacks show it as the cause of our error.
    """
    response = getattr(exc, "response", None) or {}
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    if "Error" in response and _is_page(response["Error"], status):
        exc.args = (_line_of(str(exc)),)


def _is_page(error: Mapping[str, Any], status: object) -> bool:
    """Return whether an answer has no code. botocore then uses the status as code and the body as message."""
    return not error.get("QueryErrorCode") and str(error.get("Code") or "") in ("", str(status))


def _line_of(page: str) -> str:
    return truncated(" ".join(re.sub(r"<[^<>]*>", " ", page).split()), 200)


def is_unanswered(error: Exception) -> bool:
    """Return whether there was no answer in time, so that the next request would probably wait too."""
    return isinstance(error, UnavailableError) and error.code in _SILENCES


def _class_of_exception(exc: Exception) -> type[SQSError]:
    names = [base.__name__ for base in type(exc).__mro__]
    if "SSLError" in names and any(reason in str(exc) for reason in _TLS_REMEDIES):
        return TLSError
    return next(filter(None, map(_CLASS_BY_EXCEPTION.get, names)), AnswerLostError)


def wrong_settings(exc: Exception, action: str) -> RequestRefusedError:
    """Return the error for an exception that boto3 raised when it should make a client."""
    return RequestRefusedError(
        _unanswered(RequestRefusedError, exc, action), code=type(exc).__name__, action=action
    )


#: Names of services that are not simply upper case.
_SERVICE_NAMES: Final = {"cloudwatch": "CloudWatch", "logs": "CloudWatch Logs", "dynamodb": "DynamoDB"}


def _unanswered(cls: type[SQSError], exc: Exception, action: str, service: str = "sqs") -> str:
    """Return the message for a request that was not answered, or not sent."""
    code, reason = type(exc).__name__, str(exc).rstrip(".")
    if code == "NoCredentialsError":
        return f"no AWS credentials were found; {_GIVE_CREDENTIALS}"
    if cls is CredentialsRefusedError:
        return f"AWS credentials could not be loaded: {reason}; {_GIVE_CREDENTIALS}"
    if cls is RequestRefusedError:
        return (
            f"the settings are wrong: {reason}; correct the region, the endpoint or the option client-config"
        )
    if cls is TLSError:
        remedies = [remedy for name, remedy in _TLS_REMEDIES.items() if name in reason]
        return f"{action} got no answer over TLS: {'; '.join((reason, *remedies))}"
    asked = _SERVICE_NAMES.get(service, service.upper())
    return f"{action} got no answer from {asked}: {_reason_of_silence(exc)}"


def _reason_of_silence(exc: Exception) -> str:
    name, reason = type(exc).__name__, str(exc).rstrip(".")
    if type(exc) is KeyError:  # raised by us: botocore parses a page as an answer without members
        return f"its answer has no {exc}: is the endpoint right, or does a proxy answer with a page?"
    if not type(exc).__module__.startswith("botocore"):
        return f"{name}: {exc}"
    if name == "ConnectionClosedError" and "http://" in reason:
        return f"{reason} (if the endpoint uses TLS, set the option is_secure, or write https://)"
    return reason


def reword(error: E, sentence: str) -> E:
    """Return an error of the same class and code with the message `sentence`. Raise it from `error`."""
    return type(error)(sentence, code=error.code, action=error.action)


def translate_entry(entry: Mapping[str, Any], action: str, service: str = "sqs") -> SQSError:
    """Return the error of one entry of a batch (API_BatchResultErrorEntry)."""
    # If the code is unknown, SenderFault tells whether a retry may help.
    status = 0 if entry.get("SenderFault", True) else _SERVER_ERROR_STATUS
    return _answered(entry, status, action, action, service)


def _answered(error: Mapping[str, Any], status: int, action: str, operation: str, service: str) -> SQSError:
    raw, query_code = str(error.get("Code") or ""), str(error.get("QueryErrorCode") or "")
    message = str(error.get("Message") or "no reason given")
    cls = _class_of(_short(raw), message) or _class_of(_short(query_code), message)
    has_code = not _is_page(error, status)
    if not has_code:
        message = _line_of(message)
    if cls is None:
        cls = _class_by_status(status, has_code=has_code)
    code = _short(raw) or str(status)
    request = action if operation == action else f"{action} needs {operation}, which"
    sentence = f"{request} was answered {code}: {message}"
    if cls is AccessDeniedError and operation == action and not (code.startswith("Kms") or "kms:" in message):
        sentence += f" (the permission is {service}:{_PERMISSIONS.get(action, action.removesuffix('Batch'))})"
    if cls is CredentialsRefusedError:
        sentence = (
            f"{sentence.rstrip('.')} (check the AWS credentials in the environment, the profile, the role or "
            "broker_url)"
        )
    return cls(sentence, code=code, action=action)


def _class_by_status(status: int, *, has_code: bool) -> type[SQSError]:
    if status >= _SERVER_ERROR_STATUS:
        return UnavailableError
    refused = RequestRefusedError if has_code or not status else UnrecognizedResponseError
    return _CLASS_BY_STATUS.get(status, refused)


def _short(code: str) -> str:
    """Return a code without its namespace: "AWS.SimpleQueueService.", "com.amazonaws.sqs#", "KMS."."""
    namespace, _, name = code.rpartition("#")[2].rpartition(".")
    if name.startswith("KMS"):  # SNS writes "KMSDisabled" where SQS writes "KMS.DisabledException"
        name = f"Kms{name.removeprefix('KMS')}"
    return f"Kms{name}" if namespace == "KMS" else name


def _class_of(code: str, message: str) -> type[SQSError] | None:
    name = code.removesuffix("Exception")
    if name == "InvalidParameterValue" and _HANDLE_IS_GONE.search(message):
        return ReceiptHandleInvalidError
    if name == "InvalidParameterValue" and _TARGET_IS_MISSING.search(message):
        return QueueDoesNotExistError
    cls = _CLASS_BY_CODE.get(name)
    return ClockSkewError if cls is CredentialsRefusedError and _CLOCK_IS_WRONG.search(message) else cls

"""A DynamoDB table over boto3, of which only `UpdateItem` is used."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from celery_sqs_visibility.aws.client_factory import DEFAULT_REGION, brief_config, open_session
from celery_sqs_visibility.aws.error_codes import is_unanswered, shorten, translate
from celery_sqs_visibility.aws.process_lock import ProcessClients
from celery_sqs_visibility.errors import StoreError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from types_boto3_dynamodb import DynamoDBClient

    from celery_sqs_visibility.aws.client_settings import ClientSettings

#: Seconds to connect, and to wait for an answer. DynamoDB usually answers within milliseconds.
TIMEOUT_SECONDS: Final = 3

#: Attempts at an update that is throttled. Updates are conditional, so repeating one is safe.
MAX_ATTEMPTS: Final = 3

#: What to do about an error, by its code.
_REMEDIES: Final = {
    "AccessDeniedException": "allow dynamodb:UpdateItem on the table",
    "ResourceNotFoundException": "create the table, or correct its name or region in coordination_store",
    "ValidationException": "the table's partition key must be `key`, a string, without a sort key",
}


class Table:
    """A table by its name. Any thread. Each process makes its own client."""

    def __init__(self, name: str, settings: ClientSettings) -> None:
        self.name = name
        self._settings = settings
        self._clients = ProcessClients(lambda: _new_client(self._settings))

    def update(
        self, key: str, expression: str, condition: str, **values: str | float
    ) -> tuple[bool, dict[str, Any]]:
        """Change the item if it meets the condition. Returns whether it did, and the item as it is now.

        The expressions may use `#owner`, and the names of `values` after a colon.

        Raises:
            StoreUnavailableError: DynamoDB does not answer.
            StoreError: DynamoDB refuses the request.
        """
        try:
            answer = self._clients.get().update_item(
                TableName=self.name,
                Key={"key": {"S": key}},
                UpdateExpression=expression,
                ConditionExpression=condition,
                ExpressionAttributeNames={"#owner": "owner"},  # a reserved word
                ExpressionAttributeValues={f":{name}": _typed(name, value) for name, value in values.items()},
                ReturnValues="ALL_NEW",
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )
        except Exception as exc:
            response: Mapping[str, Any] = getattr(exc, "response", None) or {}
            if response.get("Error", {}).get("Code") != "ConditionalCheckFailedException":
                raise self._error(exc, response) from exc
            return False, _plain(response.get("Item", {}))
        return True, _plain(answer.get("Attributes", {}))

    def _error(self, exc: Exception, response: Mapping[str, Any]) -> StoreError:
        code = str(response.get("Error", {}).get("Code", type(exc).__name__))
        shorten(exc)
        if code in {"ExpiredTokenException", "UnrecognizedClientException"}:
            self._clients.discard()  # a new client reads rotated credentials
        remedy = f"; {_REMEDIES[code]}" if code in _REMEDIES else ""
        kind = StoreUnavailableError if _is_unanswered(exc) else StoreError
        return kind(f"UpdateItem on the DynamoDB table {self.name!r} failed: {code}: {exc}{remedy}")


def _new_client(settings: ClientSettings) -> DynamoDBClient:
    session, region = open_session(settings)
    config = brief_config(settings, TIMEOUT_SECONDS, MAX_ATTEMPTS)
    client = session.client("dynamodb", region_name=region or DEFAULT_REGION, config=config)
    client.meta.events.register_first("needs-retry.dynamodb", _do_not_wait_again)
    return client


def _do_not_wait_again(caught_exception: Exception | None = None, **_: Any) -> None:
    """Raise the error of an unanswered request before botocore retries it."""
    if caught_exception is not None and _is_unanswered(caught_exception):
        raise caught_exception


def _is_unanswered(exc: Exception) -> bool:
    return is_unanswered(translate(exc, "UpdateItem", "dynamodb"))


def _typed(name: str, value: str | float) -> Any:
    if isinstance(value, str):
        return {"S": value}
    return {"N": str(math.ceil(value)) if name == "expires" else f"{value:.6f}"}  # TTLs are whole seconds


def _plain(item: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {name: next(iter(typed.values())) for name, typed in item.items()}

"""The port to SNS over boto3: the requests of fanout exchanges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_sqs_visibility.aws.client_factory import ClientPurpose, new_client
from celery_sqs_visibility.aws.error_codes import translate, wrong_settings
from celery_sqs_visibility.aws.process_lock import ProcessClients
from celery_sqs_visibility.errors import ClockSkewError, CredentialsRefusedError, RequestRefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_sqs_visibility.aws.client_settings import ClientSettings
    from celery_sqs_visibility.aws.port import OutgoingMessage


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription to a topic. A queue's has protocol "sqs", and the queue's ARN as endpoint."""

    arn: str
    protocol: str
    endpoint: str


class SNS:
    """The API actions that we use, for one set of settings.

    Any thread. Every method raises an `SQSError` and nothing else. Each process creates its own client on
    first use.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self._clients = ProcessClients[Any](lambda: new_client(settings, ClientPurpose.PUBLISH, "sns"))

    def create_topic(self, name: str, attributes: Mapping[str, str], tags: Mapping[str, str]) -> str:
        """CreateTopic: returns the ARN, of the existing topic if there is one with equal parameters."""
        params: dict[str, Any] = {"Name": name}
        if attributes:
            params["Attributes"] = dict(attributes)
        if tags:
            params["Tags"] = [{"Key": key, "Value": value} for key, value in tags.items()]
        return str(self._call("CreateTopic", params)["TopicArn"])

    def publish(self, topic_arn: str, message: OutgoingMessage) -> str:
        """Publish: returns the message id. Ignores the delay, and the group id except for FIFO topics."""
        params: dict[str, Any] = {"TopicArn": topic_arn, "Message": message.body}
        if message.attributes:
            params["MessageAttributes"] = dict(message.attributes)
        if message.deduplication_id is not None:
            params |= {
                "MessageGroupId": message.group_id,
                "MessageDeduplicationId": message.deduplication_id,
            }
        return str(self._call("Publish", params)["MessageId"])

    def subscribe(self, topic_arn: str, queue_arn: str) -> str:
        """Subscribe a queue, with raw message delivery: returns the new or existing subscription's ARN."""
        params = {
            "TopicArn": topic_arn,
            "Protocol": "sqs",
            "Endpoint": queue_arn,
            "Attributes": {"RawMessageDelivery": "true"},
            "ReturnSubscriptionArn": True,
        }
        return str(self._call("Subscribe", params)["SubscriptionArn"])

    def subscriptions(
        self, topic_arn: str, token: str | None = None
    ) -> tuple[list[Subscription], str | None]:
        """ListSubscriptionsByTopic: returns a page of up to 100, and the token of the next page."""
        params = {"TopicArn": topic_arn, **({"NextToken": token} if token else {})}
        answer = self._call("ListSubscriptionsByTopic", params)
        found = [
            Subscription(each["SubscriptionArn"], each["Protocol"], each["Endpoint"])
            for each in answer.get("Subscriptions", [])
        ]
        return found, answer.get("NextToken") or None

    def unsubscribe(self, subscription_arn: str) -> None:
        """Unsubscribe. Succeeds if there is no such subscription."""
        try:
            self._call("Unsubscribe", {"SubscriptionArn": subscription_arn})
        except RequestRefusedError as error:
            if error.code != "NotFound":
                raise

    def close(self) -> None:
        """Close this process's connections; the next call opens new ones. Idempotent."""
        client = self._clients.discard()
        if client is not None:
            client.close()

    def _call(self, action: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        from botocore import xform_name  # noqa: PLC0415 - see client_factory

        try:
            answer: Mapping[str, Any] = getattr(self._client(action), xform_name(action))(**params)
        except Exception as exc:  # noqa: BLE001 - see the class
            error = translate(exc, action, "sns")
            if isinstance(error, CredentialsRefusedError) and not isinstance(error, ClockSkewError):
                self.close()  # only new clients read rotated credentials
            raise error from error.__cause__
        return answer

    def _client(self, action: str) -> Any:
        try:
            return self._clients.get()
        except (TypeError, ValueError) as exc:  # botocore's, for a bad endpoint, region or option
            raise wrong_settings(exc, action) from None

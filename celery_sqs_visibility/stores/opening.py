"""Opens the store that the option `exclusive_store` names."""

from __future__ import annotations

from dataclasses import replace

from celery_sqs_visibility.aws.client_settings import ClientSettings
from celery_sqs_visibility.policy.exclusive import StoreAddress
from celery_sqs_visibility.stores.port import ExclusiveStore


def open_store(address: StoreAddress, settings: ClientSettings) -> ExclusiveStore:
    """The store of this process, without a request. `settings` are those of SQS: region, credentials, role.

    Raises:
        OptionError: a package is missing, or refuses the address.
    """
    if address.is_redis:
        from celery_sqs_visibility.stores.redis import RedisStore  # noqa: PLC0415 - one of the two

        return RedisStore(address.url)
    from celery_sqs_visibility.stores.dynamodb import DynamoDBStore  # noqa: PLC0415 - one of the two

    # The endpoint is that of SQS; DynamoDB's is botocore's to know (AWS_ENDPOINT_URL_DYNAMODB).
    return DynamoDBStore(
        address.table, replace(settings, endpoint_url=None, region=address.region or settings.region)
    )

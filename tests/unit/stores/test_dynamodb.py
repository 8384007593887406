"""What only the store in DynamoDB does; tests/conformance has the rest."""

import pytest

from celery_sqs_visibility.aws.client_settings import ClientSettings
from celery_sqs_visibility.errors import StoreError
from celery_sqs_visibility.stores.dynamodb import DynamoDBStore


def test_a_table_that_is_not_there_is_to_be_created(emulator, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", emulator.url)
    settings = ClientSettings("us-east-1", access_key_id="key", secret_access_key="secret")
    with pytest.raises(StoreError, match=r"'missing' failed: ResourceNotFoundException.*; create the table"):
        DynamoDBStore("missing", settings).acquire("key", "one", 1)

"""Store in DynamoDB: an item for each key, changed by conditional `UpdateItem` requests.

DynamoDB does not tell its time, so instants are wall-clock times of the machine that asks. The attribute
`expires` is for the table's time to live, which removes items late; no decision depends on it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from celery_sqs_visibility.aws.client_settings import ClientSettings
from celery_sqs_visibility.aws.dynamodb import Table
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, Clock
from celery_sqs_visibility.policy.exclusive import message_of
from celery_sqs_visibility.stores.port import (
    RECORD_SECONDS,
    Acquired,
    Acquisition,
    ExclusiveStore,
    Processed,
    Processing,
    Renewal,
)

_FREE: Final = (
    "(attribute_not_exists(processed_until) OR processed_until <= :now) "
    "AND (attribute_not_exists(lease_until) OR lease_until <= :now OR #owner = :owner)"
)

#: The caller owns the key, even after its lease has lapsed, until it releases the key or another acquires it.
_OWNED: Final = "#owner = :owner AND attribute_exists(lease_until)"


class DynamoDBStore(ExclusiveStore):
    """A process's access to its DynamoDB table.

    Args:
        table: the table's name. Its partition key is `key`, a string; it has no sort key.
        settings: region and credentials.
        clock: the wall clock.
    """

    def __init__(self, table: str, settings: ClientSettings, clock: Clock = SYSTEM_CLOCK) -> None:
        self._table = Table(table, settings)
        self._clock = clock

    def acquire(
        self, key: str, owner: str, seconds: float, retries: int = 0, kept: float = RECORD_SECONDS
    ) -> Acquisition:
        """Acquire the key. A repetition after a lost answer may count the run twice.

        Makes a second request if a run of another message had the key before.
        """
        now, message = self._clock.wall(), message_of(owner)
        done, item = self._table.update(
            key,
            "SET #owner = :owner, lease_until = :until, expires = :expires, "
            "message_id = if_not_exists(message_id, :message), retries = if_not_exists(retries, :retries), "
            "runs = if_not_exists(runs, :none) + :one",
            _FREE,
            owner=owner,
            now=now,
            until=now + seconds,
            expires=now + seconds + kept,
            message=message,
            retries=retries,
            none=0,
            one=1,
        )
        if done:
            if item.get("message_id") != message:
                start_count = "SET message_id = :message, retries = :retries, runs = :runs"
                self._change(key, owner, start_count, message=message, retries=retries, runs=1)
                item |= {"retries": str(retries), "runs": "1"}
            checkpoint, runs = item.get("checkpoint"), int(float(item["runs"])) - 1
            attempts = int(float(item["retries"])) + runs
            return Acquired(None if checkpoint is None else json.loads(checkpoint), attempts, runs)
        if float(item.get("processed_until", 0)) > now:
            return Processed()
        return Processing(float(item["lease_until"]) - now, item["owner"])

    def renew(self, renewals: Sequence[Renewal]) -> list[bool]:
        """Renew leases. One request each: DynamoDB has no batch of conditional updates."""
        return [self._renew(*renewal) for renewal in renewals]

    def _renew(self, key: str, owner: str, seconds: float) -> bool:
        until = self._clock.wall() + seconds
        done, _ = self._table.update(
            key,
            "SET #owner = :owner, lease_until = :until, expires = :expires",
            f"attribute_not_exists(#owner) OR ({_OWNED})",
            owner=owner,
            until=until,
            expires=until + RECORD_SECONDS,
        )
        return done

    def finish(self, key: str, owner: str, ttl: float) -> bool:
        now = self._clock.wall()
        expression = (
            "SET lease_until = :now, processed_until = :until, expires = :expires "
            "REMOVE checkpoint, message_id, retries, runs"
        )
        return self._change(key, owner, expression, now=now, until=now + ttl, expires=now + ttl)

    def release(self, key: str, owner: str) -> bool:
        return self._change(key, owner, "REMOVE lease_until")

    def save(self, key: str, owner: str, checkpoint: Any) -> bool:
        return self._change(key, owner, "SET checkpoint = :checkpoint", checkpoint=json.dumps(checkpoint))

    def _change(self, key: str, owner: str, expression: str, **values: str | float) -> bool:
        return self._table.update(key, expression, _OWNED, owner=owner, **values)[0]

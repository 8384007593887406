"""Store in DynamoDB: an item for each key, changed by `UpdateItem` with a condition.

DynamoDB has no clock to ask, so instants are wall time of the asking machine. The attribute `expires` is for
the table's time to live, which removes items late; no decision depends on it.
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

#: The caller has the key, or had it when its lease lapsed, and has not released it.
_OWNED: Final = "#owner = :owner AND attribute_exists(lease_until)"


class DynamoDBStore(ExclusiveStore):
    """One for each process.

    Args:
        table: its name; its partition key is `key`, a string, and it has no sort key.
        settings: region and credentials.
        clock: the wall clock.
    """

    def __init__(self, table: str, settings: ClientSettings, clock: Clock = SYSTEM_CLOCK) -> None:
        self._table = Table(table, settings)
        self._clock = clock

    def acquire(
        self, key: str, owner: str, seconds: float, retries: int = 0, kept: float = RECORD_SECONDS
    ) -> Acquisition:
        """See `port.ExclusiveStore`. After a lost answer a run may be counted twice.

        It takes a second request if another message's run had the key.
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
                begin = "SET message_id = :message, retries = :retries, runs = :runs"
                self._change(key, owner, begin, message=message, retries=retries, runs=1)
                item |= {"retries": str(retries), "runs": "1"}
            checkpoint, runs = item.get("checkpoint"), int(float(item["runs"])) - 1
            before = int(float(item["retries"])) + runs
            return Acquired(None if checkpoint is None else json.loads(checkpoint), before, runs)
        if float(item.get("processed_until", 0)) > now:
            return Processed()
        return Processing(float(item["lease_until"]) - now, item["owner"])

    def renew(self, renewals: Sequence[Renewal]) -> list[bool]:
        """See `port.ExclusiveStore`. A request each: DynamoDB makes conditional updates one by one."""
        return [self._renew(*renewal) for renewal in renewals]

    def _renew(self, key: str, owner: str, seconds: float) -> bool:
        until = self._clock.wall() + seconds
        set_lease = "SET lease_until = :until, expires = :expires"
        set_lease += ", #owner = :owner"
        lost = f"attribute_not_exists(#owner) OR ({_OWNED})"
        expires = until + RECORD_SECONDS
        return self._table.update(key, set_lease, lost, owner=owner, until=until, expires=expires)[0]

    def finish(self, key: str, owner: str, ttl: float) -> bool:
        now = self._clock.wall()
        processed = "SET lease_until = :now, processed_until = :until, expires = :expires "
        processed += "REMOVE checkpoint, message_id, retries, runs"
        return self._change(key, owner, processed, now=now, until=now + ttl, expires=now + ttl)

    def release(self, key: str, owner: str) -> bool:
        return self._change(key, owner, "REMOVE lease_until")

    def save(self, key: str, owner: str, checkpoint: Any) -> bool:
        return self._change(key, owner, "SET checkpoint = :checkpoint", checkpoint=json.dumps(checkpoint))

    def _change(self, key: str, owner: str, expression: str, **values: str | float) -> bool:
        return self._table.update(key, expression, _OWNED, owner=owner, **values)[0]

"""Access to AWS for a broker URL and transport options: clients, queues, the bucket of payloads."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import Final
from weakref import WeakValueDictionary

from celery_sqs_visibility.aws.boto import BotoSQS
from celery_sqs_visibility.aws.client_settings import ClientSettings, frozen_config
from celery_sqs_visibility.aws.object_store import GuardedObjectStore, S3ObjectStore
from celery_sqs_visibility.aws.port import SQS
from celery_sqs_visibility.aws.process_lock import ProcessLock
from celery_sqs_visibility.aws.queues import Queues
from celery_sqs_visibility.delivery.payloads.outgoing import PayloadStore
from celery_sqs_visibility.delivery.threads import start_thread
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.predefined import PredefinedQueue
from celery_sqs_visibility.policy.provisioning import QueuePlan, plan_queues
from celery_sqs_visibility.transport.connection_settings import BrokerURL
from celery_sqs_visibility.transport.routing import configured_apps, max_retries_by_queue

_lock = ProcessLock()  # guards _shared
_shared: Final[WeakValueDictionary[tuple[int, ClientSettings], BotoSQS]] = WeakValueDictionary()


def settings_of(broker: BrokerURL, options: Options) -> ClientSettings:
    """The settings of the connection's clients."""
    return ClientSettings(
        region=options.region,
        endpoint_url=_endpoint(broker, secure=options.is_secure),
        access_key_id=broker.userid,
        secret_access_key=broker.password,
        role_arn=options.sts_role_arn,
        role_external_id=options.external_id,
        role_seconds=options.sts_token_timeout,
        role_buffer_seconds=options.sts_token_buffer_time,
        config=frozen_config(options.client_config),
    )


def shared_sqs(settings: ClientSettings) -> BotoSQS:
    """This process's `SQS` for these settings, whose connection pools all kombu Connections share.

    It lives as long as a caller keeps it. Any thread. A forked child has its own.
    """
    key = os.getpid(), settings
    with _lock:
        sqs = _shared.get(key)
        if sqs is None:
            sqs = _shared[key] = BotoSQS(settings)
        return sqs


def queues_of(settings: ClientSettings, options: Options) -> Queues:
    """The directory of queues. Makes no request."""

    @cache  # keeps the `SQS`
    def sqs_for(predefined: PredefinedQueue) -> SQS:
        return shared_sqs(_settings_for(predefined, settings))

    return Queues(
        shared_sqs(settings),
        prefix=options.queue_name_prefix,
        predefined=options.predefined_queues,
        owner=options.queue_owner,
        sqs_for=sqs_for,
        plans=partial(_plans, options),
    )


def settings_of_queue(queue: str, settings: ClientSettings, options: Options) -> ClientSettings:
    """The settings of a queue: the connection's, overridden by those of a predefined queue."""
    predefined = options.predefined_queue(queue)
    return settings if predefined is None else _settings_for(predefined, settings)


def payloads_of(settings: ClientSettings, options: Options) -> PayloadStore | None:
    """The store of large payloads; `None` without a bucket. Makes no request."""
    store = options.payload_store
    if store is None or store.bucket is None:
        return None
    objects = GuardedObjectStore(S3ObjectStore(settings, store.bucket), start_thread)
    return PayloadStore(objects, prefix=store.prefix)


def _settings_for(predefined: PredefinedQueue, settings: ClientSettings) -> ClientSettings:
    """The connection's settings, overridden by the queue's own. Equal settings share clients."""
    settings = settings.with_own(predefined)
    if not predefined.sts_role_arn:
        return settings
    return replace(settings, role_arn=predefined.sts_role_arn, role_external_id=predefined.external_id)


def _plans(options: Options, queue: str) -> list[QueuePlan]:
    """Plan the queue as `celery sqs queues create` does, from the tasks that this process knows."""
    limits: list[int | None] = []
    for app in configured_apps():
        with suppress(Exception):  # Celery raises it again when the app is used
            limits += max_retries_by_queue(app).get(queue, ())
    return plan_queues([queue], options, {queue: limits})


def _endpoint(broker: BrokerURL, *, secure: bool) -> str | None:
    """The endpoint that the broker URL names; `None` leaves it to botocore, as in any boto3 program."""
    if broker.host is None:
        return None
    port = "" if broker.port is None else f":{broker.port}"
    return f"{'https' if secure else 'http'}://{broker.host}{port}"

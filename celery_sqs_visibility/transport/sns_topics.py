"""The topics that the transport options describe, and where SNS is."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from celery_sqs_visibility.aws.boto_topics import BotoSNS
from celery_sqs_visibility.aws.client_settings import ClientSettings
from celery_sqs_visibility.aws.port import Location
from celery_sqs_visibility.aws.topics import PredefinedTopic, Topics
from celery_sqs_visibility.aws.topics_port import SNS
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.predefined import EXCHANGE_KEYS
from celery_sqs_visibility.policy.queue_names import sqs_name


def topics(sqs: ClientSettings, options: Options) -> Topics:
    """The directory of topics, for the settings with which SQS is asked. No request is made."""
    settings = replace(sqs, endpoint_url=_endpoint(sqs))

    def sns_for(predefined: PredefinedTopic) -> SNS:
        # Not the connection's region: a topic answers in its own only. arn:aws:sns:region:account:name
        return BotoSNS(settings.with_own(predefined, predefined.region or predefined.arn.split(":")[3]))

    predefined = {
        name: PredefinedTopic(**{key: topic[key] for key in EXCHANGE_KEYS if key in topic})
        for name, topic in options.predefined_exchanges.items()
    }
    name_of = partial(sqs_name, prefix=options.queue_name_prefix)
    return Topics(BotoSNS(settings), name_of, predefined, sns_for)


def _endpoint(sqs: ClientSettings) -> str | None:
    """The endpoint of SNS that goes with SQS's: that of an emulator, which has both; else botocore's own."""
    url = sqs.endpoint_url
    return None if url is None or Location(sqs.region or "", url).is_amazons else url

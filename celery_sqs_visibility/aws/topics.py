"""From the name of a fanout exchange to its SNS topic, with the names, attributes and tags that kombu uses.

Source: kombu/transport/SQS/SNS.py, `_create_sns_topic` and `get_client`. To CreateTopic a topic with other
tags is another one, and refused: workers of both transports find the same.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from celery_sqs_visibility.aws.error_codes import reworded
from celery_sqs_visibility.aws.process_lock import ProcessLock
from celery_sqs_visibility.errors import AccessDeniedError, RequestRefusedError
from celery_sqs_visibility.policy.queue_names import FIFO_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery_sqs_visibility.aws.topics_port import SNS

TAGS: Final = {
    "ManagedBy": "Celery/Kombu",
    "Description": "This SNS topic is used by Kombu to enable Fanout support for AWS SQS.",
}

#: SNS says so of a topic of that name with other attributes or tags.
EXISTS: Final = "already exists"


@dataclass(frozen=True, slots=True)
class PredefinedTopic:
    """One value of the option `predefined_exchanges`. `None` means: as for the connection."""

    arn: str
    region: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Topic:
    """The topic of a fanout exchange, with the access whose credentials are for this topic."""

    exchange: str
    arn: str
    sns: SNS = field(repr=False)
    predefined: bool = field(default=False, repr=False)

    @property
    def fifo(self) -> bool:
        """Whether it is a FIFO topic; SNS ties that to the name's suffix."""
        return self.arn.endswith(FIFO_SUFFIX)


class Topics:
    """The directory of topics. Any thread; requests are made outside its lock.

    Args:
        sns: access to every topic that is not predefined.
        canonical_name: gives the topic's name for an exchange's: the same as for a queue.
        predefined: exchange to topic. If there are any, there are no others, and none is created.
        sns_for: gives access to a predefined topic.
    """

    def __init__(
        self,
        sns: SNS,
        canonical_name: Callable[[str], str],
        predefined: Mapping[str, PredefinedTopic],
        sns_for: Callable[[PredefinedTopic], SNS],
    ) -> None:
        self._sns = sns
        self._canonical_name = canonical_name
        self._predefined = dict(predefined)
        self._sns_for = sns_for
        self._lock = ProcessLock()  # guards _found
        self._found: dict[str, Topic] = {}

    def find(self, exchange: str) -> Topic:
        """Return the exchange's topic, created if SNS has none. Asks SNS the first time.

        Raises:
            SQSError: it is not among the predefined ones, may not be created, or SNS could not be asked.
        """
        with self._lock:
            found = self._found.get(exchange)
        if found is None:
            found = self._predefined_topic(exchange) if self._predefined else self._created(exchange)
            with self._lock:
                found = self._found.setdefault(exchange, found)
        return found

    def forget(self, exchange: str) -> None:
        """Ask again when the topic is needed next: it was deleted."""
        with self._lock:
            self._found.pop(exchange, None)

    def _predefined_topic(self, exchange: str) -> Topic:
        definition = self._predefined.get(exchange)
        if definition is None:
            (nearest,) = difflib.get_close_matches(exchange, self._predefined, n=1, cutoff=0.0)
            raise RequestRefusedError(
                f"exchange {exchange!r} is not in the option predefined_exchanges, which defines "
                f"{', '.join(map(repr, sorted(self._predefined)))}. The nearest is {nearest!r}."
            )
        return Topic(exchange, definition.arn, self._sns_for(definition), predefined=True)

    def _created(self, exchange: str) -> Topic:
        name = self._canonical_name(exchange)
        attributes = {"FifoTopic": str(name.endswith(FIFO_SUFFIX)).lower()}
        try:
            arn = self._sns.create_topic(name, attributes, TAGS)
        except AccessDeniedError as error:
            raise reworded(
                error,
                f"the topic {name!r} of exchange {exchange!r} cannot be found or created: allow "
                f"sns:CreateTopic and sns:TagResource, or give its ARN in predefined_exchanges. {error}",
            ) from error
        except RequestRefusedError as error:
            if EXISTS not in str(error):
                raise
            # Somebody else's topic, with other tags: without any, SNS answers with its ARN.
            arn = self._sns.create_topic(name, attributes if name.endswith(FIFO_SUFFIX) else {}, {})
        return Topic(exchange, arn, self._sns)

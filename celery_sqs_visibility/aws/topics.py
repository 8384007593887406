"""SNS topics of fanout exchanges, and the subscriptions of queues to them, compatible with kombu's.

Workers of kombu's SQS transport and of this one use the same topics and may share a queue. So a topic has
kombu's name, attributes and tags (kombu/transport/SQS/SNS.py: `_create_sns_topic`), since CreateTopic refuses
other tags; and a queue's policy has kombu's statement (`_generate_new_sqs_policy`).
"""

from __future__ import annotations

import difflib
import json
import logging
import random
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from celery_sqs_visibility.aws.error_codes import reword
from celery_sqs_visibility.aws.process_lock import ProcessLock
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    QueueDoesNotExistError,
    RequestRefusedError,
    SQSError,
)
from celery_sqs_visibility.policy import queue_names
from celery_sqs_visibility.policy.clock import sleep
from celery_sqs_visibility.policy.queue_names import FIFO_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from celery_sqs_visibility.aws.queues import Queue
    from celery_sqs_visibility.aws.sns import SNS, Subscription
    from celery_sqs_visibility.policy.predefined import PredefinedTopic

logger = logging.getLogger(__name__)

TAGS: Final = {
    "ManagedBy": "Celery/Kombu",
    "Description": "This SNS topic is used by Kombu to enable Fanout support for AWS SQS.",
}


@dataclass(frozen=True, slots=True, eq=False)
class Topic:
    """The topic of a fanout exchange, with access to SNS by the topic's credentials."""

    exchange: str
    arn: str
    sns: SNS = field(repr=False)
    predefined: bool = field(default=False, repr=False)

    @property
    def fifo(self) -> bool:
        """Whether it is a FIFO topic. SNS requires the name's suffix."""
        return self.arn.endswith(FIFO_SUFFIX)


class Topics:
    """The directory of topics. Any thread; requests are made outside its lock.

    Args:
        sns: access to topics that are not predefined.
        canonical_name: returns the topic's name for an exchange's name, as for a queue.
        predefined: topics by exchange. If there are any, other exchanges are refused and no topic is created.
        sns_for: returns access to a predefined topic.
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
        """Return the exchange's topic, and create it if SNS has none. Asks SNS the first time.

        Raises:
            SQSError: it is not predefined, may not be created, or SNS could not be asked.
        """
        with self._lock:
            found = self._found.get(exchange)
        if found is None:
            found = self._predefined_topic(exchange) if self._predefined else self._created(exchange)
            with self._lock:
                found = self._found.setdefault(exchange, found)
        return found

    def forget(self, exchange: str) -> None:
        """Forget a topic that was deleted: `find` asks SNS again."""
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
            raise reword(
                error,
                f"the topic {name!r} of exchange {exchange!r} cannot be found or created: allow "
                f"sns:CreateTopic and sns:TagResource, or give its ARN in predefined_exchanges. {error}",
            ) from error
        except RequestRefusedError as error:
            if "already exists" not in str(error):
                raise
            # Somebody else created the topic with other tags. If asked without tags, SNS returns its ARN.
            arn = self._sns.create_topic(name, attributes if name.endswith(FIFO_SUFFIX) else {}, {})
        return Topic(exchange, arn, self._sns)


#: Names that end in a UUID were made for one process. Once such a queue is gone, it does not come back.
PROCESS_NAME: Final = re.compile(r".+-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

#: Seconds between two look-ups of a missing queue, since SQS may not see a new queue at once.
LOOKS_APART_SECONDS: Final = 60

#: Bounds of one sweep: pages of 100 subscriptions that it reads, and queues that it looks up.
MAX_PAGES: Final = 10
MAX_LOOKS: Final = 100


def subscribe(queue: Queue, topic: Topic, beside: Iterable[str] = ()) -> str:
    """Subscribe a queue to a topic with raw message delivery. Returns the subscription's ARN.

    Writes the queue's policy first, because SNS drops messages that the queue refuses. SQS may answer with
    the policy of a minute ago, so the policy written allows this process's other topics too.

    Args:
        queue: the queue.
        topic: the topic.
        beside: ARNs of other topics to which this process has subscribed the queue.

    Raises:
        SQSError: SQS or SNS refused, or could not be asked.
    """
    attributes = queue.sqs.queue_attributes(queue.url, ["QueueArn", "Policy"])
    policy = allow_topics(attributes.get("Policy"), attributes["QueueArn"], [*beside, topic.arn])
    if policy is not None:
        queue.sqs.set_queue_attributes(queue.url, {"Policy": policy})
    return topic.sns.subscribe(topic.arn, attributes["QueueArn"])


def sweep(topic: Topic, beside: Queue, prefix: str, wait: Callable[[float], object] = sleep) -> None:
    """Unsubscribe queues that were made for one process and are gone. Logs errors and raises none.

    Looks only at queues in the account and region of the queue `beside`, since SQS cannot tell about others,
    and only at names that begin with `prefix`. May wait for a minute, so call it in a thread of its own.
    """
    try:
        start = queue_names.beside(beside.arn(), prefix)
        candidates = [each for each in _subscriptions(topic) if _may_be_stale(each, start)]
        sample = random.sample(candidates, min(len(candidates), MAX_LOOKS))
        missing = [each for each in sample if _is_missing(each, beside)]
        if missing:
            wait(LOOKS_APART_SECONDS)
        for stale in missing:
            if _is_missing(stale, beside):
                topic.sns.unsubscribe(stale.arn)
                logger.info("unsubscribed queue %r from %s, since it is gone", stale.endpoint, topic.arn)
    except SQSError as error:
        logger.warning("cannot remove subscriptions of deleted queues from topic %s: %s", topic.arn, error)


def _subscriptions(topic: Topic) -> Iterator[Subscription]:
    token = None
    for _ in range(MAX_PAGES):
        page, token = topic.sns.subscriptions(topic.arn, token)
        yield from page
        if token is None:
            return


def _may_be_stale(subscription: Subscription, start: str) -> bool:
    is_ours = subscription.protocol == "sqs" and subscription.endpoint.startswith(start)
    return is_ours and PROCESS_NAME.fullmatch(_name(subscription)) is not None


def _is_missing(subscription: Subscription, beside: Queue) -> bool:
    try:
        beside.sqs.queue_url(_name(subscription))
    except QueueDoesNotExistError:
        return True
    return False


def _name(subscription: Subscription) -> str:
    return subscription.endpoint.rpartition(":")[2]


#: The id of the policy's statement. kombu finds it by this id, too.
STATEMENT_ID: Final = "KombuManaged"

#: The condition's key for the topic. Amazon ignores the case of such keys.
SOURCE: Final = "aws:SourceArn"


def allow_topics(policy: str | None, queue_arn: str, topic_arns: Sequence[str]) -> str | None:
    """Return a policy that also lets these topics send to the queue; `None` if `policy` already does.

    Keeps all other statements, and this statement's topics and other conditions. `policy` is the queue
    attribute, or `None` if the queue has none.
    """
    document: dict[str, Any] = json.loads(policy) if policy else {"Version": "2012-10-17"}
    given = document.get("Statement") or []
    statements: list[dict[str, Any]] = [given] if isinstance(given, dict) else given
    others = [each for each in statements if each.get("Sid") != STATEMENT_ID]
    ours = next((each for each in statements if each not in others), {})
    statement = {
        "Sid": STATEMENT_ID,
        "Effect": "Allow",
        "Principal": {"Service": "sns.amazonaws.com"},
        "Action": "SQS:SendMessage",
        "Resource": queue_arn,
        "Condition": _condition(ours.get("Condition"), topic_arns),
    }
    if statement == ours:
        return None
    return json.dumps({**document, "Statement": [*others, statement]})


def _condition(given: Any, topic_arns: Sequence[str]) -> dict[str, Any]:
    """Add the topics wherever a condition names topics, or where kombu does if it names none."""
    condition: dict[str, Any] = given if isinstance(given, dict) else {}
    if not any(_names_topics(operator, key) for operator, keys in condition.items() for key in keys):
        condition = {**condition, "ArnLike": {**condition.get("ArnLike", {}), SOURCE: []}}
    return {
        operator: {
            key: _with(values, topic_arns) if _names_topics(operator, key) else values
            for key, values in keys.items()
        }
        for operator, keys in condition.items()
    }


def _names_topics(operator: str, key: str) -> bool:
    operators = ("ArnLike", "ArnEquals", "StringLike", "StringEquals")  # others ban topics
    return operator.removesuffix("IfExists") in operators and key.lower() == SOURCE.lower()


def _with(values: str | list[str], topic_arns: Sequence[str]) -> str | list[str]:
    """Add missing topics to a condition's values. A single value is not put into a list, as in kombu."""
    arns = [values] if isinstance(values, str) else values
    if set(topic_arns) <= set(arns):
        return values
    every = list(dict.fromkeys([*arns, *topic_arns]))
    return every if len(every) > 1 else every[0]

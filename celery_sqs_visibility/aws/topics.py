"""SNS topics of fanout exchanges, and subscriptions of queues to them, as kombu's SQS transport has them.

Names, attributes and tags of a topic are kombu's (kombu/transport/SQS/SNS.py: `_create_sns_topic`): to
CreateTopic a topic with other tags is another one, and refused. So is the statement in a queue's policy
(`_generate_new_sqs_policy`). So workers of both transports find the same topics, and may share a queue.
"""

from __future__ import annotations

import difflib
import json
import logging
import random
import re
import threading
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
from celery_sqs_visibility.policy.queue_names import FIFO_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from celery_sqs_visibility.aws.queues import Queue
    from celery_sqs_visibility.aws.sns import SNS, Subscription

logger = logging.getLogger(__name__)

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
            raise reword(
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


#: Names that end so are made up for one process: such a queue, once gone, does not come back.
OWN_NAME: Final = re.compile(r".+-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

#: A queue that is found neither now nor this many seconds later is gone. SQS may not see a new one at once.
LOOKS_APART_SECONDS: Final = 60

#: Most pages of a hundred subscriptions that one sweep reads, and most queues that it looks for.
MAX_PAGES: Final = 10
MAX_LOOKS: Final = 100


def subscribe(queue: Queue, topic: Topic, beside: Iterable[str] = ()) -> str:
    """Subscribe the queue to the topic, with messages as they are; return the subscription's ARN.

    The policy first: SNS drops messages that a queue does not take. SQS may tell the policy of a minute ago,
    in which other topics are missing: so they are written, too.

    Args:
        queue: the queue.
        topic: the topic.
        beside: ARNs of the other topics to which this process has subscribed the queue.

    Raises:
        SQSError: SQS or SNS has refused, or could not be asked.
    """
    attributes = queue.sqs.queue_attributes(queue.url, ["QueueArn", "Policy"])
    policy = allow_topics(attributes.get("Policy"), attributes["QueueArn"], [*beside, topic.arn])
    if policy is not None:
        queue.sqs.set_queue_attributes(queue.url, {"Policy": policy})
    return topic.sns.subscribe(topic.arn, attributes["QueueArn"])


def sweep(topic: Topic, beside: Queue, prefix: str, wait: Callable[[float], object] | None = None) -> None:
    """Unsubscribe queues that were made up for a process, and are gone. Logs errors, raises none.

    Only queues of the account and region of the queue `beside`, whose names begin with `prefix`: of others
    SQS tells nothing. A thread of its own, since it may wait.
    """
    try:
        start = queue_names.beside(beside.arn(), prefix)
        own = [each for each in _subscriptions(topic) if _may_be_stale(each, start)]
        looked_for = random.sample(own, min(len(own), MAX_LOOKS))
        missing = [each for each in looked_for if _is_missing(each, beside)]
        if missing:
            (wait or threading.Event().wait)(LOOKS_APART_SECONDS)
        for stale in missing:
            if _is_missing(stale, beside):
                topic.sns.unsubscribe(stale.arn)
                logger.info("unsubscribed queue %r from %s, since it is gone", stale.endpoint, topic.arn)
    except SQSError as error:
        logger.warning(
            "cannot sweep subscriptions of queues that are gone, which stay, from topic %s: %s",
            topic.arn,
            error,
        )


def _subscriptions(topic: Topic) -> Iterator[Subscription]:
    token = None
    for _ in range(MAX_PAGES):
        page, token = topic.sns.subscriptions(topic.arn, token)
        yield from page
        if token is None:
            return


def _may_be_stale(subscription: Subscription, start: str) -> bool:
    is_ours = subscription.protocol == "sqs" and subscription.endpoint.startswith(start)
    return is_ours and OWN_NAME.fullmatch(_name(subscription)) is not None


def _is_missing(subscription: Subscription, beside: Queue) -> bool:
    try:
        beside.sqs.queue_url(_name(subscription))
    except QueueDoesNotExistError:
        return True
    return False


def _name(subscription: Subscription) -> str:
    return subscription.endpoint.rpartition(":")[2]


#: The statement's id, by which kombu finds it, too.
STATEMENT_ID: Final = "KombuManaged"

VERSION: Final = "2012-10-17"

#: The condition's key for the topic. Amazon compares such keys without case.
SOURCE: Final = "aws:SourceArn"

#: Operators by which a condition lets topics in. All of a condition's must hold.
OPERATORS: Final = ("ArnLike", "ArnEquals", "StringLike", "StringEquals")


def allow_topics(policy: str | None, queue_arn: str, topic_arns: Sequence[str]) -> str | None:
    """Return the policy that lets the topics send to the queue as well; `None` if `policy` does already.

    All other statements stay, and so do this one's topics and the other terms of its condition.
    `policy` is the queue attribute of that name, `None` if there is none.
    """
    document: dict[str, Any] = json.loads(policy) if policy else {"Version": VERSION}
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
    """The condition, with the topics in each place where it names some; in kombu's where it names none."""
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
    return operator.removesuffix("IfExists") in OPERATORS and key.lower() == SOURCE.lower()


def _with(values: str | list[str], topic_arns: Sequence[str]) -> str | list[str]:
    """The condition's values, with the topics that are not among them. One alone is no list, as in kombu."""
    arns = [values] if isinstance(values, str) else values
    if set(topic_arns) <= set(arns):
        return values
    every = list(dict.fromkeys([*arns, *topic_arns]))
    return every if len(every) > 1 else every[0]

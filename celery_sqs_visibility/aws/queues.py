"""The directory of queues: name, URL and credentials at SQS for each of Celery's queues. Message counts."""

from __future__ import annotations

import difflib
import json
import logging
import re
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeVar
from urllib.parse import urlsplit

from celery_sqs_visibility.aws.attempts import attempt
from celery_sqs_visibility.aws.error_codes import reword
from celery_sqs_visibility.aws.process_lock import ProcessLock
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    QueueDoesNotExistError,
    RequestRefusedError,
    UnreachableError,
)
from celery_sqs_visibility.policy.predefined import predefined_queue
from celery_sqs_visibility.policy.provisioning import QueuePlan, why_impossible
from celery_sqs_visibility.policy.queue_names import (
    ARN,
    FIFO_SUFFIX,
    REDRIVE_POLICY,
    account_and_name,
    creation_attributes,
    redrive_policy,
    region_of,
    sqs_name,
    why_illegal,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from celery_sqs_visibility.aws.port import SQS, Location
    from celery_sqs_visibility.policy.predefined import PredefinedQueue

logger = logging.getLogger(__name__)

#: How a queue became known: it existed, we created it, or the option `predefined_queues` names it.
Origin = Literal["found", "created", "predefined"]

#: Attributes that count messages: visible, in flight, and delayed.
VISIBLE: Final = "ApproximateNumberOfMessages"
HIDDEN: Final = "ApproximateNumberOfMessagesNotVisible"
DELAYED: Final = "ApproximateNumberOfMessagesDelayed"

#: Pauses between requests about a new queue, which all parts of SQS know after a second.
NEW_QUEUE_PAUSES_SECONDS: Final = (0.2, 0.4, 0.7)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Queue:
    """A queue at SQS, with Celery's name for it.

    Attributes:
        sqs: access with the credentials for this queue.
        fifo: true for a FIFO queue, which SQS recognizes by the suffix of its name.
    """

    name: str
    url: str
    sqs: SQS = field(repr=False)
    origin: Origin = field(default="found", repr=False)
    fifo: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fifo", self.url.endswith(FIFO_SUFFIX))

    @property
    def sqs_name(self) -> str:
        """Return SQS's name for the queue."""
        return self.url.rpartition("/")[2]

    @property
    def account(self) -> str | None:
        """Return the number of its AWS account, or `None` if an emulator's URL has none."""
        account = re.match(r"/(\d{12})/", urlsplit(self.url).path)
        return account[1] if account else None

    def arn(self) -> str:
        """Ask SQS for the ARN. Raises an `SQSError`."""
        return self.sqs.queue_attributes(self.url, [ARN])[ARN]


class Queues:
    """The directory of queues. Any thread. Makes requests outside its lock.

    Two threads that need the same new queue may both ask SQS, but get the same `Queue`. Every method that
    returns a queue raises an `SQSError` if SQS could not be asked.

    Args:
        sqs: access to every queue that is not predefined.
        prefix: the option `queue_name_prefix`.
        predefined: definitions by Celery's queue name. If there are any, no other queues exist, and SQS is
            asked only for missing URLs.
        owner: the AWS account of all queues, if it is not the credentials' own. Then none is created.
        sqs_for: returns the access to a predefined queue; by default `sqs`.
        plans: returns the plan of a queue to create, after the plan of its dead-letter queue if it gets one.
            By default queues have no attributes and no dead-letter queue.
    """

    def __init__(
        self,
        sqs: SQS,
        *,
        prefix: str = "",
        predefined: Mapping[str, PredefinedQueue] | None = None,
        owner: str | None = None,
        sqs_for: Callable[[PredefinedQueue], SQS] | None = None,
        plans: Callable[[str], Sequence[QueuePlan]] | None = None,
    ) -> None:
        self.sqs = sqs
        self._prefix = prefix
        self._predefined = dict(predefined or {})
        self._owner = owner
        self._sqs_for = sqs_for or (lambda _definition: sqs)
        self._plans = plans or self._plain_plans
        self._lock = ProcessLock()  # guards _found
        self._found: dict[str, Queue] = {}

    @property
    def prefix(self) -> str:
        """Return the prefix of all queue names at SQS."""
        return sqs_name("", self._prefix)

    def canonical_name(self, name: str) -> str:
        """Return SQS's name for Celery's.

        Raises:
            RequestRefusedError: SQS accepts no such name. No request is made.
        """
        canonical = sqs_name(name, self._prefix)
        if reason := why_illegal(canonical):
            sentence = f"SQS can have no queue {canonical!r} (for Celery's queue {name!r}): {reason}"
            raise RequestRefusedError(sentence, code="InvalidParameterValue")
        return canonical

    def locations(self) -> set[Location]:
        """Return where requests go. Predefined queues may be in several places. No request.

        Raises:
            SQSError: the settings are wrong.
        """
        return {sqs.location() for sqs in self._accesses()}

    def reach(self) -> None:
        """Check that SQS accepts connections, in at least one place if predefined queues are in several.

        Raises:
            UnreachableError: no place accepts connections.
            SQSError: the settings are wrong.
        """
        unreached: UnreachableError | None = None
        for sqs in {sqs.location(): sqs for sqs in self._accesses()}.values():
            try:
                sqs.reach()
            except UnreachableError as error:
                unreached = error
            else:
                return
        if unreached is not None:
            raise unreached

    def _accesses(self) -> set[SQS]:
        return {self._sqs_for(definition) for definition in self._predefined.values()} or {self.sqs}

    def find(self, name: str) -> Queue:
        """Return the queue with that name. Asks SQS for the URL the first time.

        Raises:
            QueueDoesNotExistError: the queue does not exist, or is not predefined although others are.
        """
        with self._lock:
            found = self._found.get(name)
        if found:
            return found
        if self._predefined:
            return self._keep(self._predefined_queue(name))
        return self._keep(self._existing(name, self.sqs, self._owner))

    def find_or_create(self, name: str, attributes: Mapping[str, str] | None = None) -> Queue:
        """Return the queue with that name. If it does not exist, create it and its dead-letter queue.

        A temporary queue has its own `attributes`, and no dead-letter queue.

        Raises:
            AccessDeniedError: the queue does not exist, and the permission to create it is missing.
            QueueDoesNotExistError: the queue does not exist and is never created, because it is predefined or
                belongs to another account.
        """
        try:
            return self.find(name)
        except QueueDoesNotExistError:
            if self._predefined or self._owner:
                raise
        return self._keep(self._created(name, attributes))

    def ensure(self, name: str) -> Queue:
        """Find or create a queue, and check that a predefined queue exists if permissions allow it.

        Raises:
            AccessDeniedError: the queue does not exist, and the permission to create it is missing.
            QueueDoesNotExistError: the queue is not predefined although others are, or its URL is wrong.
        """
        queue = self.find_or_create(name)
        if queue.origin == "predefined":
            _check_existence(queue)
        return queue

    def by_arn(self, arn: str) -> Queue:
        """Return the queue with that ARN, under Celery's name. No request.

        Raises:
            QueueDoesNotExistError: requests go to another region.
            SQSError: the settings are wrong.
        """
        if (name := self._predefined_name(arn)) is not None:
            return self.find(name)
        location, region = self.sqs.location(), region_of(arn)
        if location.is_amazons and location.region != region:
            raise QueueDoesNotExistError(
                f"{arn} is in region {region!r}, and requests go to {location.region!r}: add the queue to "
                "the option predefined_queues, with its url",
                code="QueueDoesNotExist",
            )
        account, name_at_sqs = account_and_name(arn)
        url = f"{location.endpoint}/{account}/{name_at_sqs}"
        found = Queue(name_at_sqs.removeprefix(self._prefix), url, self.sqs)
        kept = self._keep(found)
        # A predefined queue, or one of another account, may have the same name.
        at = kept.sqs_name, kept.account or account, kept.sqs.location()
        return kept if at == (name_at_sqs, account, location) else found

    def _predefined_name(self, arn: str) -> str | None:
        """Return the name of the predefined queue with that ARN. Emulators may ignore the region."""
        account, name_at_sqs = account_and_name(arn)
        locations = {}
        for name, definition in self._predefined.items():
            path = definition.url or f"/{definition.owner}/{sqs_name(name, self._prefix)}"
            if path.endswith(f"/{account}/{name_at_sqs}"):
                locations[name] = self._sqs_for(definition).location()
        there = [name for name, location in locations.items() if location.region == region_of(arn)]
        elsewhere = [name for name, location in locations.items() if not location.is_amazons]
        return next(iter(there + elsewhere), None)

    def forget(self, name: str) -> None:
        """Forget a queue that was deleted."""
        with self._lock:
            self._found.pop(name, None)

    def _keep(self, queue: Queue) -> Queue:
        with self._lock:
            return self._found.setdefault(queue.name, queue)

    def _predefined_queue(self, name: str) -> Queue:
        definition = predefined_queue(self._predefined, name, self._prefix)
        if definition is None:
            names = sorted(self._predefined)
            (nearest,) = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
            raise QueueDoesNotExistError(
                f"Queue {name!r} is not in the option predefined_queues, which defines "
                f"{', '.join(map(repr, names))}. The nearest is {nearest!r}.",
                code="QueueDoesNotExist",
            )
        sqs = self._sqs_for(definition)
        if definition.url is None:
            return self._existing(name, sqs, definition.owner, "predefined")
        return Queue(name, definition.url, sqs, "predefined")

    def _existing(self, name: str, sqs: SQS, owner: str | None, origin: Origin = "found") -> Queue:
        canonical = self.canonical_name(name)
        try:
            return Queue(name, sqs.queue_url(canonical, owner), sqs, origin)
        except QueueDoesNotExistError as error:
            of_owner = f" of account {owner}" if owner else ""
            which = f"{canonical!r}{of_owner} (for Celery's queue {name!r})"
            raise reword(error, f"SQS has no queue {which}, or does not let us see it: {error}") from error

    def _plain_plans(self, name: str) -> list[QueuePlan]:
        canonical = self.canonical_name(name)
        return [QueuePlan(name, canonical, creation_attributes(canonical, {}))]

    def _created(self, name: str, temporary: Mapping[str, str] | None) -> Queue:
        """Create the queue, and before it its dead-letter queue unless it has `temporary` attributes."""
        canonical = self.canonical_name(name)
        *of_letters, plan = self._plans(name)
        letters = of_letters[0] if of_letters and temporary is None else None
        redrive, problem = self._redrive(plan, letters) if letters else ({}, None)
        wanted = creation_attributes(canonical, {**plan.attributes, **redrive, **(temporary or {})})
        try:
            url = when_known(partial(self.sqs.create_queue, canonical, wanted, plan.tags))
        except AccessDeniedError as error:
            which = f"{canonical!r} (for Celery's queue {name!r})"
            raise reword(
                error,
                f"SQS has no queue {which} and does not let us create it: "
                f"create the queue or allow sqs:CreateQueue. {error}",
            ) from error
        if letters and problem:
            logger.warning(
                "created queue %r without its dead-letter queue %r, which celery -A proj sqs queues create "
                "--update adds with credentials that may: %s",
                canonical,
                letters.sqs_name,
                problem,
            )
        return Queue(name, url, self.sqs, "created")

    def _redrive(self, plan: QueuePlan, letters: QueuePlan) -> tuple[dict[str, str], str | None]:
        """Find or create the dead-letter queue. Returns the redrive policy, or why there is none."""
        if reason := why_impossible([letters, plan]):
            return {}, reason
        try:
            try:
                url = self.sqs.queue_url(letters.sqs_name)
            except QueueDoesNotExistError:
                url = self.sqs.create_queue(letters.sqs_name, letters.attributes, letters.tags)
            arn = when_known(Queue(letters.name, url, self.sqs).arn)
        except AccessDeniedError as error:
            return {}, str(error)
        return {REDRIVE_POLICY: json.dumps(redrive_policy(arn, plan.max_receive_count))}, None


def when_known(request: Callable[[], T]) -> T:
    """Make a request about a queue that may be too new for all parts of SQS to know. Raises an `SQSError`."""
    return attempt(request, QueueDoesNotExistError, NEW_QUEUE_PAUSES_SECONDS)


def no_such_predefined_queue(queue: Queue, error: QueueDoesNotExistError) -> QueueDoesNotExistError:
    """Return the error with a message that names the option."""
    which = f"{queue.url}, which predefined_queues gives for {queue.name!r}"
    return reword(error, f"SQS has no queue {which}: {error}")


def _check_existence(queue: Queue) -> None:
    try:
        queue.sqs.queue_attributes(queue.url, [REDRIVE_POLICY])
    except AccessDeniedError:
        pass  # the first receive will tell
    except QueueDoesNotExistError as error:
        raise no_such_predefined_queue(queue, error) from error


def count(queue: Queue, *kinds: str) -> int:
    """Ask SQS for the total number of messages of these kinds. Raises as `counts`."""
    return sum(counts(queue, *kinds))


def counts(queue: Queue, *kinds: str) -> list[int]:
    """Ask SQS for the number of messages of each of these kinds. Any thread.

    Raises:
        AccessDeniedError: a permission is missing. The message names it.
        SQSError: SQS could not be asked.
    """
    try:
        attributes = queue.sqs.queue_attributes(queue.url, kinds)
    except AccessDeniedError as error:
        sentence = (
            f"cannot tell how many messages queue {queue.name!r} has: allow sqs:GetQueueAttributes. {error}"
        )
        raise reword(error, sentence) from error
    return [int(attributes[kind]) for kind in kinds]

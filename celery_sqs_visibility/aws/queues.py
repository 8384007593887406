"""The directory of queues: their names, URLs and credentials at SQS, by Celery's names; and their counts."""

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

#: How a queue came to be known: SQS had it, SQS made it for us, or the option `predefined_queues` names it.
Origin = Literal["found", "created", "predefined"]

#: Messages that a receive may bring, those hidden since a receive, and those delayed since their sending.
VISIBLE: Final = "ApproximateNumberOfMessages"
HIDDEN: Final = "ApproximateNumberOfMessagesNotVisible"
DELAYED: Final = "ApproximateNumberOfMessagesDelayed"

#: Pauses between requests about a new queue, which all of SQS knows after a second.
NEW_QUEUE_PAUSES_SECONDS: Final = (0.2, 0.4, 0.7)

#: Said of a queue that was created without the dead-letter queue of its plan.
WITHOUT_DEAD_LETTERS: Final = (
    "created queue %r without its dead-letter queue %r, which celery -A proj sqs queues create --update adds "
    "with credentials that may: %s"
)

T = TypeVar("T")

#: What the path of SQS's queue URLs begins with.
_ACCOUNT: Final = re.compile(r"/(\d{12})/")


@dataclass(frozen=True, slots=True, eq=False)
class Queue:
    """A queue at SQS, by Celery's name, with the access whose credentials are for this queue.

    Attributes:
        fifo: whether it is a FIFO queue; SQS ties that to the name's suffix.
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
        """SQS's name of it."""
        return self.url.rpartition("/")[2]

    @property
    def account(self) -> str | None:
        """The number of its AWS account; `None` where an emulator's URL has none."""
        account = _ACCOUNT.match(urlsplit(self.url).path)
        return account[1] if account else None

    def arn(self) -> str:
        """Its ARN, by a request. Raises an `SQSError`."""
        return self.sqs.queue_attributes(self.url, [ARN])[ARN]


class Queues:
    """The directory of queues. Usable from any thread; requests are made outside its lock.

    Two threads that ask for the same new name at once may both ask SQS; they get the same `Queue`. Every
    method that returns a queue raises an `SQSError` where SQS could not be asked.

    Args:
        sqs: access to every queue that is not predefined.
        prefix: the option `queue_name_prefix`.
        predefined: Celery's queue name to its definition. If there are any, there are no others, and
            SQS is asked only for URLs that they lack.
        owner: the AWS account that all queues belong to, if that is another's; then none is created.
        sqs_for: gives access to a predefined queue; by default the same `sqs`.
        plans: the plan of a queue that has to be created, by Celery's name of it, after the plan of its
            dead-letter queue if it is to have one. By default a queue has neither attributes nor that.
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
        self._sqs = sqs
        self._prefix = prefix
        self._predefined = dict(predefined or {})
        self._owner = owner
        self._sqs_for = sqs_for or (lambda _definition: sqs)
        self._plans = plans or self._plain_plans
        self._lock = ProcessLock()  # guards _found
        self._found: dict[str, Queue] = {}

    @property
    def sqs(self) -> SQS:
        """Access to every queue that is not predefined."""
        return self._sqs

    @property
    def prefix(self) -> str:
        """The prefix of all queues' names, as SQS has it."""
        return sqs_name("", self._prefix)

    def canonical_name(self, name: str) -> str:
        """Return SQS's name for Celery's.

        Raises:
            RequestRefusedError: SQS takes no such name; it is not asked.
        """
        canonical = sqs_name(name, self._prefix)
        if reason := why_illegal(canonical):
            sentence = f"SQS can have no queue {canonical!r} (for Celery's queue {name!r}): {reason}"
            raise RequestRefusedError(sentence, code="InvalidParameterValue")
        return canonical

    def locations(self) -> set[Location]:
        """Return where requests go; several, where predefined queues differ. No request.

        Raises:
            SQSError: the settings are no good.
        """
        return {sqs.location() for sqs in self._accesses()}

    def reach(self) -> None:
        """Connect to SQS, without a request. Where predefined queues differ, one place that answers will do.

        Raises:
            UnreachableError: nobody takes connections.
            SQSError: the settings are no good.
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
        return {self._sqs_for(definition) for definition in self._predefined.values()} or {self._sqs}

    def find(self, name: str) -> Queue:
        """Return the queue of that name. SQS is asked for its URL the first time.

        Raises:
            QueueDoesNotExistError: there is none, or it is not among the predefined ones.
        """
        with self._lock:
            found = self._found.get(name)
        if found:
            return found
        if self._predefined:
            return self._keep(self._predefined_queue(name))
        return self._keep(self._existing(name, self._sqs, self._owner))

    def find_or_create(self, name: str, attributes: Mapping[str, str] | None = None) -> Queue:
        """Return the queue of that name, created if SQS has none, with its dead-letter queue.

        A temporary queue has `attributes` of its own, and no dead-letter queue.

        Raises:
            AccessDeniedError: there is none, and we may not create it.
            QueueDoesNotExistError: there is none, and it is predefined or of another account: these are
                never created.
        """
        try:
            return self.find(name)
        except QueueDoesNotExistError:
            if self._predefined or self._owner:
                raise
        return self._keep(self._created(name, attributes))

    def ensure(self, name: str) -> Queue:
        """Do as `find_or_create`, and ask whether a predefined queue exists, if we may ask that.

        Raises:
            AccessDeniedError: there is none, and we may not create it.
            QueueDoesNotExistError: it is not among the predefined ones, or SQS has no queue of that URL.
        """
        queue = self.find_or_create(name)
        if queue.origin == "predefined":
            _check_existence(queue)
        return queue

    def by_arn(self, arn: str) -> Queue:
        """Return the queue of an ARN, under Celery's name of it. SQS is not asked.

        Raises:
            QueueDoesNotExistError: it is in a region that requests do not go to.
            SQSError: the settings are no good.
        """
        if (name := self._predefined_name(arn)) is not None:
            return self.find(name)
        location, region = self._sqs.location(), region_of(arn)
        if location.is_amazons and location.region != region:
            raise QueueDoesNotExistError(
                f"{arn} is in region {region!r}, and requests go to {location.region!r}: add the queue to "
                "the option predefined_queues, with its url",
                code="QueueDoesNotExist",
            )
        account, name_at_sqs = account_and_name(arn)
        url = f"{location.endpoint}/{account}/{name_at_sqs}"
        found = Queue(name_at_sqs.removeprefix(self._prefix), url, self._sqs)
        kept = self._keep(found)
        # Another queue may have the name: a predefined one, or one of another account.
        at = kept.sqs_name, kept.account or account, kept.sqs.location()
        return kept if at == (name_at_sqs, account, location) else found

    def _predefined_name(self, arn: str) -> str | None:
        """The name of the predefined queue of that ARN. An emulator may know no regions."""
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
        """Ask again when that name is needed next: the queue was deleted."""
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
        """Create the queue, after its dead-letter queue unless it is `temporary` and has these attributes."""
        canonical = self.canonical_name(name)
        *of_letters, plan = self._plans(name)
        letters = of_letters[0] if of_letters and temporary is None else None
        redrive, problem = self._redrive(plan, letters) if letters else ({}, None)
        wanted = creation_attributes(canonical, {**plan.attributes, **redrive, **(temporary or {})})
        try:
            url = when_known(partial(self._sqs.create_queue, canonical, wanted, plan.tags))
        except AccessDeniedError as error:
            which = f"{canonical!r} (for Celery's queue {name!r})"
            raise reword(
                error,
                f"SQS has no queue {which} and does not let us create it: "
                f"create the queue or allow sqs:CreateQueue. {error}",
            ) from error
        if letters and problem:
            logger.warning(WITHOUT_DEAD_LETTERS, canonical, letters.sqs_name, problem)
        return Queue(name, url, self._sqs, "created")

    def _redrive(self, plan: QueuePlan, letters: QueuePlan) -> tuple[dict[str, str], str | None]:
        """The redrive policy to the dead-letter queue, found or created; or why there is none."""
        if reason := why_impossible([letters, plan]):
            return {}, reason
        try:
            try:
                url = self._sqs.queue_url(letters.sqs_name)
            except QueueDoesNotExistError:
                url = self._sqs.create_queue(letters.sqs_name, letters.attributes, letters.tags)
            arn = when_known(Queue(letters.name, url, self._sqs).arn)
        except AccessDeniedError as error:
            return {}, str(error)
        return {REDRIVE_POLICY: json.dumps(redrive_policy(arn, plan.max_receive_count))}, None


def when_known(request: Callable[[], T]) -> T:
    """Make a request about a queue that is there, and perhaps so new that a part of SQS does not know it.

    Waits between attempts. Raises an `SQSError`.
    """
    return attempt(request, QueueDoesNotExistError, NEW_QUEUE_PAUSES_SECONDS)


def no_such_predefined_queue(queue: Queue, error: QueueDoesNotExistError) -> QueueDoesNotExistError:
    """Return the error that names the option, too."""
    which = f"{queue.url}, which predefined_queues gives for {queue.name!r}"
    return reword(error, f"SQS has no queue {which}: {error}")


def _check_existence(queue: Queue) -> None:
    try:
        queue.sqs.queue_attributes(queue.url, [REDRIVE_POLICY])
    except AccessDeniedError:
        pass  # a comfort, not a requirement: the first receive will tell
    except QueueDoesNotExistError as error:
        raise no_such_predefined_queue(queue, error) from error


def count(queue: Queue, *kinds: str) -> int:
    """Ask SQS for the number of messages of these kinds together. Raises as `counts`."""
    return sum(counts(queue, *kinds))


def counts(queue: Queue, *kinds: str) -> list[int]:
    """Ask SQS for the number of messages of each of these kinds. Any thread.

    Raises:
        AccessDeniedError: we may not ask; the message names the permission.
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

"""Redrive policies, retention periods and messages in flight of queues, cached for some minutes."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from celery_sqs_visibility.aws.error_codes import reword
from celery_sqs_visibility.aws.process_lock import ProcessLock
from celery_sqs_visibility.aws.queues import HIDDEN, Queue
from celery_sqs_visibility.errors import AccessDeniedError, SQSError
from celery_sqs_visibility.policy.queue_names import REDRIVE_POLICY, RETENTION, account_and_name
from celery_sqs_visibility.policy.quotas import DEFAULT_RETENTION_SECONDS, MANY_IN_FLIGHT_MESSAGES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

logger = logging.getLogger(__name__)

#: Seconds for which an answer is cached. The policy decides if a rejected message is deleted or kept, so
#: workers must notice a new dead-letter queue. kombu's SQS transport reads the policy as often.
REDRIVE_SECONDS: Final = 300

#: Seconds until SQS is asked again after a temporary error.
RETRY_SECONDS: Final = 10


@dataclass(frozen=True, slots=True)
class Redrive:
    """A RedrivePolicy: after `max_receive_count` receives SQS moves a message to the dead-letter queue."""

    max_receive_count: int
    dead_letter_arn: str

    @property
    def name(self) -> str:
        """Return SQS's name for the dead-letter queue."""
        return self.dead_letter_arn.rpartition(":")[2]


class RedriveBook:
    """Caches redrive policies of queues. Any thread. Makes requests outside its lock.

    Works without the permission sqs:GetQueueAttributes. An unknown policy is `None`, like a missing one.

    Args:
        plain: returns a function that finds the dead-letter queue named by the option `dead_letter_queue`,
            for a queue without a known policy; `None` if the option names none for that queue.
    """

    def __init__(self, plain: Callable[[str], Callable[[], Queue] | None] = lambda _name: None) -> None:
        self._plain = plain
        self._lock = ProcessLock()  # guards writes to everything below: looking up a key is atomic
        self._asked: dict[str, float] = {}
        self._errors: dict[str, SQSError] = {}
        self._known: dict[str, Redrive | None] = {}
        self._retention: dict[str, int] = {}
        self._dead_letter_queues: dict[tuple[str, str], Queue] = {}
        self._many_in_flight: dict[str, int | None] = {}  # the number, until `pop_many_in_flight` returns it
        self._min_receives: dict[str, int] = {}  # of dead letters, by the ARN of their source queue

    def get(self, queue: Queue, now: float, *, quietly: bool = False) -> Redrive | None:
        """Return the policy. Asks SQS at most once in `REDRIVE_SECONDS`. Raises nothing.

        Returns the last known policy while another thread asks, or after an error. `now` is on the monotonic
        clock. `quietly` suppresses the warning about a missing permission.
        """
        if self._was_asked(queue, now):  # the usual case, without the lock
            return self.peek(queue)
        with self._lock:
            if self._was_asked(queue, now):
                return self.peek(queue)
            self._asked[queue.url] = now
        try:
            attributes = queue.sqs.queue_attributes(queue.url, [REDRIVE_POLICY, RETENTION, HIDDEN])
        except SQSError as error:
            self._failed(queue, error, now, quietly=quietly)
            return self.peek(queue)
        with self._lock:
            self._retention[queue.url] = int(attributes.get(RETENTION, DEFAULT_RETENTION_SECONDS))
            if (in_flight := int(attributes.get(HIDDEN, 0))) < MANY_IN_FLIGHT_MESSAGES:
                self._many_in_flight.pop(queue.url, None)
            else:
                self._many_in_flight.setdefault(queue.url, in_flight)
            policy = self._known[queue.url] = parse_redrive_policy(attributes)
        return policy

    def _was_asked(self, queue: Queue, now: float) -> bool:
        asked = self._asked.get(queue.url)
        return asked is not None and now - asked < REDRIVE_SECONDS

    def _failed(self, queue: Queue, error: SQSError, now: float, *, quietly: bool) -> None:
        is_temporary = not isinstance(error, AccessDeniedError)
        with self._lock:
            self._errors[queue.url] = error
            if is_temporary:
                self._asked[queue.url] = now - REDRIVE_SECONDS + RETRY_SECONDS
        if is_temporary or quietly or self.knows(queue):
            return
        kept = "are kept, to come back until SQS moves or expires them"
        logger.warning(
            "cannot read the redrive policy of queue %r, so messages that fail for good %s; "
            "allow sqs:GetQueueAttributes: %s",
            queue.name,
            "go to the dead_letter_queue of the transport options" if self._plain(queue.name) else kept,
            error,
        )

    def receives_in_source(self, queue: Queue, source_arn: str, receive_count: int, now: float) -> int:
        """Return how many receives a dead letter had in its source queue. SQS counts them on.

        Returns the limit in the source queue's policy. If that cannot be read, returns one less than the
        smallest count of any dead letter from there, which may allow that message one attempt too many.
        """
        account, name = account_and_name(source_arn)
        source = Queue(name, f"{queue.url.rsplit('/', 2)[0]}/{account}/{name}", queue.sqs)
        policy = self.get(source, now, quietly=True)
        with self._lock:
            fewest = min(receive_count, self._min_receives.get(source_arn, receive_count))
            self._min_receives[source_arn] = fewest
        return min(fewest - 1 if policy is None else policy.max_receive_count, receive_count - 1)

    def pop_many_in_flight(self, queue: Queue) -> int | None:
        """Return the number of messages in flight once each time it comes near SQS's quota; otherwise `None`.

        No request: the number is as old as the last answer.
        """
        if self._many_in_flight.get(queue.url) is None:  # the usual case, without the lock
            return None
        with self._lock:
            if (in_flight := self._many_in_flight.get(queue.url)) is not None:
                self._many_in_flight[queue.url] = None
        return in_flight

    def knows(self, queue: Queue) -> bool:
        """Return whether SQS has ever answered, even without a policy. No request, no lock."""
        return queue.url in self._known

    def why_unknown(self, queue: Queue) -> SQSError | None:
        """Return the error of the latest request if SQS has never answered. No request."""
        with self._lock:
            return None if queue.url in self._known else self._errors.get(queue.url)

    def peek(self, queue: Queue) -> Redrive | None:
        """Return the last known policy. No request and no lock, because every task asks."""
        return self._known.get(queue.url)

    def retention(self, queue: Queue) -> int:
        """Return the retention period in seconds; SQS's default if unknown. No request, no lock."""
        return self.known_retention(queue) or DEFAULT_RETENTION_SECONDS

    def known_retention(self, queue: Queue) -> int | None:
        """Return the retention period in seconds; `None` if unknown. No request, no lock."""
        return self._retention.get(queue.url)

    def has_dead_letter_queue(self, queue: Queue) -> bool:
        """Return whether a known policy or the option names a dead-letter queue. No request."""
        return self._plain(queue.name) is not None or self.peek(queue) is not None

    def find_dead_letter_queue(self, queue: Queue) -> None:
        """Check that the dead-letter queue of the option exists, if `queue` needs it. Call `get` first.

        Raises:
            SQSError: the dead-letter queue could not be found or created.
        """
        if self.peek(queue) is None:
            try:
                self.dead_letter_queue(queue)
            except SQSError as error:
                sentence = f"The queue of the transport option dead_letter_queue cannot be used: {error}"
                raise reword(error, sentence) from error

    def dead_letter_queue(self, queue: Queue) -> Queue | None:
        """Return the dead-letter queue of the last known policy, else that of the option, else `None`.

        Call `get` first. Asks SQS for the URL once. A policy's queue is used with the credentials of `queue`.
        No queue is its own dead-letter queue.

        Raises:
            SQSError: the queue could not be found.
        """
        policy = self.peek(queue)
        if policy is not None:
            return self._named_by(policy, queue)
        find = self._plain(queue.name)
        plain = find() if find else None
        return None if plain is None or plain.url == queue.url else plain

    def _named_by(self, policy: Redrive, queue: Queue) -> Queue:
        key = queue.url, policy.dead_letter_arn
        with self._lock:
            found = self._dead_letter_queues.get(key)
        if found is None:
            account, name = account_and_name(policy.dead_letter_arn)
            found = Queue(name, _url(queue, name, account), queue.sqs)
            with self._lock:
                found = self._dead_letter_queues.setdefault(key, found)
        return found


def _url(queue: Queue, name: str, account: str) -> str:
    """Return the URL of a dead-letter queue in the region of `queue`."""
    try:
        return queue.sqs.queue_url(name, account)
    except AccessDeniedError:
        # The permission to send does not include sqs:GetQueueUrl.
        return f"{queue.url.rsplit('/', 2)[0]}/{account}/{name}"


def parse_redrive_policy(attributes: Mapping[str, str]) -> Redrive | None:
    """Parse a queue's RedrivePolicy attribute. Returns `None` if it is missing or malformed."""
    try:
        policy = json.loads(attributes[REDRIVE_POLICY])
        redrive = Redrive(int(policy["maxReceiveCount"]), str(policy["deadLetterTargetArn"]))
    except (KeyError, TypeError, ValueError):
        return None
    return redrive if redrive.dead_letter_arn.count(":") >= 1 else None

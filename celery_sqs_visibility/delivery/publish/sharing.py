"""Requests shared by threads that publish at the same time: group commit, without a thread of its own.

A single caller sends its message at once. Callers that arrive while a request of their queue is in flight
wait until it has ended, or until enough of them wait. Then one of them leads: it sends up to ten of their
messages in one request, and returns once its own message is answered.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from typing import Final

from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.payloads.outgoing import OutgoingMessages
from celery_sqs_visibility.errors import AnswerLostError, RequestRefusedError, SQSError
from celery_sqs_visibility.policy.message_limits import message_bytes
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES, MESSAGE_BYTES

#: Fewer callers wait for the request in flight to end, so that a message costs a fifth of a request.
MIN_CALLERS: Final = 5

#: Each arriving caller lowers the estimated number of callers by this: from sixteen to ten after 600.
FORGOTTEN: Final = 0.01

#: A leader waits a little longer, because callers whose request has just ended may publish again.
GATHER_SECONDS: Final = 0.002

#: A caller that isn't woken within this time leads anyway: the leader may have died.
WAKE_SECONDS: Final = 1.0

#: A caller waits this long for a leader's request. By then it has ended, or its thread is gone.
ANSWER_SECONDS: Final = 20.0


class Gate:
    """Opens once, for one waiting thread or greenlet. Costs a third of an Event, which has three locks."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()  # looked up now: gevent may have replaced the class after the import
        self._lock.acquire()

    def open(self) -> None:
        """Let the waiting caller pass. Idempotent. Any thread."""
        with suppress(RuntimeError):  # it is open
            self._lock.release()

    def wait(self, seconds: float) -> bool:
        """Wait until it is open. Returns `False` if it isn't open in time."""
        opened = self._lock.acquire(timeout=seconds)
        if opened:
            self.open()
        return opened


@dataclass(slots=True, eq=False)
class Publication:
    """The message of a waiting caller.

    Attributes:
        size: in bytes, as SQS counts them.
        leads: whether its caller was told to lead.
        taken: whether it is part of a request.
        woken: opens when its caller need not wait to lead any more.
        answered: opens when the request that contains it has ended.
        alone: whether SQS refused that request, so that its caller sends it alone.
        error: why SQS has not accepted it.
    """

    message: OutgoingMessage
    size: int
    leads: bool = False
    taken: bool = False
    woken: Gate = field(default_factory=Gate)
    answered: Gate = field(default_factory=Gate)
    alone: bool = False
    error: SQSError | None = None


class Traffic:
    """Publications to one queue. Decisions only: no lock, no thread, no request.

    Attributes:
        sending: number of messages in flight.
        waiting: the publications that are in no request, in the order of arrival.
        callers: the recent number of callers at the same time.
    """

    def __init__(self, sending: int = 0, callers: float = 0) -> None:
        self.sending = sending
        self.waiting: list[Publication] = []
        self.callers = callers

    @property
    def over(self) -> bool:
        """Whether nothing is in flight or waits."""
        return not (self.sending or self.waiting)

    @property
    def enough(self) -> bool:
        """Whether enough callers wait for another request beside those in flight: half of all.

        One half gathers while the request of the other half is in flight, so nobody is left over.
        """
        return len(self.waiting) >= min(BATCH_ENTRIES, max(MIN_CALLERS, self.callers / 2))

    def arrive(self, publication: Publication) -> bool:
        """Add a publication. Returns whether its caller leads at once: enough wait, or none is in flight."""
        over = self.over
        self.waiting.append(publication)
        self.callers = max(self.callers - FORGOTTEN, self.sending + len(self.waiting))
        publication.leads = over or self.enough
        return publication.leads

    def take(self, leader: Publication, *, woken: bool = True) -> list[Publication]:
        """Take the next request: the leader's message, and others that fit, in the order of arrival.

        A leader that was not woken ignores the requests in flight: their callers may have died.
        """
        if not woken:
            self.sending = 0
        batch, free_bytes = [leader], MESSAGE_BYTES - leader.size
        for publication in self.waiting:
            if publication is not leader and publication.size <= free_bytes and len(batch) < BATCH_ENTRIES:
                batch.append(publication)
                free_bytes -= publication.size
        for publication in batch:
            publication.taken = True
        self.waiting = [publication for publication in self.waiting if not publication.taken]
        self.sending += len(batch)
        return batch

    def choose_leader(self) -> Publication | None:
        """Choose the caller that leads next, if one is needed."""
        if not self.waiting or (self.sending and not self.enough) or any(each.leads for each in self.waiting):
            return None
        self.waiting[0].leads = True
        return self.waiting[0]


class SharedRequests:
    """Sends messages of concurrent callers together. Any thread or greenlet of its process.

    A caller that is interrupted or ends chooses the next leader. If an exception prevents that, a waiting
    caller leads after `WAKE_SECONDS`.
    """

    def __init__(self, outgoing: OutgoingMessages) -> None:
        self._outgoing = outgoing
        self._has_bucket = outgoing.store is not None
        self._lock = threading.Lock()  # guards _traffic and what is in it
        self._traffic: dict[Queue, Traffic] = {}  # of queues with messages in flight or waiting
        self._callers = 0.0  # `callers` of the `Traffic` that ended last
        self._inside: set[int] = set()  # threads and greenlets in `send`; each access is atomic

    def send(self, queue: Queue, message: OutgoingMessage) -> None:
        """Send one message, and return once SQS has it. Raises the errors of `OutgoingMessages.send`."""
        caller = threading.get_ident()
        # A signal handler or finalizer that publishes must not wait for the caller it interrupted, and no
        # message may wait for another's upload.
        if caller in self._inside or (self._has_bucket and self._goes_to_s3(queue, message)):
            self._outgoing.send(queue, message)
            return
        try:
            self._inside.add(caller)
            with self._lock:
                traffic = self._traffic.get(queue)
                if traffic is None:
                    self._traffic[queue] = Traffic(sending=1, callers=self._callers)
            if traffic is None:
                self._send_first(queue, message)
            else:
                self._send_with_others(queue, message)
        finally:
            self._inside.discard(caller)

    def _goes_to_s3(self, queue: Queue, message: OutgoingMessage) -> bool:
        return self._outgoing.offloads(queue, message_bytes(message.body, message.attributes))

    def _send_first(self, queue: Queue, message: OutgoingMessage) -> None:
        try:
            self._outgoing.send(queue, message)
        finally:
            self._end(queue, sent=1)

    def _send_with_others(self, queue: Queue, message: OutgoingMessage) -> None:
        size = message_bytes(message.body, message.attributes)
        publication = Publication(message, size)
        if size > MESSAGE_BYTES:
            self._outgoing.send(queue, message)  # raises MessageTooLargeError
            return
        try:
            with self._lock:
                at_once = self._traffic.setdefault(queue, Traffic(callers=self._callers)).arrive(publication)
            woken = at_once or publication.woken.wait(WAKE_SECONDS)
            if woken and not at_once:
                publication.answered.wait(GATHER_SECONDS)
            with self._lock:
                batch = [] if publication.taken else self._traffic[queue].take(publication, woken=woken)
            if batch:
                self._lead(queue, batch)
            elif not publication.answered.wait(ANSWER_SECONDS):
                publication.error = _unanswered()
        finally:
            if not publication.taken:
                self._end(queue, interrupted=publication)
        if publication.alone:
            self._outgoing.send(queue, message)
        elif publication.error is not None:
            raise copy(publication.error) from publication.error

    def _lead(self, queue: Queue, batch: Sequence[Publication]) -> None:
        """Make a request, and wake the callers whose messages it contains."""
        for publication in batch:
            publication.error = _unanswered()  # overwritten once the answer has come
        try:
            self._request(queue, batch)
        finally:
            for publication in batch:
                publication.answered.open()
                publication.woken.open()  # its caller may still wait to lead
            self._end(queue, sent=len(batch))

    def _request(self, queue: Queue, batch: Sequence[Publication]) -> None:
        errors: Mapping[int, SQSError | None] = {}
        alone = False
        try:
            if len(batch) == 1:
                self._outgoing.send(queue, batch[0].message)
            else:
                messages = [publication.message for publication in batch]
                errors = self._outgoing.send_batch(queue, messages, urgent=True).failed
        except RequestRefusedError as error:
            # One of them is invalid, and the error doesn't say which.
            alone = len(batch) > 1
            errors = {} if alone else {0: error}
        except SQSError as error:
            errors = dict.fromkeys(range(len(batch)), error)
        for position, publication in enumerate(batch):
            publication.error, publication.alone = errors.get(position), alone

    def _end(self, queue: Queue, *, sent: int = 0, interrupted: Publication | None = None) -> None:
        """Choose the next leader, after a request of `sent` messages or when a caller was interrupted."""
        with self._lock:
            traffic = self._traffic.get(queue)
            if traffic is None:
                return
            traffic.sending = max(0, traffic.sending - sent)
            if interrupted in traffic.waiting:
                traffic.waiting.remove(interrupted)
            leader = traffic.choose_leader()
            if traffic.over:
                self._callers = traffic.callers
                del self._traffic[queue]
        if leader is not None:
            leader.woken.open()


def _unanswered() -> AnswerLostError:
    return AnswerLostError(
        "the request that had this message was given up before its answer came", action="SendMessageBatch"
    )

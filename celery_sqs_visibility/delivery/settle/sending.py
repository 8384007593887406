"""One delivery whose copies are sent: which are under way, and which were sent.

Decisions only: no lock, no request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.delivery.model import Delivery
from celery_sqs_visibility.delivery.settlements import Renew, Split
from celery_sqs_visibility.errors import SQSError
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES

#: Batches of one event that are under way together, once the first has shown that SQS takes them.
BATCHES_SIDE_BY_SIDE: Final = 4

#: After so many records the others go on as one message: a worker that is killed repeats no more.
RECORDS_A_TURN: Final = 1000

#: The index of the message that stands for the copies that are left.
REMAINDER: Final = -1


@dataclass(slots=True, eq=False)
class Sending:
    """The copies of one delivery. Guarded by the lock of `Copies`.

    Attributes:
        delivery: the original, held and extended.
        copying: what is sent.
        next: the index of the first copy that was not begun.
        under_way: the indices of those that were begun, and neither sent nor given up.
        unsent: the indices of those that were given up.
        sent: how many were sent, the remainder not counted.
        stopping: whether no further copy is begun.
        abandoned: whether the original is lost, so that nothing stands for what is left.
        given_back: whether the worker ends, so that the original is released where nothing was sent.
        error: why a copy was given up, if one was.
        message_id: SQS's, of the copy that was sent last.
        remainder_tried: whether the message that stands for what is left was begun.
    """

    delivery: Delivery
    copying: Renew | Split
    next: int = 0
    under_way: set[int] = field(default_factory=set)
    unsent: list[int] = field(default_factory=list)
    sent: int = 0
    stopping: bool = False
    abandoned: bool = False
    given_back: bool = False
    error: SQSError | None = None
    message_id: str = ""
    _remainder_sent: bool = False
    remainder_tried: bool = False

    @property
    def copies(self) -> Sequence[OutgoingMessage]:
        """The copies, each of which is made when it is asked for."""
        return self.copying.copies if isinstance(self.copying, Split) else (self.copying.copy,)

    def begin(self) -> list[int]:
        """The indices of the copies that may be under way now, too."""
        if self.stopping:
            return []
        most = BATCH_ENTRIES * (BATCHES_SIDE_BY_SIDE if self.sent else 1)
        end = min(len(self.copies), RECORDS_A_TURN, self.next + most - len(self.under_way))
        begun = list(range(self.next, end))
        self.next = max(self.next, end)
        self.under_way.update(begun)
        return begun

    def note_sent(self, index: int, message_id: str) -> None:
        """SQS has that copy."""
        self.under_way.discard(index)
        self.message_id = message_id
        if index == REMAINDER:
            self._remainder_sent = True
        else:
            self.sent += 1

    def note_unsent(self, index: int, error: SQSError | None) -> None:
        """That copy is not sent any more: SQS refuses it, or it was withdrawn. No further ones are begun."""
        self.under_way.discard(index)
        self.stopping = True
        self.error = error or self.error
        if index != REMAINDER:
            self.unsent.append(index)

    @property
    def left(self) -> list[int]:
        """The indices of the copies that were not sent, in order."""
        return [] if self._remainder_sent else [*sorted(self.unsent), *range(self.next, len(self.copies))]

    @property
    def ended(self) -> bool:
        """Whether nothing is under way, nor begins."""
        return not self.under_way and (self.stopping or self.next >= min(len(self.copies), RECORDS_A_TURN))

    def remainder(self) -> OutgoingMessage | None:
        """After its end, the message to be sent for what is left; `None` where none can be, or was tried."""
        if self.remainder_tried or self.abandoned or not self.sent or not isinstance(self.copying, Split):
            return None
        message = self.copying.remainder(self.left) if self.left else None
        if message is not None:
            self.remainder_tried = True
            self.under_way.add(REMAINDER)
        return message

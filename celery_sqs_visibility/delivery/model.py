"""Deliveries, and the questions and requests that they pass to their holder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, Protocol
from weakref import ref

from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.delivery.lease_table import Lease, LeaseKey
from celery_sqs_visibility.delivery.settlements import Renew, Settlement
from celery_sqs_visibility.events import DeliveryFacts
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.payload_pointers import PayloadPointer
from celery_sqs_visibility.policy.quotas import HORIZON_MARGIN_SECONDS

#: Makes body and message attributes of a copy; `None` where there can be none.
MakeCopy = Callable[["Delivery"], tuple[str, Mapping[str, Any]] | None]


class Rejecter(Protocol):
    """Decides how to settle failed messages: see `settle.rejection`. Any thread."""

    def give_up(
        self,
        delivery: Delivery,
        reason: str,
        body: Callable[[], str],
        when_exhausted: str | None = None,
        **attributes: str,
    ) -> None:
        """See `Delivery.give_up`."""

    def gave_up(self, delivery: Delivery) -> bool:
        """See `Delivery.given_up`."""

    def kept(self, delivery: Delivery) -> bool:
        """See `Delivery.kept_before`."""

    def reject(self, delivery: Delivery, *, requeue: bool) -> None:
        """See `Delivery.reject`."""

    def refuse(self, delivery: Delivery, reason: str, body: str, *, others_may: bool = False) -> bool:
        """See `Delivery.refuse`."""

    def after_an_error(self, delivery: Delivery) -> Settlement:
        """See `Delivery.after_an_error`."""

    def come_back(self, delivery: Delivery, error: BaseException) -> None:
        """See `Delivery.come_back`."""


class Parker(Protocol):
    """Decides how messages wait: see `settle.parking`. Any thread."""

    def renewal(
        self, delivery: Delivery, eta: float, copied: MakeCopy, payload: dict[str, Any]
    ) -> Renew | None:
        """See `Delivery.renewal`."""


class Holder(Protocol):
    """Holder of deliveries. Any thread may call it; it does no I/O in that thread."""

    @property
    def options(self) -> Options:
        """The transport options."""

    @property
    def redrive(self) -> RedriveBook:
        """The queues' redrive policies."""

    @property
    def rejection(self) -> Rejecter:
        """Settles failed messages."""

    @property
    def parking(self) -> Parker:
        """Decides how messages wait for their ETA."""

    def settle(self, delivery: Delivery, settlement: Settlement) -> bool:
        """Settle it; whether it was still held."""

    def start(self, delivery: Delivery) -> bool:
        """A pool begins to run it; whether it may."""

    def dispatch(self, delivery: Delivery) -> bool:
        """It goes to a pool that cannot be kept from running it; whether it may."""

    def extend(self, delivery: Delivery, until: float) -> bool:
        """Its task wants it hidden until that monotonic instant; whether it is held."""

    def tell_lost(self, delivery: Delivery) -> bool:
        """Another worker runs its task, though the message is held; whether it is held."""

    def supersede(self, delivery: Delivery, superseded_by: Delivery) -> bool:
        """The newer delivery, held already, takes its place; whether it was still held."""

    def ran(self, delivery: Delivery) -> None:
        """A run has ended whose message was acknowledged when it began."""


class Inactivity(NamedTuple):
    """Inactivity timeout of a run.

    Attributes:
        timeout: the longest time without a sign of life, in seconds.
        end_run: called once the run was silent for so long, in the supervisor's thread.
    """

    timeout: float
    end_run: Callable[[], None]


@dataclass(eq=False, repr=False)
class Delivery:
    """One receipt of one message. Without slots, so that defaults are the class's and cost a message nothing.

    Its mutable fields are guarded by the lock of the ledger that holds it. Instants are monotonic.

    SQS may hand out a message again to the process that holds it. The new delivery then supersedes the old
    one, and a settlement of the old one settles the new one. A holder does nothing with a delivery that it
    does not hold.
    """

    queue: Queue
    #: The receipt handle, which is also kombu's delivery tag.
    handle: str
    facts: DeliveryFacts
    #: The instant beyond which SQS refuses to extend it: 12 hours from when its receive was called.
    horizon: float
    #: When its visibility lapses.
    deadline: float
    holder: Holder
    #: The sender's, in SQS's own shape.
    message_attributes: Mapping[str, Any] = field(default_factory=dict)
    #: The ARN of the queue from which SQS itself has moved its message, whose receives it counts on.
    moved_from: str | None = None
    #: Where its payload is, if that is in S3. One of ours goes with the message, unless a copy needs it.
    pointer: PayloadPointer | None = None
    #: The message's queue URL and id, which all of its deliveries share.
    message_key: tuple[str, str] = field(init=False)
    #: Whether it is in its ledger, neither settled nor superseded.
    held: bool = field(default=False, init=False)
    #: Whether the buffer, Celery or a thread that fetches its payload has it.
    in_hand: bool = field(default=False, init=False)
    #: The object that alone settles it from then on: Celery's request for it, then its run in a pool without
    #: processes.
    carrier: ref[Any] | None = field(default=None, init=False)
    #: When a pool began to run it.
    began: float | None = field(default=None, init=False)
    #: Whether it was given to a pool that may run it any moment.
    dispatched: bool = field(default=False, init=False)
    #: Whether its copies are sent, and only their sender settles it.
    claimed: bool = field(default=False, init=False)
    #: Whether it is settled when its run begins, and not when that ends.
    acknowledged_early: bool = field(default=False, init=False)
    #: The outcome, as its request knows it, of a run whose message is deleted: "failed", "retried" ... And
    #: "released" for a message that is given back unrun, but hidden.
    outcome: str | None = field(default=None, init=False)
    #: Of a message that is given up: "failed", and "released" where that was known before it came back.
    end_of_given_up: str | None = field(default=None, init=False)
    #: When it was settled, if anybody measures how long that takes.
    settled_at: float | None = field(default=None, init=False)
    #: Whether the deadline passed or the handle was refused.
    lost: bool = field(default=False, init=False)
    #: Whether a request that extends it is in flight, and the settlement that waits for that.
    extending: bool = field(default=False, init=False)
    waiting: Settlement | None = field(default=None, init=False)
    #: The `hold.ledger.Bucket` in which the extension schedule keeps it.
    bucket: Any = field(default=None, init=False)
    #: The instant until which its task asks to hide the message; 0 once that is done, or cannot be.
    requested_deadline: float = field(default=0.0, init=False)
    #: How many of its message's receives so far were no attempts: it waited for its ETA, or was elsewhere.
    parks: int = field(default=0, init=False)
    #: Its state as its task sees it, in any process.
    lease: Lease | None = field(default=None, init=False)
    #: The newer delivery of the same message.
    superseded_by: Delivery | None = field(default=None, init=False)
    #: Called with it when it is lost while it is held, in a thread of the pump.
    on_lost: Callable[[Delivery], None] | None = field(default=None, init=False)
    #: Whether its run has to show life.
    inactivity: Inactivity | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.message_key = self.queue.url, self.facts.message_id

    @property
    def at_horizon(self) -> bool:
        """Whether it is hidden for as long as SQS allows, to the second."""
        return self.deadline >= self.horizon - HORIZON_MARGIN_SECONDS - 1

    @property
    def started(self) -> bool:
        """Whether a pool runs it."""
        return self.began is not None

    @property
    def current(self) -> Delivery:
        """The newest delivery of this message to this process, whose handle is the one that counts."""
        delivery = self
        while delivery.superseded_by is not None:
            delivery = delivery.superseded_by
        return delivery

    def generations(self) -> Iterator[Delivery]:
        """It and the newer deliveries, those included that arrive in the loop."""
        delivery: Delivery | None = self
        while delivery is not None:
            yield delivery
            delivery = delivery.superseded_by

    @property
    def is_dropped(self) -> bool:
        """Whether nothing would settle the delivery: its request or its run is gone, or it never had one."""
        if self.carrier is None:
            return not (self.in_hand or self.claimed)
        return self.carrier() is None and not self.claimed

    def take_after(self, older: Delivery) -> None:
        """Take the older delivery's facts from its message's payload, which is not fetched again."""
        self.parks = max(self.parks, older.parks)
        if self.facts.task is None:
            self.facts = replace(self.facts, task=older.facts.task, task_id=older.facts.task_id)

    def renewal(self, eta: float, copied: MakeCopy, payload: dict[str, Any]) -> Renew | None:
        """How the message can wait for another ETA; `None` if it cannot: see `settle.parking`."""
        return self.holder.parking.renewal(self, eta, copied, payload)

    @property
    def lease_key(self) -> LeaseKey | None:
        """The key by which the task finds its lease."""
        lease = self.lease or self.current.lease
        return lease.key if lease else None

    def settle(self, settlement: Settlement) -> bool:
        """Settle it, once and for all; returns at once, and threads send the request.

        Returns:
            Whether it was still ours to settle; a second settlement does nothing.
        """
        return self.holder.settle(self, settlement) or (
            self.superseded_by is not None and self.current.settle(settlement)
        )

    def start(self) -> bool:
        """A pool begins to run it; `False` if it may not, having been given back meanwhile, or lost."""
        return self.holder.start(self) or (self.superseded_by is not None and self.current.start())

    def dispatch(self) -> bool:
        """It goes to a pool that cannot be kept from running it; whether it may, as for `start`."""
        return self.holder.dispatch(self) or (self.superseded_by is not None and self.current.dispatch())

    def extend(self, until: float) -> None:
        """Its task wants it hidden until that monotonic instant; its lease tells the answer."""
        if not self.holder.extend(self, until) and self.superseded_by is not None:
            self.current.extend(until)

    def tell_lost(self) -> None:
        """Another worker has the key of its exclusive task: its run is told, or ended. A thread's own."""
        if not self.holder.tell_lost(self) and self.superseded_by is not None:
            self.current.tell_lost()

    def supersede(self, superseded_by: Delivery) -> bool:
        """A newer delivery of the message, held already, takes its place; `False` if it was settled."""
        return self.holder.supersede(self, superseded_by)

    def ran(self) -> None:
        """Its run has ended, after it was acknowledged when that began."""
        self.current.holder.ran(self.current)

    def give_up(
        self, reason: str, body: Callable[[], str], when_exhausted: str | None = None, **attributes: str
    ) -> None:
        """Its task failed for good: a dead letter made of `body()`, or deleted, or kept."""
        self.holder.rejection.give_up(self.current, reason, body, when_exhausted, **attributes)

    @property
    def given_up(self) -> bool:
        """Whether its message was given up before, by this process."""
        return self.holder.rejection.gave_up(self)

    @property
    def kept_before(self) -> bool:
        """Whether this process hid or released its message before."""
        return self.holder.rejection.kept(self)

    def reject(self, *, requeue: bool) -> None:
        """Give it back at once, or leave it to the queue's redrive policy; deleted where there is none."""
        self.holder.rejection.reject(self.current, requeue=requeue)

    def refuse(self, reason: str, body: str, *, others_may: bool = False) -> bool:
        """No task of this worker can be made of it: a dead letter, or hidden where others may know it.

        Returns:
            Whether this process refuses the message for the first time.
        """
        return self.holder.rejection.refuse(self.current, reason, body, others_may=others_may)

    def after_an_error(self) -> Settlement:
        """How to settle a failure about which its task says nothing."""
        return self.holder.rejection.after_an_error(self.current)

    def come_back(self, error: BaseException) -> None:
        """An error of this process keeps the message from being read or run: another time it can be."""
        self.holder.rejection.come_back(self.current, error)

    @property
    def may_return(self) -> bool:
        """Whether SQS would hand it out again, instead of moving it to the dead-letter queue."""
        left = self.receives_left
        return left is None or left > 0

    @property
    def receives_left(self) -> int | None:
        """How often SQS would hand it out again; `None` without a redrive policy."""
        policy = self.holder.redrive.peek(self.queue)
        return None if policy is None else policy.max_receive_count - self.current.facts.receive_count

    def __repr__(self) -> str:
        state = "lost" if self.lost else "started" if self.started else "held"
        return f"<Delivery {self.facts.message_id} of {self.queue.name!r}: {state}>"


def _lay_out() -> None:
    """Make a first delivery with all fields, so that Python keeps those of all deliveries in one layout.

    A field that the first deliveries of a class lack would move the fields of each later one into a dict of
    its own, which takes 500 bytes more (PEP 412; at most 30 fields are kept that way).
    """
    first = object.__new__(Delivery)
    for each in fields(Delivery):
        setattr(first, each.name, None)


_lay_out()

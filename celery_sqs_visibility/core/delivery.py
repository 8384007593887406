"""Deliveries: the messages that this process holds, and what they ask of their holder."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import ref

from celery_sqs_visibility.core.settlements import Direct, Forward, Hold, Settlement
from celery_sqs_visibility.events import DeliveryFacts
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.payload_pointers import PayloadPointer
from celery_sqs_visibility.policy.quotas import HORIZON_MARGIN_SECONDS

if TYPE_CHECKING:
    from celery_sqs_visibility.aws.queues import Queue
    from celery_sqs_visibility.aws.redrive import RedriveBook

#: A row of the table that a run sees, which of its leases, and the name of the table.
LeaseKey = tuple[int, float, str]

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
    ) -> None: ...

    def gave_up(self, delivery: Delivery) -> bool: ...

    def kept(self, delivery: Delivery) -> bool: ...

    def reject(self, delivery: Delivery, *, requeue: bool) -> None: ...

    def refuse(self, delivery: Delivery, reason: str, body: str, *, others_may: bool = False) -> bool: ...

    def refusal(self, delivery: Delivery, reason: str, body: str) -> Settlement:
        """The settlement of a message that `refuse` refuses."""

    def after_an_error(self, delivery: Delivery) -> Direct: ...

    def come_back(self, delivery: Delivery, error: BaseException) -> None: ...


class Parker(Protocol):
    """Decides how messages wait: see `settle.parking`. Any thread."""

    def renewal(
        self, delivery: Delivery, eta: float, copied: MakeCopy, otherwise: Direct | Hold
    ) -> Forward | None: ...


class LeasePort(Protocol):
    """A delivery as its run sees it, in any process: see `delivery.lease_table`."""

    key: LeaseKey
    deadline: float
    lost: bool

    @property
    def last_sign(self) -> float:
        """When the run last showed life."""

    @property
    def holds_key(self) -> bool:
        """Whether the run has the key of its exclusive task."""

    @property
    def retries(self) -> int | None:
        """How many attempts came before, as its key's store knows."""

    def tell_inactive(self) -> None:
        """The run was silent for too long."""

    def renew(self, deadline: float, horizon: float) -> None:
        """The message was received once more."""

    def answer(self, requested: float) -> None:
        """The request for that deadline was met, or cannot be."""

    def end(self) -> None:
        """The delivery is settled."""


class Leases(Protocol):
    """Where leases are made."""

    def take(
        self, deadline: float, on_request: Callable[[float], None], horizon: float = ...
    ) -> LeasePort | None:
        """A lease for a run that begins; `None` if there are too many."""


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

    def settle(self, delivery: Delivery, settlement: Settlement, receipt: str | None = None) -> bool:
        """Settle the delivery, with `receipt` only while that is its handle; whether it was held."""

    def start(self, delivery: Delivery) -> bool:
        """A pool begins to run it; whether it may."""

    def dispatch(self, delivery: Delivery) -> bool:
        """It goes to a pool that cannot be kept from running it; whether it may."""

    def extend(self, delivery: Delivery, until: float) -> None:
        """Its task wants it hidden until that monotonic instant."""

    def tell_lost(self, delivery: Delivery) -> None:
        """Another worker runs its task, though the message is held."""

    def run_ended(self, delivery: Delivery) -> None:
        """A run has ended whose message was acknowledged when it began."""


class Places(Protocol):
    """Where held deliveries are counted as their state changes: see `core.capacity`."""

    def count(self, delivery: Delivery, messages: int) -> None:
        """It is held from now on: it takes that many places more, which is one."""

    def free(self, delivery: Delivery, now: float) -> None:
        """It is settled, or its copies are sent."""

    def end_run(self, delivery: Delivery, began: float, now: float) -> None:
        """Its run has ended, which began at that instant, and whose message was settled then."""


class Consumer(Protocol):
    """The consumer that received deliveries and gives them to Celery. Any thread; it makes no request."""

    @property
    def capacity(self) -> Places:
        """Where its deliveries are counted, under the holder's lock."""

    def loop_late(self, now: float) -> float:
        """For how many seconds the loop that begins its runs has not come round; 0 where that is well."""

    def rest(self, delivery: Delivery, wait: Wait) -> None:
        """It waits for this, which leaves its place or its slot to others until `resume`, or its end."""

    def resume(self, delivery: Delivery) -> None:
        """Its time has come; harmless if it did not rest."""

    def free(self, delivery: Delivery) -> None:
        """It is settled, rests or has run: others may have its place, and perhaps none is held any more."""

    def expect(self, queue: Queue, message_id: str, at: float) -> None:
        """A message of the queue becomes visible at that monotonic instant."""

    def take_back(self, delivery: Delivery, payload: dict[str, Any]) -> bool:
        """The queue refuses the copy, and would not hand out the original again: Celery holds it.

        Returns:
            Whether the delivery was still held. A thread of the pump.
        """


class State(enum.Enum):
    """How far a delivery has come."""

    HELD = "it has not begun"
    DISPATCHED = "a pool has it, and may run it any moment"
    RUNNING = "a pool runs it"
    COPYING = "copies of it are sent, and only their sender settles it"
    SETTLED = "it has ended"


class Wait(enum.Enum):
    """For what a held delivery waits, without a place or a slot."""

    PAYLOAD = "its payload, which S3 does not give: others have its place"
    START = "its ETA or its rate, as Celery holds it: others may be received meanwhile"
    FAR_START = "its rate, for long: others that are held may begin meanwhile"


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
    """One message, from its first receipt until it is settled. Instants are monotonic.

    SQS may hand out the message again meanwhile: the newer receipt takes the place of the old one, and the
    delivery goes on. Its mutable fields are guarded by the lock of its holder.

    Without slots, so that defaults are the class's and cost a message nothing.
    """

    queue: Queue
    #: The latest receipt handle.
    handle: str
    facts: DeliveryFacts
    #: The instant beyond which SQS refuses to extend it: 12 hours from when its receive was called.
    horizon: float
    #: When its visibility lapses.
    deadline: float
    holder: Holder
    consumer: Consumer | None = None
    #: The sender's, in SQS's own shape.
    message_attributes: Mapping[str, Any] = field(default_factory=dict)
    #: The ARN of the queue from which SQS itself has moved its message, whose receives it counts on.
    moved_from: str | None = None
    #: Where its payload is, if that is in S3. One of ours goes with the message, unless a copy needs it.
    pointer: PayloadPointer | None = None
    #: The message's queue URL and id.
    message_key: tuple[str, str] = field(init=False)
    #: kombu's delivery tag: the first receipt handle.
    tag: str = field(init=False)
    state: State = field(default=State.HELD, init=False)
    wait: Wait | None = field(default=None, init=False)
    #: Whether the buffer, Celery or a thread that fetches its payload has it.
    attended: bool = field(default=False, init=False)
    #: The object that alone settles it from then on: Celery's request for it, then its run in a pool without
    #: processes.
    carrier: ref[Any] | None = field(default=None, init=False)
    #: When a pool began to run it.
    began: float | None = field(default=None, init=False)
    #: Whether it is settled when its run begins, and not when that ends.
    acknowledged_early: bool = field(default=False, init=False)
    #: The outcome, as its request knows it, of a run whose message is deleted: "failed", "retried" ...
    outcome: str | None = field(default=None, init=False)
    #: Of a message that is given up: "failed", and "released" where that was known before it came back.
    end_of_given_up: str | None = field(default=None, init=False)
    #: When it was settled, or its copies were begun.
    settled_at: float | None = field(default=None, init=False)
    #: Whether the deadline passed or the handle was refused.
    lost: bool = field(default=False, init=False)
    #: Whether a request that extends it is in flight, and the settlement that waits for that.
    extending: bool = field(default=False, init=False)
    waiting: Direct | None = field(default=None, init=False)
    #: The `extensions.Bucket` in which the extension schedule keeps it.
    bucket: Any = field(default=None, init=False)
    #: The instant until which its task asks to hide the message; 0 once that is done, or cannot be.
    requested_deadline: float = field(default=0.0, init=False)
    #: How many of its message's receives so far were no attempts: it waited for its ETA, or was elsewhere.
    parkings: int = field(default=0, init=False)
    #: Its state as its task sees it, in any process.
    lease: LeasePort | None = field(default=None, init=False)
    #: Called with the receipt handle under which it is lost while it is held, in a thread of the pump.
    on_lost: Callable[[str], None] | None = field(default=None, init=False)
    #: Whether its run has to show life.
    inactivity: Inactivity | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.message_key = self.queue.url, self.facts.message_id
        self.tag = self.handle

    @property
    def held(self) -> bool:
        """Whether this process still holds the message."""
        return self.state is not State.SETTLED

    @property
    def has_place(self) -> bool:
        """Whether it takes capacity, unless it waits: while its copies are sent it does not."""
        return self.state is not State.SETTLED and self.state is not State.COPYING

    @property
    def at_horizon(self) -> bool:
        """Whether it is hidden for as long as SQS allows, to the second."""
        return self.deadline >= self.horizon - HORIZON_MARGIN_SECONDS - 1

    @property
    def started(self) -> bool:
        """Whether a pool has begun to run it."""
        return self.began is not None

    @property
    def is_dropped(self) -> bool:
        """Whether nothing would settle the delivery: its request or its run is gone, or it never had one."""
        if self.state is State.COPYING:
            return False
        return not self.attended if self.carrier is None else self.carrier() is None

    @property
    def lease_key(self) -> LeaseKey | None:
        """The key by which the task finds its lease."""
        return self.lease.key if self.lease else None

    @property
    def may_return(self) -> bool:
        """Whether SQS would hand it out again, instead of moving it to the dead-letter queue."""
        left = self.receives_left
        return left is None or left > 0

    @property
    def receives_left(self) -> int | None:
        """How often SQS would hand it out again; `None` without a redrive policy."""
        policy = self.holder.redrive.peek(self.queue)
        return None if policy is None else policy.max_receive_count - self.facts.receive_count

    def renewal(self, eta: float, copied: MakeCopy, otherwise: Direct | Hold) -> Forward | None:
        """How the message can wait for another ETA; `None` if it cannot: see `settle.parking`."""
        return self.holder.parking.renewal(self, eta, copied, otherwise)

    def settle(self, settlement: Settlement) -> bool:
        """Settle it, once and for all; returns at once, and threads send the request.

        Returns:
            Whether it was still ours to settle; a second settlement does nothing.
        """
        return self.holder.settle(self, settlement)

    def start(self) -> bool:
        """A pool begins to run it; `False` if it may not, having been given back meanwhile, or lost."""
        return self.holder.start(self)

    def dispatch(self) -> bool:
        """It goes to a pool that cannot be kept from running it; whether it may, as for `start`."""
        return self.holder.dispatch(self)

    def extend(self, until: float) -> None:
        """Its task wants it hidden until that monotonic instant; its lease tells the answer."""
        self.holder.extend(self, until)

    def tell_lost(self) -> None:
        """Another worker has the key of its exclusive task: its run is told, or ended. A thread's own."""
        self.holder.tell_lost(self)

    def run_ended(self) -> None:
        """Its run has ended, after it was acknowledged when that began."""
        self.holder.run_ended(self)

    def give_up(
        self, reason: str, body: Callable[[], str], when_exhausted: str | None = None, **attributes: str
    ) -> None:
        """Its task failed for good: a dead letter made of `body()`, or deleted, or kept."""
        self.holder.rejection.give_up(self, reason, body, when_exhausted, **attributes)

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
        self.holder.rejection.reject(self, requeue=requeue)

    def refuse(self, reason: str, body: str, *, others_may: bool = False) -> bool:
        """No task of this worker can be made of it: a dead letter, or hidden where others may know it.

        Returns:
            Whether this process refuses the message for the first time.
        """
        return self.holder.rejection.refuse(self, reason, body, others_may=others_may)

    def after_an_error(self) -> Direct:
        """How to settle a failure about which its task says nothing."""
        return self.holder.rejection.after_an_error(self)

    def come_back(self, error: BaseException) -> None:
        """An error of this process keeps the message from being read or run: another time it can be."""
        self.holder.rejection.come_back(self, error)

    def __repr__(self) -> str:
        state = "lost" if self.lost else self.state.name.lower()
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

"""Deliveries: the messages that this process holds, and the ports through which they reach their holder."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from weakref import ref

from celery_sqs_visibility.core.settlements import Direct, Forward, Hold, Settlement
from celery_sqs_visibility.events import DeliveryFacts
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.payload_pointers import PayloadPointer
from celery_sqs_visibility.policy.quotas import HORIZON_MARGIN_SECONDS

if TYPE_CHECKING:
    from celery_sqs_visibility.aws.queues import Queue
    from celery_sqs_visibility.aws.redrive import RedriveBook

#: The row of a lease in its table, the generation of that row, and the name of the table.
LeaseKey = tuple[int, float, str]

#: Makes the body and message attributes of a copy; returns `None` if there can be none.
MakeCopy = Callable[["Delivery"], tuple[str, Mapping[str, Any]] | None]


class Rejecter(Protocol):
    """Decides how to settle failed messages (`settle.rejection`). Any thread."""

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
        """The settlement with which `refuse` refuses a message."""

    def after_an_error(self, delivery: Delivery) -> Direct: ...

    def come_back(self, delivery: Delivery, error: BaseException) -> None: ...


class Parker(Protocol):
    """Decides how messages wait for their ETA (`settle.parking`). Any thread."""

    def renewal(
        self, delivery: Delivery, eta: float, copied: MakeCopy, otherwise: Direct | Hold
    ) -> Forward | None: ...


class LeasePort(Protocol):
    """A delivery as its run sees it, in any process (`delivery.lease_table`)."""

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
        """How many attempts came before, according to the store of the key."""

    def tell_inactive(self) -> None:
        """Tell the run that it was silent for too long."""

    def renew(self, deadline: float, horizon: float) -> None:
        """Note the deadline and horizon of a newer receipt."""

    def answer(self, requested: float) -> None:
        """Note that the requested deadline is reached, or cannot be."""

    def end(self) -> None:
        """End the lease: the delivery is settled."""


class Leases(Protocol):
    """Makes leases."""

    def take(
        self, deadline: float, on_request: Callable[[float], None], horizon: float = ...
    ) -> LeasePort | None:
        """Make a lease for a run that begins. Returns `None` if there are too many."""


class Holder(Protocol):
    """Holder of deliveries. `Delivery` documents the methods. Any thread; no method waits for I/O."""

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
        """Settle it; with `receipt`, only if that is its latest handle. Returns whether it was held."""

    def start(self, delivery: Delivery) -> bool: ...

    def dispatch(self, delivery: Delivery) -> bool: ...

    def extend(self, delivery: Delivery, until: float) -> None: ...

    def tell_lost(self, delivery: Delivery) -> None: ...

    def run_ended(self, delivery: Delivery) -> None: ...


class Places(Protocol):
    """Counts held deliveries as their state changes (`core.capacity`)."""

    def count(self, delivery: Delivery, messages: int) -> None:
        """Change the number of places that deliveries of this queue take; -1 frees one."""

    def free(self, delivery: Delivery, now: float) -> None:
        """Free the place of a delivery that is settled, or whose copies are sent."""

    def end_run(self, delivery: Delivery, began: float, now: float) -> None:
        """Note the end of a run that began at that instant, and whose message was settled then."""


class Consumer(Protocol):
    """The consumer that received deliveries and hands them to Celery. Any thread; makes no request."""

    @property
    def capacity(self) -> Places:
        """Counts the consumer's deliveries, under the holder's lock."""

    def loop_late(self, now: float) -> float:
        """For how many seconds the event loop that begins the runs has been blocked; 0 while it turns."""

    def rest(self, delivery: Delivery, wait: Wait) -> None:
        """Note what a delivery waits for. Others may have its place or slot until `resume`, or its end."""

    def resume(self, delivery: Delivery) -> None:
        """End the wait of a delivery. Idempotent."""

    def free(self, delivery: Delivery) -> None:
        """Let others have the place of a delivery that is settled, rests or has run."""

    def expect(self, queue: Queue, message_id: str, at: float) -> None:
        """Expect a message of the queue to become visible at that monotonic instant."""

    def take_back(self, delivery: Delivery, payload: dict[str, Any]) -> bool:
        """Let Celery hold a message whose queue refuses the copy, so that it is not handed out again.

        Called by a thread of the pump. Returns whether the delivery was still held.
        """


class State(enum.Enum):
    """Stages of a delivery."""

    HELD = "it has not begun"
    DISPATCHED = "a pool has it, and may run it any moment"
    RUNNING = "a pool runs it"
    COPYING = "copies of it are sent, and only their sender settles it"
    SETTLED = "it has ended"


#: The states of a delivery that may not run any more and takes no capacity.
ENDING: Final = (State.COPYING, State.SETTLED)


class Wait(enum.Enum):
    """What a held delivery waits for while others may use its place or slot."""

    PAYLOAD = "its payload, which could not be fetched from S3: others have its place"
    START = "its ETA or rate, in Celery's memory: others may be received meanwhile"
    FAR_START = "its rate, for long: held messages may begin before it"


class Inactivity(NamedTuple):
    """Inactivity timeout of a run.

    Attributes:
        timeout: the longest time without a sign of life, in seconds.
            end_run: called in the supervisor's thread after that time.
    """

    timeout: float
    end_run: Callable[[], None]


@dataclass(eq=False, repr=False)
class Delivery:
    """One message, from its first receipt until it is settled. Instants are monotonic.

    If SQS hands out the message again meanwhile, the newer receipt replaces the old one. The holder's lock
    guards the mutable fields.

    It has no slots, so that defaults are attributes of the class and cost a message nothing.
    """

    queue: Queue
    #: The latest receipt handle.
    handle: str
    facts: DeliveryFacts
    #: The instant beyond which SQS refuses to extend it: 12 hours from when its receive was called.
    horizon: float
    #: The instant at which its visibility timeout ends.
    deadline: float
    holder: Holder
    consumer: Consumer | None = None
    #: The sender's message attributes, as SQS returns them.
    message_attributes: Mapping[str, Any] = field(default_factory=dict)
    #: The ARN of the queue from which SQS moved the message, whose receives SQS goes on counting.
    moved_from: str | None = None
    #: Where its payload is in S3. An object of ours is deleted with the message, unless a copy needs it.
    pointer: PayloadPointer | None = None
    #: The message's queue URL and id.
    message_key: tuple[str, str] = field(init=False)
    #: kombu's delivery tag: the first receipt handle.
    tag: str = field(init=False)
    state: State = field(default=State.HELD, init=False)
    wait: Wait | None = field(default=None, init=False)
    #: Whether the buffer, Celery or a thread that fetches the payload refers to it.
    attended: bool = field(default=False, init=False)
    #: Once set, only this object settles it: Celery's request, then its run in a pool without processes.
    carrier: ref[Any] | None = field(default=None, init=False)
    #: When a pool began to run it; `None` before.
    began: float | None = field(default=None, init=False)
    #: Whether it is settled when its run begins, not when the run ends.
    acknowledged_early: bool = field(default=False, init=False)
    #: The outcome that the request reports of a run whose message is deleted: "failed", "retried" ...
    outcome: str | None = field(default=None, init=False)
    #: How a given-up message ended: "failed", or "released" if it was given up before this receive.
    end_of_given_up: str | None = field(default=None, init=False)
    #: When it was settled, or sending its copies began.
    settled_at: float | None = field(default=None, init=False)
    #: Whether the deadline has passed or SQS has refused the handle.
    lost: bool = field(default=False, init=False)
    #: Whether a request that extends it is in flight.
    extending: bool = field(default=False, init=False)
    #: The settlement that waits until that request has ended.
    waiting: Direct | None = field(default=None, init=False)
    #: The `extensions.Bucket` in which the extension schedule keeps it.
    bucket: Any = field(default=None, init=False)
    #: The instant until which its task asked to hide the message; 0 once that was answered.
    requested_deadline: float = field(default=0.0, init=False)
    #: How many receives were not attempts: the message waited for its ETA, or was in another queue.
    parkings: int = field(default=0, init=False)
    #: The delivery as its run sees it, in any process.
    lease: LeasePort | None = field(default=None, init=False)
    #: Called by a thread of the pump, with the receipt handle, if the message is lost while it is held.
    on_lost: Callable[[str], None] | None = field(default=None, init=False)
    #: The inactivity timeout of its run, if it has one.
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
        """Whether it takes capacity unless it waits. A delivery whose copies are being sent takes none."""
        return self.state not in ENDING

    @property
    def at_horizon(self) -> bool:
        """Whether it can be hidden for a second longer at most."""
        return self.deadline >= self.horizon - HORIZON_MARGIN_SECONDS - 1

    @property
    def started(self) -> bool:
        """Whether a pool has begun to run it."""
        return self.began is not None

    @property
    def is_dropped(self) -> bool:
        """Whether nothing is left that would settle it: its request or run is gone, or never existed."""
        if self.state is State.COPYING:
            return False
        return not self.attended if self.carrier is None else self.carrier() is None

    @property
    def lease_key(self) -> LeaseKey | None:
        """The key by which the task finds the lease, if there is one."""
        return self.lease.key if self.lease else None

    def lost_by(self, instant: float) -> bool:
        """Whether another worker may have the message at that monotonic instant."""
        return self.lost or self.deadline <= instant

    @property
    def may_return(self) -> bool:
        """Whether SQS would hand out the message again, instead of moving it to the dead-letter queue."""
        left = self.receives_left
        return left is None or left > 0

    @property
    def receives_left(self) -> int | None:
        """How often SQS would hand out the message again; `None` without a redrive policy."""
        policy = self.holder.redrive.peek(self.queue)
        return None if policy is None else policy.max_receive_count - self.facts.receive_count

    def renewal(self, eta: float, copied: MakeCopy, otherwise: Direct | Hold) -> Forward | None:
        """The settlement by which the message waits for another ETA as a copy; `None` if it can't."""
        return self.holder.parking.renewal(self, eta, copied, otherwise)

    def settle(self, settlement: Settlement) -> bool:
        """Settle it. Returns whether it was still held; a second settlement does nothing.

        A thread of the pump sends the request.
        """
        return self.holder.settle(self, settlement)

    def start(self) -> bool:
        """Mark it as running in a pool. Returns `False` if it may not run: it is lost, or was given back."""
        return self.holder.start(self)

    def dispatch(self) -> bool:
        """Mark it as handed to a pool that can't be kept from running it. Returns what `start` returns."""
        return self.holder.dispatch(self)

    def extend(self, until: float) -> None:
        """Hide it until that monotonic instant, as its task asked. The result is written to the lease."""
        self.holder.extend(self, until)

    def tell_lost(self) -> None:
        """Tell or end its run, because another worker has the key of the task. A background thread."""
        self.holder.tell_lost(self)

    def run_ended(self) -> None:
        """Note the end of a run whose message was settled when it began."""
        self.holder.run_ended(self)

    def give_up(
        self, reason: str, body: Callable[[], str], when_exhausted: str | None = None, **attributes: str
    ) -> None:
        """Give it up after a permanent failure: send `body()` as a dead letter, delete it or keep it."""
        self.holder.rejection.give_up(self, reason, body, when_exhausted, **attributes)

    @property
    def given_up(self) -> bool:
        """Whether this process gave up the message before."""
        return self.holder.rejection.gave_up(self)

    @property
    def kept_before(self) -> bool:
        """Whether this process hid or released the message before."""
        return self.holder.rejection.kept(self)

    def reject(self, *, requeue: bool) -> None:
        """Give it back at once, or leave it to the queue's redrive policy. It is deleted if there is none."""
        self.holder.rejection.reject(self, requeue=requeue)

    def refuse(self, reason: str, body: str, *, others_may: bool = False) -> bool:
        """Refuse a message that this worker can't run: it becomes a dead letter.

        With `others_may`, it is hidden for a worker that knows the task. Returns whether this process refuses
        the message for the first time.
        """
        return self.holder.rejection.refuse(self, reason, body, others_may=others_may)

    def after_an_error(self) -> Direct:
        """The settlement of a failure for which the task chose none."""
        return self.holder.rejection.after_an_error(self)

    def come_back(self, error: BaseException) -> None:
        """Let it come back, because an error of this process kept the message from being read or run."""
        self.holder.rejection.come_back(self, error)

    def __repr__(self) -> str:
        state = "lost" if self.lost else self.state.name.lower()
        return f"<Delivery {self.facts.message_id} of {self.queue.name!r}: {state}>"


def _lay_out() -> None:
    """Create a first delivery with all fields, so that Python shares one key table among all deliveries.

    If the first deliveries lacked a field, each later one would have a dict of its own, which takes 500 bytes
    more (PEP 412; at most 30 fields are shared that way).
    """
    first = object.__new__(Delivery)
    for each in fields(Delivery):
        setattr(first, each.name, None)


_lay_out()

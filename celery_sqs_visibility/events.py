"""Events of this process, as data. The log, the signals and your metrics are listeners.

In the order of a message's life:

- `Received`; then `Unreadable`, or, with a far ETA, `Parked` or `Renewed`.
- `Skipped`, if it need not run.
- `Started`; while it runs `Extended`, and if that fails `Lost`; `Superseded` if it comes back meanwhile;
  `HorizonNear` when it cannot be extended for much longer.
- `Finished` and `Deleted`; `FinishedBefore` if it comes back even then.
- `Failed` and `Hidden`; at last `DeadLettered`.
- `Released`, when it is given back without having run.

`SQSRequest` is about a request and no message, `EventsDropped` about Celery's own events, `BrakeChanged`
about a brake. The last five are for metrics.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, TypeVar, overload

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DeliveryFacts:
    """Identifies a delivery.

    Attributes:
        queue: Celery's name of the queue.
        message_id: SQS's, the same for every delivery of the message.
        receive_count: 1 for the first delivery.
        first_received: when SQS first handed the message out, in seconds since the epoch; 0 if unknown.
        task: the task's name; `None` if unknown.
        task_id: its id; `None` if unknown.
        group: the FIFO message group, if any.
        received: when this delivery arrived, in seconds since the epoch; 0 if unknown.
        attempt: the number of its run, 1 for the first; `None` if unknown, for example before an ETA.
        sent: when the message was sent, in seconds since the epoch; 0 if unknown.
        eta: the ETA of a first run, in seconds since the epoch; `None` without one, and before Celery has it.
    """

    queue: str
    message_id: str
    receive_count: int
    first_received: float
    task: str | None = None
    task_id: str | None = None
    group: str | None = None
    received: float = 0
    attempt: int | None = None
    sent: float = 0
    eta: float | None = None

    def __init__(
        self,
        queue: str,
        message_id: str,
        receive_count: int,
        first_received: float,
        task: str | None = None,
        task_id: str | None = None,
        group: str | None = None,
        received: float = 0,
        attempt: int | None = None,
        sent: float = 0,
        eta: float | None = None,
    ) -> None:
        # In one step, because each message has one: a frozen dataclass makes a call for each attribute.
        self.__dict__.update(
            queue=queue,
            message_id=message_id,
            receive_count=receive_count,
            first_received=first_received,
            task=task,
            task_id=task_id,
            group=group,
            received=received,
            attempt=attempt,
            sent=sent,
        )
        if eta is not None:  # few have one, and an eleventh attribute takes 200 bytes
            self.__dict__["eta"] = eta


Listener = Callable[[Any], None]
Condition = Callable[[], bool]

ALWAYS: Final[Condition] = partial(bool, 1)  # in C, because it is called for each message
NEVER: Final[Condition] = partial(bool, 0)

_lock = threading.Lock()  # guards changes of _subscriptions; emitting needs no lock
_subscriptions: tuple[_Subscription, ...] = ()


def _find_listeners(kind: type[Event]) -> None:
    """Set the listeners of a class of events, which may be defined after the subscriptions."""
    interested = [one for one in _subscriptions if issubclass(kind, one.kind)]
    kind.listeners = tuple(one.listener for one in interested)
    kind.is_wanted = _any_of({one.when for one in interested})


def _any_of(conditions: set[Condition]) -> Condition:
    if not conditions:
        return NEVER
    if ALWAYS in conditions:
        return ALWAYS
    if len(conditions) == 1:
        return conditions.pop()
    return lambda: any(condition() for condition in conditions)


@dataclass(frozen=True, slots=True)
class Event:
    """Something happened in this process."""

    #: Whether a listener wants events of this class now; if not, they need not be made.
    is_wanted: ClassVar[Condition] = NEVER
    #: The listeners of this class, in the order of subscription.
    listeners: ClassVar[tuple[Listener, ...]] = ()

    def __init_subclass__(cls) -> None:
        _find_listeners(cls)


@dataclass(frozen=True, slots=True)
class DeliveryEvent(Event):
    """Something happened to a delivery."""

    delivery: DeliveryFacts


@dataclass(frozen=True, slots=True)
class Received(DeliveryEvent):
    """This process received the message; SQS hides it from others for `seconds`."""

    seconds: int = 0


@dataclass(frozen=True, slots=True)
class Unreadable(DeliveryEvent):
    """This worker cannot run the message: `reason` says why, `follows` what happens to it."""

    reason: str
    follows: str = ""


@dataclass(frozen=True, slots=True)
class Parked(DeliveryEvent):
    """The message waits, hidden for `seconds`, for its `cause`: "eta", or "key", an exclusive one."""

    seconds: float
    cause: str = "eta"


@dataclass(frozen=True, slots=True)
class Renewed(DeliveryEvent):
    """The message waits as a copy, for `seconds` or longer.

    Its `cause` is "eta", "rate", "key", "pause" or "brake".
    """

    seconds: float
    cause: str = "eta"


@dataclass(frozen=True, slots=True)
class Started(DeliveryEvent):
    """The pool started the task."""


@dataclass(frozen=True, slots=True)
class Extended(DeliveryEvent):
    """The visibility timeout was extended to `seconds` from now."""

    seconds: int


@dataclass(frozen=True, slots=True)
class Skipped(DeliveryEvent):
    """The task was not run, and its message is deleted: `reason` says why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Superseded(DeliveryEvent):
    """The message came back to the process that holds it, which now uses the new receipt handle."""


@dataclass(frozen=True, slots=True)
class Lost(DeliveryEvent):
    """The visibility lapsed or SQS refused the receipt handle: another worker may have the message."""

    reason: str


@dataclass(frozen=True, slots=True)
class HorizonNear(DeliveryEvent):
    """SQS's 12 hours end in `seconds`: then the message is visible, though its task may still run."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Failed(DeliveryEvent):
    """The run failed, as attempt number `attempt` (1 for the first).

    The message stays hidden for `delay` seconds; `None` is the rest of its visibility timeout. After the
    `last` attempt it is only deleted or dead-lettered.
    """

    attempt: int
    error: str
    delay: float | None
    last: bool


@dataclass(frozen=True, slots=True)
class Hidden(DeliveryEvent):
    """The message failed, and comes back in `seconds`. `kept`: it failed for good, and is not run again."""

    seconds: float
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Finished(DeliveryEvent):
    """Celery has finished the message; its deletion is pending."""


@dataclass(frozen=True, slots=True)
class Deleted(DeliveryEvent):
    """SQS has deleted the message."""


@dataclass(frozen=True, slots=True)
class FinishedBefore(DeliveryEvent):
    """A message that this process had finished came back: it is deleted with its new receipt handle."""


@dataclass(frozen=True, slots=True)
class Released(DeliveryEvent):
    """The message was given back without a run; SQS delivers it again after `seconds`, 0 is at once."""

    seconds: float = 0


@dataclass(frozen=True, slots=True)
class DeadLettered(DeliveryEvent):
    """The message was given up: a copy is in the dead-letter queue."""

    reason: str


@dataclass(frozen=True, slots=True)
class SQSRequest(Event):
    """A request to SQS has ended. A send that botocore retries, if `client-config` lets it, counts once.

    Attributes:
        action: the API action, for example "ReceiveMessage".
        seconds: how long it took.
        outcome: "ok", or the error's code.
        queue: the queue's name at SQS, or the prefix of names that it lists; empty if none.
    """

    action: str
    seconds: float
    outcome: str
    queue: str = ""


@dataclass(frozen=True, slots=True)
class EventsDropped(Event):
    """`count` events of Celery will not reach a monitor: too many wait, or SQS refuses them.

    `queue` is the monitor's.
    """

    queue: str
    count: int


@dataclass(frozen=True, slots=True)
class BrakeChanged(Event):
    """The worker's brake of that name is "on", "easing" or "off" now.

    It was applied `seconds` ago, for an `error`; `tries` runs were tried since then.
    """

    brake: str
    stage: str
    seconds: float
    tries: int
    error: str


E = TypeVar("E", bound=Event)


@dataclass(frozen=True, slots=True)
class _Subscription:
    listener: Listener
    kind: type[Event]
    when: Condition


def _replace_subscriptions(subscriptions: tuple[_Subscription, ...]) -> None:
    """Replace all subscriptions. Under the lock."""
    global _subscriptions  # noqa: PLW0603 - one process, one stream of events
    _subscriptions = subscriptions
    kinds: list[type[Event]] = [Event]
    for kind in kinds:
        kinds += kind.__subclasses__()
        _find_listeners(kind)


@overload
def subscribe(
    listener: Callable[[DeliveryEvent], None], *, when: Condition = ALWAYS
) -> Callable[[], None]: ...
@overload
def subscribe(
    listener: Callable[[E], None], kind: type[E], when: Condition = ALWAYS
) -> Callable[[], None]: ...
def subscribe(
    listener: Listener, kind: type[Event] = DeliveryEvent, when: Condition = ALWAYS
) -> Callable[[], None]:
    """Call `listener(event)` for every event of a kind in this process, in the event's thread: be quick.

    Args:
        listener: its exceptions are logged and otherwise ignored.
        kind: a class of events, including its subclasses.
        when: whether the listener wants an event of this kind now. Frequent events that nobody wants are not
            made; the listener may hear of other events all the same.

    Returns:
        A function that ends the subscription. Idempotent.
    """
    subscription = _Subscription(listener, kind, when)  # told from an equal one by its identity
    with _lock:
        _replace_subscriptions((*_subscriptions, subscription))

    def unsubscribe() -> None:
        with _lock:
            _replace_subscriptions(tuple(one for one in _subscriptions if one is not subscription))

    return unsubscribe


def subscribed(listener: Listener) -> bool:
    """Return whether that listener is subscribed."""
    return any(one.listener == listener for one in _subscriptions)


def emit(event: Event) -> None:
    """Call every listener of the event's kind. Never raises."""
    for listener in event.listeners:
        try:
            listener(event)
        except Exception:  # noqa: BLE001 - logged, if that works
            log_safely(logger.exception, "a listener raised at %s; continuing", type(event).__name__)


def log_safely(log: Callable[..., object], sentence: str, *args: Any, **options: Any) -> None:
    """Call `log`, a method of a logger; its exceptions are dropped.

    `logging` handles the errors of handlers, but not those of filters and of a user's logger class.
    """
    with suppress(Exception):
        log(sentence, *args, stacklevel=2, **options)


@dataclass(frozen=True, slots=True)
class ReceiveEnded(Event):
    """SQS answered a receive from a queue: `asked` messages were asked for, and `messages` came."""

    queue: str
    asked: int
    messages: int


@dataclass(frozen=True, slots=True)
class ExtensionEnded(Event):
    """A message of a queue was extended, `late` seconds after that was due."""

    queue: str
    late: float


@dataclass(frozen=True, slots=True)
class DeliveryEnded(Event):
    """A message's end is decided: see `core.endings`. Once a delivery.

    Attributes:
        outcome: "succeeded", "retried", "failed", "lost", "released", "skipped", "delayed" or "discarded".
        held: seconds since the receive.
        ran: seconds since its run began; `None` if it did not run.
    """

    delivery: DeliveryFacts
    outcome: str
    held: float
    ran: float | None


@dataclass(frozen=True, slots=True)
class SettlementEnded(Event):
    """SQS was told what becomes of a message, `seconds` after that was decided."""

    delivery: DeliveryFacts
    seconds: float


@dataclass(frozen=True, slots=True)
class ReplyDropped(Event):
    """A reply to a command of remote control did not reach its caller: it has gone, or SQS refused."""

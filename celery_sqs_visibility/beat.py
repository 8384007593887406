"""Schedulers for several beats: `celery beat -S celery_sqs_visibility.beat:Scheduler`.

Each beat sends each periodic task with a deduplication id that names the due time, and a FIFO queue accepts
only the first. Before a beat sends to a standard queue, it claims the due time in the store of exclusive
tasks. For another scheduler mix `SendsOnce` in: `class Mine(SendsOnce, DatabaseScheduler)`.
"""

from __future__ import annotations

import hashlib
import math
import re
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from celery.beat import PersistentScheduler
from celery.exceptions import ImproperlyConfigured, QueueNotFound
from celery.schedules import schedule as Interval  # noqa: N812 - it is a class
from celery.utils.log import get_logger
from celery.utils.time import delta_resolution, maybe_make_aware

from celery_sqs_visibility.command_line import shown_in_one_line
from celery_sqs_visibility.errors import OptionError, StoreError
from celery_sqs_visibility.policy.queue_names import FIFO_SUFFIX
from celery_sqs_visibility.policy.quotas import DEDUPLICATION_ID_CHARACTERS
from celery_sqs_visibility.transport.transport import Transport

if TYPE_CHECKING:
    from celery_sqs_visibility.stores.port import ExclusiveStore
    from celery_sqs_visibility.transport.broker_context import BrokerContext

logger = get_logger(__name__)

#: How long a claim lasts: as long as another beat may be late with the same task.
CLAIM_SECONDS: Final = 24 * 60 * 60

UNCLAIMED: Final = "%s could not be claimed, and is sent: another beat may send it too: %s"


class SendsOnce:
    """Makes a scheduler of Celery one of several that send each periodic task once. beat's thread.

    Intervals run at their multiples since the epoch, every 30 s at :00 and :30, in all beats alike. So this
    changes when Celery's scheduler counts an entry as run (celery/beat.py: `Scheduler.tick`, `populate_heap`,
    `reserve`, `is_due`, `apply_async`).
    """

    app: Any
    schedule: Any
    _owner = ""  # of this beat's latest claim

    def claim(self, key: str, ttl_seconds: float) -> bool:
        """Claim the task that `key` names, `name@due`. Returns whether this beat may send it: the first may.

        Asks the store of the option `coordination_store` about tasks for standard queues; without a store
        every beat may send. An override is asked about all tasks.

        Args:
            key: the same in all beats.
            ttl_seconds: how long the store must remember it.
        """
        store, self._owner = self._exclusive_store(), uuid.uuid4().hex
        return store is None or store.claim(f"beat:{key}", ttl_seconds, self._owner)

    def unclaim(self, key: str) -> None:
        """Give up the claim of a task that could not be sent: a beat that asks later may send it.

        Override it with `claim`, or no beat may.
        """
        store = self._exclusive_store()
        if store is not None and self._owner:
            store.release(f"beat:{key}", self._owner)

    def setup_schedule(self) -> None:
        """As Celery's; warns of tasks that two beats would send twice.

        Raises:
            ImproperlyConfigured: the store is needed, and cannot be opened.
        """
        super().setup_schedule()  # type: ignore[misc]
        if self._claims_everything:
            return
        context = self._broker_context()
        if context is None:
            logger.warning("beat does not publish to SQS here, so that two beats send each task twice")
            return
        # Celery's own entry may be sent twice (celery/beat.py: `Scheduler.install_default_entries`).
        entries = (entry for entry in self.schedule.values() if entry.name != "celery.backend_cleanup")
        queues = sorted(set(filter(None, map(self._standard_queue, entries))))
        try:
            sent_twice = queues and context.coordination_store is None
        except OptionError as error:
            raise shown_in_one_line(ImproperlyConfigured(str(error))) from None
        if sent_twice:
            logger.warning(
                "two beats send twice what they send to %s, since only FIFO queues drop the second message: "
                "set the transport option coordination_store, route periodic tasks to a FIFO queue, or run "
                "one beat",
                ", ".join(map(repr, queues)),
            )

    def populate_heap(self, *args: Any, **kwargs: Any) -> None:
        """Do as Celery does, with every interval on its grid."""
        for entry in self.schedule.values():
            _align(entry)
        super().populate_heap(*args, **kwargs)  # type: ignore[misc]

    def reserve(self, entry: Any) -> Any:
        """Do as Celery does, but set the entry's next run to the next multiple of its interval."""
        return _align(super().reserve(entry))  # type: ignore[misc]

    def is_due(self, entry: Any) -> tuple[bool, float]:
        """Do as Celery does, but count no interval from a run that was late."""
        due, seconds = super().is_due(entry)  # type: ignore[misc]
        every = _interval(entry)
        return due, until_next(_now(entry), every) if due and every else seconds

    def apply_async(
        self,
        entry: Any,
        producer: Any = None,
        advance: bool = True,  # noqa: FBT001, FBT002 - Celery's
        **kwargs: Any,
    ) -> Any:
        """Send as Celery does, with a deduplication id; return `None` if another beat claimed the task."""
        due = _due(entry)
        entry = self.reserve(entry) if advance else entry
        options = entry.options
        if due is not None:
            key = due_key(entry.name, due)
            if not self._may_send(entry, key):
                logger.info("another beat sends %s", key)
                return None
            entry.options = {"MessageDeduplicationId": key, **options}
        try:
            return super().apply_async(entry, producer, advance=False, **kwargs)  # type: ignore[misc]
        except Exception:
            if due is not None:
                self._unclaim_safely(entry, key)
            raise
        finally:
            entry.options = options  # the schedule keeps the entry

    @property
    def _claims_everything(self) -> bool:
        return type(self).claim is not SendsOnce.claim

    def _may_send(self, entry: Any, key: str) -> bool:
        """Claim the task if that is needed. Returns whether this beat may send it."""
        if not self._is_claimed(entry):
            return True
        try:
            return self.claim(key, CLAIM_SECONDS)
        except StoreError as error:
            logger.error(UNCLAIMED, key, error)  # noqa: TRY400 - the error's text says all
        except Exception:
            logger.exception(UNCLAIMED, key, "claim() has raised")
        return True

    def _unclaim_safely(self, entry: Any, key: str) -> None:
        try:
            if self._is_claimed(entry):
                self.unclaim(key)
        except Exception as error:  # noqa: BLE001 - it is logged, and must not hide why the send failed
            logger.error(  # noqa: TRY400 - the error's text says all
                "%s was not sent, and stays claimed, so that no other beat sends it: %s", key, error
            )

    def _is_claimed(self, entry: Any) -> bool:
        """Whether to claim the task before it is sent. A FIFO queue needs no claim."""
        return self._claims_everything or self._standard_queue(entry) is not None

    def _standard_queue(self, entry: Any) -> str | None:
        try:
            route = self.app.amqp.router.route(dict(entry.options), entry.task)
        except QueueNotFound:
            return None  # sending says so
        name: str | None = getattr(route.get("queue"), "name", None)
        return None if not name or name.endswith(FIFO_SUFFIX) else name

    def _exclusive_store(self) -> ExclusiveStore | None:
        context = self._broker_context()
        return None if context is None else context.coordination_store

    def _broker_context(self) -> BrokerContext | None:
        with self.app.connection_for_write() as connection:
            return connection.transport.context if isinstance(connection.transport, Transport) else None


class Scheduler(SendsOnce, PersistentScheduler):
    """Celery's own scheduler, and its schedule file, for several beats."""


def _now(entry: Any) -> float:
    return maybe_make_aware(entry.default_now()).timestamp()


def _interval(entry: Any) -> float:
    """The seconds of an interval on the grid, else 0. Celery itself aligns relative intervals."""
    plan = entry.schedule
    on_a_grid = isinstance(plan, Interval) and not plan.relative
    return float(plan.seconds) if on_a_grid else 0.0


def _align(entry: Any) -> Any:
    """Count an interval from its last multiple, not from a start of beat or a late run."""
    if every := _interval(entry):
        ran: datetime = maybe_make_aware(entry.last_run_at).astimezone(UTC)
        entry.last_run_at = ran - timedelta(seconds=ran.timestamp() - on_grid(ran.timestamp(), every))
    return entry


def _due(entry: Any) -> float | None:
    """The instant for which an entry is sent now; `None` if two beats could compute different ones."""
    now = _now(entry)
    plan: Any = entry.schedule
    if every := _interval(entry):
        return on_grid(now, every)
    if isinstance(plan, Interval):
        return _rounded(now, plan) if plan.relative else None
    ran = maybe_make_aware(entry.last_run_at).timestamp()
    try:
        return latest(partial(_after, plan), ran, now)
    except NotImplementedError:  # a schedule of the user's own
        return None


def _rounded(now: float, plan: Any) -> float:
    """The due time of a relative interval as Celery rounds it: to days, hours or minutes."""
    local = datetime.fromtimestamp(now, plan.tz)
    return delta_resolution(local, max(plan.run_every, timedelta(minutes=1))).timestamp()


def _after(plan: Any, instant: float) -> float:
    """The first occurrence after an instant, in whole seconds, computed from Celery's remaining time."""
    now = plan.maybe_make_aware(plan.now()).timestamp()
    remaining = plan.remaining_estimate(datetime.fromtimestamp(instant, plan.tz))
    return float(round(now + remaining.total_seconds()))


#: API_SendMessage: letters, digits and ASCII punctuation.
_LEGAL: Final = re.compile("[!-~]+")


def on_grid(instant: float, every: float) -> float:
    """The last multiple of an interval since the epoch, on which all beats agree."""
    return math.floor(instant / every) * every


def until_next(instant: float, every: float) -> float:
    """Seconds until the next multiple of the interval; never 0."""
    return on_grid(instant, every) + every - instant


def latest(after: Callable[[float], float], since: float, now: float) -> float:
    """A schedule's latest occurrence that is not after `now`.

    A beat that was down has missed several; another beat has just sent the latest one.

    Args:
        after: returns the first occurrence after an instant.
        since: there is an occurrence between this instant and `now`.
        now: the time.
    """
    look = 60.0  # crontabs count minutes
    while now - look > since and after(now - look) > now:
        look *= 2
    found = after(max(since, now - look))
    while found < (following := after(found)) <= now:
        found = following
    return found


def due_key(name: str, due: float) -> str:
    """`name@due`, as a MessageDeduplicationId; a name with characters that SQS refuses is hashed."""
    instant = datetime.fromtimestamp(due, UTC).isoformat().replace("+00:00", "Z")
    key = f"{name}@{instant}"
    if len(key) <= DEDUPLICATION_ID_CHARACTERS and _LEGAL.fullmatch(key):
        return key
    return f"{hashlib.sha256(name.encode()).hexdigest()}@{instant}"

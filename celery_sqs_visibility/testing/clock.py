"""A clock that a test turns, and that the package and Celery read instead of the machine's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, tzinfo
from typing import Any, Final

from celery import Celery
from celery.worker import request

from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK, SystemClock

MISSING: Final = object()

#: The machine's monotonic clock, even while the package reads a turned one.
machine_time: Final = SystemClock.monotonic


class TurnedClock:
    """A `policy.clock.Clock` that starts at the machine's time, and stands still until it is turned."""

    def __init__(self) -> None:
        self._began = self._monotonic = float(round(SYSTEM_CLOCK.monotonic()))
        self._wall = float(round(SYSTEM_CLOCK.wall()))

    def monotonic(self) -> float:
        return self._monotonic

    def wall(self) -> float:
        return self._wall

    @property
    def passed(self) -> float:
        """Seconds by which the clock was turned so far."""
        return self._monotonic - self._began

    def turn(self, seconds: float) -> None:
        """Turn the clock forward."""
        self._monotonic += seconds
        self._wall += seconds


def is_turned() -> bool:
    """Returns whether the package reads a turned clock instead of the machine's."""
    return SystemClock.monotonic is not machine_time


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Inside, an attribute of an object, a class or a module has another value.

    Raises:
        TypeError: the object's attributes can't be set, as in C code.
    """
    own = getattr(owner, "__dict__", {})
    before, inherited = own.get(name, MISSING), getattr(owner, name, MISSING)
    try:
        setattr(owner, name, value)
    except (AttributeError, TypeError) as error:
        raise TypeError(
            f"{name!r} of {owner!r} cannot be replaced ({error}): replace the name by which the code finds it"
        ) from None
    try:
        yield
    finally:
        if before is MISSING and isinstance(own, dict) and name in own:
            del own[name]  # `delattr` would leave a mock without such an attribute
        elif before is MISSING and (inherited is MISSING or name in own):
            delattr(owner, name)
        else:
            setattr(owner, name, inherited if before is MISSING else before)


@contextmanager
def reading(clock: TurnedClock) -> Iterator[None]:
    """Inside, the whole package reads that clock, in every thread of the process."""

    class Datetime(datetime):
        """Celery's `datetime`, which decides whether a request has expired."""

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return datetime.fromtimestamp(clock.wall(), tz)

    with ExitStack() as stack:
        stack.enter_context(replaced(SystemClock, "monotonic", staticmethod(clock.monotonic)))
        stack.enter_context(replaced(SystemClock, "wall", staticmethod(clock.wall)))
        stack.enter_context(replaced(request, "datetime", Datetime))
        yield


@contextmanager
def reading_in_app(app: Celery, clock: TurnedClock) -> Iterator[None]:
    """Inside, the app's ETAs are counted from that clock, too."""

    def now() -> datetime:
        return datetime.fromtimestamp(clock.wall(), UTC).astimezone(app.timezone)

    with replaced(app, "now", now):
        yield

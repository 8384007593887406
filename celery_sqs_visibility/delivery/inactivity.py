"""That a run has to show life."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Inactivity(NamedTuple):
    """How long a run may show no life.

    Attributes:
        timeout: in seconds.
        end_run: called once it was silent for so long, in the supervisor's thread.
    """

    timeout: float
    end_run: Callable[[], None]

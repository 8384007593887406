"""Whether a dependency (a store, S3) is asked, and when one that does not answer is probed.

Instants are monotonic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

#: Seconds from a request without an answer to the probe, and from one probe without an answer to the next.
PAUSE_SECONDS: Final = 1.0

#: A dependency that answers probes and not requests is left alone for longer each time, up to this.
LONGEST_PAUSE_SECONDS: Final = 16.0

#: A dependency that has answered for this time has recovered.
STEADY_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Circuit:
    """Closed while the dependency answers. Open, nobody asks it but the probe.

    Attributes:
        probe_at: when it is probed next; infinite while it is closed.
        opened_at: when a request without an answer has opened it last.
        closed_at: when an answered probe has closed it last.
        relapses: how often it was opened again before the dependency had recovered.
    """

    probe_at: float = math.inf
    opened_at: float = -math.inf
    closed_at: float = -math.inf
    relapses: int = 0

    @property
    def is_open(self) -> bool:
        """Whether the dependency is only probed."""
        return self.probe_at < math.inf

    def unanswered(self, since: float, now: float) -> Circuit:
        """A request made at `since` has had no answer by now.

        It tells nothing new while the circuit is open, nor if a later probe was answered.
        """
        if self.is_open or since < self.closed_at:
            return self
        relapses = self.relapses + 1 if now - self.closed_at < STEADY_SECONDS else 0
        pause = min(PAUSE_SECONDS * 2.0 ** min(relapses, 16), LONGEST_PAUSE_SECONDS)
        return replace(self, probe_at=now + pause, opened_at=now, relapses=relapses)

    def probed(self, now: float, *, answered: bool) -> Circuit:
        """The probe of an open circuit has ended: an answer closes it."""
        if not self.is_open:  # closed meanwhile: see `answered_elsewhere`
            return self
        if answered:
            return replace(self, probe_at=math.inf, closed_at=now)
        return replace(self, probe_at=now + PAUSE_SECONDS)

    def answered_elsewhere(self, at: float) -> Circuit:
        """A probe of another process was answered at that instant."""
        return self.probed(at, answered=True) if at > self.opened_at else self

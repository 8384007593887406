"""Contacts with kombu's messages and with the decoders of their bodies."""

from __future__ import annotations

from typing import Any, Final, cast

from kombu.serialization import registry  # type: ignore[attr-defined] # celery-types leaves it out
from kombu.transport import virtual

#: kombu's own dict of decoders by content type (kombu/serialization.py: `SerializerRegistry._decoders`).
#: Without it a body might be measured for one decoder and read by another, and our JSON decoder would replace
#: one that a user has registered.
DECODERS: Final[dict[str, Any]] = cast("Any", registry)._decoders


class LeanMessage(virtual.Message):
    """A message whose subclass may skip kombu's two constructors, and settle it without kombu's methods.

    For each message the constructors take three times as many steps as ours (kombu/transport/virtual/base.py:
    `Message._raw`; kombu/message.py: `Message._state`, `_decoded_cache`). Without the state a message could
    not be acknowledged, and a rejected one could. Without the cache a body would be decoded twice.

    Attributes:
        sent: the payload that the message was made from.
    """

    sent: dict[str, Any]

    _decoded_cache: Any = None
    _state = "RECEIVED"

    @property
    def _raw(self) -> dict[str, Any]:
        return self.sent

    @_raw.setter
    def _raw(self, payload: dict[str, Any]) -> None:
        self.sent = payload

    def note_rejected(self) -> None:
        """Mark the message as rejected."""
        self._state = "REJECTED"

    def decode(self) -> Any:
        """Return the body's content. Decodes the body once; raises what `decoded` raises."""
        if not self._decoded_cache:
            self._decoded_cache = self.decoded()
        return self._decoded_cache

    def decoded(self) -> Any:
        """Decode the body, as kombu does unless a class replaces this (kombu/message.py: `Message._decode`).

        Raises:
            Exception: the decoder's.
        """
        return super()._decode()

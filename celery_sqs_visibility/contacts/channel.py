"""Contacts with the messages of kombu's channels, and with the decoders of their bodies."""

from __future__ import annotations

from typing import Any, Final, cast

from kombu.serialization import registry  # type: ignore[attr-defined] # celery-types leaves it out
from kombu.transport import virtual

#: kombu's decoders by content type, as they are at any time (kombu/serialization.py:
#: `SerializerRegistry._decoders`). Without them a body might be measured for another decoder than reads it,
#: and JSON be read by ours where a user has registered another decoder of it.
DECODERS: Final[dict[str, Any]] = cast("Any", registry)._decoders


class LeanMessage(virtual.Message):
    """A message that its class may make without kombu's two constructors, and settle without kombu's methods.

    The constructors (kombu/transport/virtual/base.py: `Message._raw`; kombu/message.py: `Message._state`,
    `_decoded_cache`) take three times the steps of ours, for each message. Without the state no message could
    be acknowledged, and one that was turned away could be; without the cache a body would be decoded twice.

    Attributes:
        sent: the payload that it was made of.
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
        """Count as rejected from now on."""
        self._state = "REJECTED"

    def decode(self) -> Any:
        """Return the content of the body, which is decoded once. Raises as `decoded`."""
        if not self._decoded_cache:
            self._decoded_cache = self.decoded()
        return self._decoded_cache

    def decoded(self) -> Any:
        """Decode the body, as kombu does unless a class replaces this (kombu/message.py: `Message._decode`).

        Raises:
            Exception: the decoder's.
        """
        return super()._decode()

"""Limits on the memory and time that decompressing and decoding a body take. kombu has none.

Decompression, chosen by the header `compression`, stops at its limit. The output of codecs that can't stop is
measured afterwards: brotli before 1.2, and codecs that users have registered.

Content is measured before it is decoded. Content types without a check (pickle, a user's own) are trusted.
"""

from __future__ import annotations

import bz2
import codecs
import lzma
import re
import zlib
from collections.abc import Callable, Container
from functools import partial
from typing import Any, Final

from kombu import compression
from kombu.utils.encoding import ensure_bytes

from celery_sqs_visibility.contacts.channel import DECODERS
from celery_sqs_visibility.errors import TooLargeError
from celery_sqs_visibility.policy.message_limits import (
    MAX_CONTAINERS,
    MAX_NESTING,
    check_count,
    check_json,
    too_deep,
)
from celery_sqs_visibility.policy.options import DECOMPRESSED_BYTES

#: Reading a YAML value takes 0.1 ms and 650 bytes, ten times as much as a list.
MAX_YAML_VALUES: Final = MAX_CONTAINERS // 10

#: PyYAML does not limit the digits of a sexagesimal number, and its time grows with their square.
MAX_DIGITS: Final = 4300  # Python's limit for decimal numbers
YAML_NUMBER: Final = re.compile(r"[-+0-9_:]*")
YAML_INT_TAG: Final = "tag:yaml.org,2002:int"  # with it PyYAML also reads spaces and other digits

#: kombu's content type for a message without one. Content without a decoder is decoded by the Python codec
#: that its encoding names: some inflate (bz2, zlib), and punycode's time grows with the square of the length.
NO_TYPE: Final = "application/data"

#: Encodings that kombu does not decode (kombu/serialization.py: `SKIP_DECODE`).
NOT_DECODED: Final = ("binary", "ascii-8bit")

TEXT_CODECS: Final = ("utf-8", "utf-16", "utf-32", "ascii", "iso8859-1", "cp1252")

#: Memory of an xz dictionary, whose size its header names; the highest preset needs 65 MiB.
MAX_LZMA_BYTES: Final = 128 * 1024 * 1024

#: kombu's functions of the standard library, and decompressors that replace them and stop at a limit.
BOUNDED_DECOMPRESSORS: Final = (
    (zlib.decompress, zlib.decompressobj),
    (bz2.decompress, bz2.BZ2Decompressor),
    (lzma.decompress, partial(lzma.LZMADecompressor, memlimit=MAX_LZMA_BYTES)),
)


def knows_compression(method: Any) -> bool:
    """Returns whether the codec that the header `compression` names, if any, is installed."""
    if not isinstance(method, str) or not method:
        return True
    try:
        compression.get_decoder(method)
    except KeyError:
        return False
    return True


def inflate(body: bytes, method: str, largest: int = DECOMPRESSED_BYTES) -> bytes:
    """Decompress one stream by the header `compression`, with at most `largest` + 1 bytes in memory.

    Raises:
        TooLargeError: the content is larger than `largest` bytes.
        Exception: of the codec, for invalid data; `KeyError` for an unknown method.
    """
    decompress = compression.get_decoder(method)
    decompressor = _decompressor(decompress)
    plain: bytes
    if decompressor is None:
        plain = ensure_bytes(decompress(body))
    else:
        plain = decompressor.decompress(body, largest + 1)
    if len(plain) > largest:
        raise TooLargeError(f"it is larger than {largest} bytes when decompressed ({method})")
    if decompressor is not None and (not decompressor.eof or decompressor.unused_data):
        raise ValueError(f"it is not one whole {method} stream")
    return plain


def _decompressor(decompress: Any) -> Any:
    """A decompressor with the standard library's interface; `None` if there is none that can stop."""
    for function, make in BOUNDED_DECOMPRESSORS:
        if decompress is function:
            return make()
    # kombu has these modules where they are installed.
    brotli: Any = getattr(compression, "brotli", None)
    zstd: Any = getattr(compression, "zstd", None)
    if decompress is getattr(brotli, "decompress", None):
        # brotli takes a limit since 1.2.
        return _Brotli(brotli) if hasattr(brotli.Decompressor, "can_accept_more_data") else None
    if decompress is getattr(zstd, "decompress", None):
        return zstd.ZstdDecompressor()
    return _Zstandard(zstd) if decompress is getattr(compression, "zstd_decompress", None) else None


class _Brotli:
    """brotli since 1.2."""

    unused_data = b""

    def __init__(self, brotli: Any) -> None:
        self._decompressor = brotli.Decompressor()

    @property
    def eof(self) -> bool:
        return bool(self._decompressor.is_finished())

    def decompress(self, body: bytes, most: int) -> bytes:
        plain = bytearray(self._decompressor.process(body, output_buffer_limit=most))
        # brotli may stop below the limit with output left, and then takes no more input.
        while len(plain) < most and not self.eof and not self._decompressor.can_accept_more_data():
            plain += self._decompressor.process(b"", output_buffer_limit=most - len(plain))
        return bytes(plain)


class _Zstandard:
    """The package zstandard, which kombu uses before 5.7."""

    def __init__(self, zstandard: Any) -> None:
        self._zstandard = zstandard

    def decompress(self, body: bytes, most: int) -> bytes:
        plain: bytes = self._zstandard.ZstdDecompressor().stream_reader(body).read(most)
        if len(plain) < most:
            # The stream can't tell its end from missing data; this can, but without a limit.
            whole = self._zstandard.ZstdDecompressor().decompressobj()
            whole.decompress(body)
            self.eof, self.unused_data = whole.eof, whole.unused_data
        return plain


def check_content(
    content: str | bytes,
    content_type: str | None,
    encoding: str | None,
    accept: Container[str] | None = None,
) -> None:
    """Check the size of content before it is decoded. Format errors are left to its decoder.

    Content of a type that is not in `accept` is not checked: kombu rejects it.

    Raises:
        TooLargeError: it would exceed a limit.
    """
    if (check := CHECKS.get(content_type or NO_TYPE)) is not None:
        if accept is None or content_type in accept:
            check(content)
    elif (content_type or NO_TYPE) not in DECODERS:
        _check_encoding(content, encoding or "utf-8")


def _check_encoding(content: str | bytes, encoding: str) -> None:
    if isinstance(content, str) or encoding.lower() in NOT_DECODED:
        return  # it is not decoded
    try:
        codec = codecs.lookup(encoding).name
    except LookupError:
        return
    if codec not in TEXT_CODECS:
        raise TooLargeError(f"its content encoding is {encoding!r}, which has no size limit")


def _check_messagepack(content: str | bytes) -> None:
    """Count lists and objects without keeping them. MessagePack itself limits their nesting (to 1,024)."""
    if len(content) <= MAX_CONTAINERS or isinstance(content, str):
        return
    try:
        import msgpack  # noqa: PLC0415 - kombu has it where it is installed
    except ImportError:
        return
    counted = 0

    def count(_: object) -> None:
        nonlocal counted
        counted += 1
        check_count(counted)

    try:
        msgpack.unpackb(content, raw=True, strict_map_key=False, list_hook=count, object_hook=count)
    except TooLargeError:
        raise
    except Exception:  # noqa: BLE001 - its decoder raises it again
        return


def _check_yaml(content: str | bytes) -> None:
    """Count values, and refuse merge keys, which multiply them. As slow in PyYAML as decoding."""
    try:
        import yaml  # noqa: PLC0415 - kombu has it where it is installed
    except ImportError:
        return
    try:
        _check_events(yaml, content)
    except TooLargeError:
        raise
    except Exception:  # noqa: BLE001 - likewise; some are not PyYAML's own
        return


def _check_events(yaml: Any, content: str | bytes) -> None:
    counted, depth = 0, 0
    for event in yaml.parse(content, Loader=yaml.SafeLoader):
        counted += isinstance(event, yaml.NodeEvent)
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.ScalarEvent):
            _check_scalar(event)
        if depth > MAX_NESTING:
            raise too_deep()
        if counted > MAX_YAML_VALUES:
            raise TooLargeError(f"it holds more than {MAX_YAML_VALUES:,} values of YAML")


def _check_scalar(event: Any) -> None:
    plain = event.implicit[0]
    # It copies another object's values, each of which may be such a copy. PyYAML never writes it.
    if event.tag == "tag:yaml.org,2002:merge" or (plain and event.value == "<<"):
        raise TooLargeError("it has a merge key of YAML (<<), which may expand a few lines to gigabytes")
    if len(event.value) <= MAX_DIGITS:
        return
    if event.tag == YAML_INT_TAG or YAML_NUMBER.fullmatch(event.value):
        raise TooLargeError(f"it has a number of {len(event.value):,} characters")


CHECKS: Final[dict[str, Callable[[str | bytes], None]]] = {
    "application/json": check_json,
    "application/x-yaml": _check_yaml,
    "application/x-msgpack": _check_messagepack,
}

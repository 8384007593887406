"""Decompression with a bound: a message of a megabyte may hold gigabytes.

kombu decompresses by the header `compression`, without a bound (kombu/compression.py). This bounds its own
codecs. Others cannot be bounded, and are measured afterwards: brotli before 1.2, and codecs that users have
registered.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from functools import partial
from typing import Any, Final

from kombu import compression
from kombu.utils.encoding import ensure_bytes

from celery_sqs_visibility.errors import TooLargeError
from celery_sqs_visibility.policy.options import DECOMPRESSED_BYTES

#: Most bytes of a decompressed body, where no option says so.
LARGEST_BODY: Final = DECOMPRESSED_BYTES

#: Most bytes of an xz dictionary, whose size its header names; the highest preset needs 65 MiB.
LZMA_MEMORY: Final = 128 * 1024 * 1024

#: Functions that kombu decompresses with, and makers of decompressors that stop at a bound.
STANDARD: Final = (
    (zlib.decompress, zlib.decompressobj),
    (bz2.decompress, bz2.BZ2Decompressor),
    (lzma.decompress, partial(lzma.LZMADecompressor, memlimit=LZMA_MEMORY)),
)


def knows(method: Any) -> bool:
    """Whether a value of the header `compression` names a codec that is installed here, or none."""
    if not isinstance(method, str) or not method:
        return True
    try:
        compression.get_decoder(method)
    except KeyError:
        return False
    return True


def inflate(body: bytes, method: str, largest: int = LARGEST_BODY) -> bytes:
    """Decompress one stream by the header `compression`, with at most `largest` + 1 bytes in memory.

    Raises:
        TooLargeError: the body is larger than `largest` bytes.
        Exception: the codec's own for invalid data; `KeyError` for an unknown method.
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
    """A decompressor, with the interface of the standard library's, in place of the function, or `None`."""
    for function, make in STANDARD:
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
            # The stream does not tell an end from a lack of data; this does, without a bound.
            whole = self._zstandard.ZstdDecompressor().decompressobj()
            whole.decompress(body)
            self.eof, self.unused_data = whole.eof, whole.unused_data
        return plain

"""Decompression that stops at a bound: a message of a megabyte may hold gigabytes.

kombu decompresses whatever the header `compression` names, to the end (kombu/compression.py). Its own codecs
are done here instead, a bounded piece at a time. What cannot be bounded is left to kombu: brotli before 1.2,
and codecs that users have registered themselves.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from typing import Any, Final

from kombu import compression
from kombu.utils.encoding import ensure_bytes

from celery_sqs_visibility.errors import TooLargeError
from celery_sqs_visibility.policy.quotas import MESSAGE_BYTES

#: Bytes that a body may have when it is decompressed: 64 times what SQS takes of it compressed.
LARGEST_BODY: Final = 64 * MESSAGE_BYTES

#: Bytes of memory for an xz dictionary, which its header asks for; the highest preset needs 65 MiB.
LZMA_MEMORY: Final = 128 * 1024 * 1024

#: What brotli's Decompressor has since 1.2, where it also takes a limit.
CAN_BE_BOUNDED: Final = "can_accept_more_data"

#: Inflates at most so many bytes; whether that was all of it.
Inflate = Callable[[bytes, int], tuple[bytes, bool]]


def inflate(body: bytes, method: str, largest: int = LARGEST_BODY) -> bytes:
    """Decompress a body, as kombu would, holding `largest` bytes of it and one more at the most.

    Args:
        body: what was compressed.
        method: the header `compression`: a content type or an alias that kombu knows.
        largest: bytes.

    Raises:
        TooLargeError: there is more to it than `largest` bytes.
        Exception: what the codec raises of data that is not its own; `KeyError` of an unknown method.
    """
    decompress = compression.get_decoder(method)
    bounded = _bounded(decompress)
    if bounded is None:
        whole: bytes = ensure_bytes(decompress(body))
        return whole
    plain, complete = bounded(body, largest + 1)
    if len(plain) > largest:
        raise TooLargeError(f"it is larger than {largest} bytes when decompressed ({method})")
    if not complete:
        raise ValueError(f"it is not one whole {method} stream")
    return plain


def _bounded(decompress: Any) -> Inflate | None:
    """How to do in pieces what that function of a codec's module does at once."""
    if decompress is zlib.decompress:
        return lambda body, most: _first(zlib.decompressobj(), body, most)
    if decompress is bz2.decompress:
        return lambda body, most: _first(bz2.BZ2Decompressor(), body, most)
    if decompress is lzma.decompress:
        return lambda body, most: _first(lzma.LZMADecompressor(memlimit=LZMA_MEMORY), body, most)
    return _bounded_optional(decompress)


def _bounded_optional(decompress: Any) -> Inflate | None:
    """The same of modules that kombu may have found, or not."""
    zstd, brotli = (_if_its(name, decompress) for name in ("zstd", "brotli"))
    if zstd is not None:
        return lambda body, most: _first(zstd.ZstdDecompressor(), body, most)
    if brotli is not None and hasattr(brotli.Decompressor, CAN_BE_BOUNDED):
        return lambda body, most: _brotli(brotli.Decompressor(), body, most)
    if decompress is getattr(compression, "zstd_decompress", None):  # kombu before 5.7
        zstandard: Any = getattr(compression, "zstd")  # noqa: B009 - the types are those of a newer kombu
        return lambda body, most: _zstandard(zstandard, body, most)
    return None


def _zstandard(module: Any, body: bytes, most: int) -> tuple[bytes, bool]:
    plain = module.ZstdDecompressor().stream_reader(body).read(most)
    if len(plain) == most:
        return plain, False  # there may be more, or not: it is too large
    # That has no bound, and needs none now; unlike the stream it tells an end from a lack of data.
    whole = module.ZstdDecompressor().decompressobj()
    whole.decompress(body)
    return plain, whole.eof and not whole.unused_data


def _if_its(name: str, decompress: Any) -> Any:
    """A module that kombu may have found, or not, if the function is its own."""
    module = getattr(compression, name, None)
    return module if module is not None and decompress is module.decompress else None


def _first(decompressor: Any, body: bytes, most: int) -> tuple[bytes, bool]:
    """Inflate the one stream there is; nobody sends several in a row."""
    plain = decompressor.decompress(body, most)
    return plain, decompressor.eof and not decompressor.unused_data


def _brotli(decompressor: Any, body: bytes, most: int) -> tuple[bytes, bool]:
    pieces = [decompressor.process(body, output_buffer_limit=most)]
    size = len(pieces[0])
    # A limit that is reached may leave output behind; then it wants no more input.
    while size < most and not decompressor.is_finished() and not decompressor.can_accept_more_data():
        pieces.append(decompressor.process(b"", output_buffer_limit=most - size))
        size += len(pieces[-1])
    return b"".join(pieces), decompressor.is_finished()

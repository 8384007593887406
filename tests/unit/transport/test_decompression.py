"""Bodies that kombu compresses are inflated up to a bound, whole ones only."""

from __future__ import annotations

import bz2
import lzma
import zlib

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kombu import compression

from celery_sqs_visibility.transport.decompression import TooLargeError, inflate

OLD_ZSTD = "application/x-old-zstd"
CODECS = {
    "gzip": zlib,
    "zlib": zlib,
    "bzip2": bz2,
    "lzma": lzma,
    "xz": lzma,
    "application/x-gzip": zlib,
    OLD_ZSTD: zlib,
}
EACH_CODEC = pytest.mark.parametrize(("method", "codec"), CODECS.items())


class Zstandard:
    """Instead of the package that kombu uses before 5.7: as much of it as is needed, on top of zlib."""

    class ZstdDecompressor:
        """Ours bounds it with the one, and knows with the other whether that was all."""

        decompressobj = staticmethod(zlib.decompressobj)

        def stream_reader(self, body):
            return ZstdStream(body)

    @staticmethod
    def decompress(body):
        raise AssertionError("kombu uses a function of its own")


class ZstdStream:
    """Says nothing of data that end too early, and reads on where they go on."""

    def __init__(self, body):
        self.left = body
        self.frame = zlib.decompressobj()

    def read(self, size):
        if self.frame.eof:
            self.left, self.frame = self.frame.unused_data, zlib.decompressobj()
        plain = self.frame.decompress(self.left, size)
        self.left = self.frame.unconsumed_tail
        return plain


@pytest.fixture(autouse=True, scope="module")
def old_zstd():
    """kombu as it is before 5.7, with zstd."""

    def zstd_decompress(body):
        pytest.fail("that has no bound")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compression, "zstd", Zstandard, raising=False)
        patch.setattr(compression, "zstd_decompress", zstd_decompress, raising=False)
        for registry in ("_decoders", "_encoders"):
            patch.setattr(compression, registry, getattr(compression, registry).copy())
        compression.register(zlib.compress, zstd_decompress, OLD_ZSTD)
        yield


@EACH_CODEC
@given(plain=st.binary(max_size=300))
@example(plain=b"")
@settings(max_examples=50)
def test_what_kombu_compresses_is_inflated(method, codec, plain):
    assert inflate(codec.compress(plain), method, largest=300) == plain


@EACH_CODEC
def test_inflating_stops_at_the_bound(method, codec):
    bomb = codec.compress(bytes(1001))
    with pytest.raises(TooLargeError, match="larger than 1000 bytes when decompressed"):
        inflate(bomb, method, largest=1000)
    assert inflate(bomb, method, largest=1001) == bytes(1001)


@EACH_CODEC
@pytest.mark.parametrize("end", [0, 1, -1])
def test_what_ends_before_its_end_is_an_error(method, codec, end):
    errors = ValueError if method == OLD_ZSTD else (ValueError, zlib.error, lzma.LZMAError)
    with pytest.raises(errors, match="not one whole" if method == OLD_ZSTD else None):
        inflate(codec.compress(b"some text" * 9)[:end], method)


@EACH_CODEC
def test_what_goes_on_after_its_end_is_an_error(method, codec):
    with pytest.raises(ValueError, match="not one whole"):
        inflate(codec.compress(b"ab") + codec.compress(b"cd"), method)


def test_what_kombu_does_not_know_is_an_error():
    with pytest.raises(KeyError):
        inflate(b"", "no-such-method")


def test_a_codec_of_the_users_own_is_kombus_business():
    compression.register(bytes, lambda body: body[::-1], "application/x-reversed")
    assert inflate(b"abc", "application/x-reversed") == b"cba"

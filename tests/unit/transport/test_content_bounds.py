"""Bodies are inflated up to a bound, whole ones only; content is measured before kombu decodes it."""

import bz2
import json
import lzma
import zlib

import msgpack
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kombu import compression

from celery_sqs_visibility.errors import TooLargeError
from celery_sqs_visibility.transport.content_bounds import check_content, inflate

JSON, YAML, MSGPACK = "application/json", "application/x-yaml", "application/x-msgpack"
VALUES = st.recursive(
    st.none() | st.text() | st.integers(-(2**60), 2**60) | st.booleans(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(VALUES)
def test_ordinary_content_passes(value):
    check_content(json.dumps(value).encode(), JSON, None)
    check_content(yaml.safe_dump(value), YAML, None)
    check_content(msgpack.packb(value), MSGPACK, None)


@pytest.mark.parametrize(
    ("content", "kind", "reason"),
    [
        (b"[" + b"{}," * 500_000 + b"0]", JSON, "it holds 500,001 lists and objects, and 500,000 are read"),
        (b"[" * 401, JSON, "nested more than 400 levels deep"),
        (msgpack.packb([[]] * 500_000), MSGPACK, "it holds 500,001 lists and objects, and 500,000 are read"),
        (msgpack.packb([{1: {}}] * 250_000), MSGPACK, "it holds 500,001 lists and objects"),
        (b"[" + b"a," * 50_000 + b"]", YAML, "it holds more than 50,000 values of YAML"),
        (b"[" * 401, YAML, "nested more than 400 levels deep"),
        (b"a: &a {b: 1}\nc: {<<: *a}", YAML, "a merge key of YAML"),
        (b"a: &a {b: 1}\nc: {!<tag:yaml.org,2002:%6Derge> x: *a}", YAML, "a merge key of YAML"),
        ("a: &a {b: 1}\nc: {<<: *a}".encode("utf-16"), YAML, "a merge key of YAML"),
        (b"1:" * 3000 + b"1", YAML, "it has a number of 6,001 characters"),
        (b'!!int "' + b"1:" * 3000 + b'1"', YAML, "it has a number of 6,001 characters"),
        (b'!!int "' + b"1 :" * 2000 + b'1"', YAML, "it has a number of 6,001 characters"),
    ],
)
def test_what_would_become_more_than_may_be_is_refused(content, kind, reason):
    with pytest.raises(TooLargeError, match=reason):
        check_content(content, kind, None)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        # Bytes of text that begin a list elsewhere.
        (msgpack.packb("\N{CYRILLIC CAPITAL LETTER A}" * 300_000), MSGPACK),
        (msgpack.packb([1, "a"] * 200_000), MSGPACK),
        (b"\xdd\xff\xff\xff\xff" + b"\x80" * 500_001, MSGPACK),  # no list has so many: its decoder says so
        (b"\xc1" * 500_001, MSGPACK),  # a byte that its decoder knows nothing of
        (b'["' + b"[{" * 1000 + b'"]', JSON),
        (b"a" * 5000, YAML),
        (b"- '<<'\n- " + b"-:?" * 1000, YAML),
        (b"]" * 2000, YAML),
        (b'"\\UFFFFFFFF"', YAML),  # PyYAML raises an OverflowError
        (b"anything", "application/data"),
        (b"anything", None),
    ],
)
def test_what_only_looks_like_that_is_left_to_its_decoder(content, kind):
    check_content(content, kind, None)


@pytest.mark.parametrize("kind", ["application/data", "application/text", "text/plain", None])
@pytest.mark.parametrize("encoding", ["bz2", "BZ2_codec", "zlib", "zip", "punycode", "idna"])
def test_no_codec_of_python_decodes_what_its_sender_names_if_that_has_no_bound(kind, encoding):
    with pytest.raises(TooLargeError, match=f"its content encoding is '{encoding}', which"):
        check_content(b"anything", kind, encoding)


@pytest.mark.parametrize(
    ("content", "encoding"),
    [
        *((b"a", name) for name in ("utf-8", "UTF8", "us-ascii", "latin-1", "utf-16", "binary", None)),
        (b"a", "nosuch"),  # kombu says so
        ("a", "bz2"),  # kombu decodes no text
    ],
)
def test_content_without_a_decoder_keeps_its_text(content, encoding):
    check_content(content, "application/data", encoding)


def test_what_kombu_will_refuse_for_its_type_is_not_measured():
    check_content(b"[" * 401, YAML, None, accept={JSON})
    with pytest.raises(TooLargeError):
        check_content(b"[" * 401, YAML, None, accept={JSON, YAML})


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

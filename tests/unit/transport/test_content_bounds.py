"""Content of any type that kombu decodes is measured first, as far as it can become more than it is."""

from __future__ import annotations

import json

import msgpack
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.errors import TooLargeError
from celery_sqs_visibility.transport.content_bounds import check_content

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
    with pytest.raises(TooLargeError, match=f"its content encoding is '{encoding}', whose"):
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

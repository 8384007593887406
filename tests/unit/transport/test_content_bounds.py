"""Content of any type that kombu decodes is measured first, as far as it can become more than it is."""

from __future__ import annotations

import json

import msgpack
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.errors import TooLargeError
from celery_sqs_visibility.policy.options import DEFAULT_LIMITS, Options
from celery_sqs_visibility.transport.content_bounds import check_content

JSON, YAML, MSGPACK = "application/json", "application/x-yaml", "application/x-msgpack"
FEW = Options.parse({"containers_max": 1000, "nesting_max": 100})
VALUES = st.recursive(
    st.none() | st.text() | st.integers(-(2**60), 2**60) | st.booleans(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(VALUES)
def test_ordinary_content_passes(value):
    check_content(json.dumps(value).encode(), JSON, None, DEFAULT_LIMITS)
    check_content(yaml.safe_dump(value), YAML, None, DEFAULT_LIMITS)
    check_content(msgpack.packb(value), MSGPACK, None, DEFAULT_LIMITS)


@pytest.mark.parametrize(
    ("content", "kind", "reason"),
    [
        (b"[" + b"{}," * 1000 + b"0]", JSON, "it holds 1,001 lists and objects, and 1,000 are read"),
        (b"[" * 101, JSON, "nested more than 100 levels deep"),
        (msgpack.packb([[]] * 1000), MSGPACK, "it holds 1,001 lists and objects, and 1,000 are read"),
        (msgpack.packb([{1: {}}] * 500), MSGPACK, "it holds 1,001 lists and objects, and 1,000 are read"),
        (b"- a\n" * 100, YAML, "it holds more than 100 values of YAML"),
        (b"[" * 101, YAML, "nested more than 100 levels deep"),
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
        check_content(content, kind, None, FEW)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        # Bytes of text that begin a list elsewhere.
        (msgpack.packb("\N{CYRILLIC CAPITAL LETTER A}" * 2000), MSGPACK),
        (msgpack.packb([1, "a"] * 1000), MSGPACK),
        (b"\xdd\xff\xff\xff\xff" + b"\x80" * 900, MSGPACK),  # no list has so many: its decoder says so
        (b"\xc1" * 2000, MSGPACK),  # a byte that its decoder knows nothing of
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
    check_content(content, kind, None, FEW)


@pytest.mark.parametrize("kind", ["application/data", "application/text", "text/plain", None])
@pytest.mark.parametrize("encoding", ["bz2", "BZ2_codec", "zlib", "zip", "punycode", "idna"])
def test_no_codec_of_python_decodes_what_its_sender_names_if_that_has_no_bound(kind, encoding):
    with pytest.raises(TooLargeError, match=f"its content encoding is '{encoding}', whose"):
        check_content(b"anything", kind, encoding, FEW)


@pytest.mark.parametrize(
    ("content", "encoding"),
    [
        *((b"a", name) for name in ("utf-8", "UTF8", "us-ascii", "latin-1", "utf-16", "binary", None)),
        (b"a", "nosuch"),  # kombu says so
        ("a", "bz2"),  # kombu decodes no text
    ],
)
def test_content_without_a_decoder_keeps_its_text(content, encoding):
    check_content(content, "application/data", encoding, FEW)


def test_what_kombu_will_refuse_for_its_type_is_not_measured():
    check_content(b"- a\n" * 1000, YAML, None, FEW, accept={JSON})
    with pytest.raises(TooLargeError):
        check_content(b"- a\n" * 1000, YAML, None, FEW, accept={JSON, YAML})

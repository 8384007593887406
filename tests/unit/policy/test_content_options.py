"""Bounds of what a message's content unfolds to."""

from __future__ import annotations

import pytest

from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.policy.options import Options


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("decompressed_max_bytes", 1.5e9),
        ("decompressed_max_bytes", "many"),
        ("decompressed_max_bytes", 5),
    ],
)
def test_an_impossible_bound_is_refused(name, value):
    with pytest.raises(OptionError, match=f"expected {name} to be a whole number, .* or more, got "):
        Options.parse({name: value})

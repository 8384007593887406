from __future__ import annotations

import uuid

import pytest
from support.clock import FakeClock


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def key():
    return uuid.uuid4().hex

import uuid

import pytest


@pytest.fixture
def key():
    return uuid.uuid4().hex

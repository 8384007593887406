"""What tests of held deliveries share."""

from __future__ import annotations

import os

import pytest

from celery_sqs_visibility.delivery.lease_table import LeaseTable


@pytest.fixture
def leases():
    """The table that running tasks see."""
    leases = LeaseTable()
    yield leases
    for end in leases._pipe:
        os.close(end)

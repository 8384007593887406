"""Contacts with backends: which of them count a chord's member at each end of its runs."""

import pytest
from celery.backends.cache import CacheBackend
from celery.backends.filesystem import FilesystemBackend

from celery_sqs_visibility.contacts.app import counts_ends


class Redis56:
    _chord_zset = True


class Redis57(Redis56):
    def _chord_publish_claim_expires(self, seconds, _body):
        return seconds


@pytest.mark.parametrize(
    ("backend", "counts"),
    [(CacheBackend, True), (FilesystemBackend, False), (Redis56, True), (Redis57, False)],
)
def test_what_counts_members_itself_or_polls_is_asked_nothing(backend, counts):
    assert counts_ends(object.__new__(backend)) is counts

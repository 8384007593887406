from __future__ import annotations

from celery_sqs_visibility.operate.commands import LazyGroup


def test_a_command_that_there_is_not_is_none():
    assert LazyGroup("sqs").get_command(None, "nope") is None

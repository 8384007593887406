"""An exchange's name says whether it is Celery's own, and what for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.policy.control_names import Use, replies_of, use_of


@pytest.mark.parametrize(
    ("exchange", "use"),
    [
        ("celery.pidbox", Use.COMMANDS),
        ("reply.celery.pidbox", Use.REPLIES),
        ("celeryev", Use.EVENTS),
        ("our-events", Use.EVENTS),
        ("reply.events", Use.EVENTS),
        ("", None),
        ("celery", None),
        ("reply.celery", None),
        ("celeryev.mail", None),
    ],
)
def test_what_an_exchange_is_for(exchange, use):
    assert use_of(exchange, iter(["our-events", "reply.events"])) is use


@given(st.text(), st.sets(st.text()))
def test_an_app_that_names_its_exchange_takes_none_from_remote_control(name, event_exchanges):
    commands = f"ours-{name}.pidbox"
    assert use_of(commands, event_exchanges | {commands}) is Use.COMMANDS
    assert use_of(replies_of(commands), event_exchanges) is Use.REPLIES
    assert (use_of(f"ours-{name}!", event_exchanges) is Use.EVENTS) == (f"ours-{name}!" in event_exchanges)

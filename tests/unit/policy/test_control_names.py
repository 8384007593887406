"""Names of control queues, and uses of exchanges."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.policy.control_names import (
    MAX_PREFIX_CHARACTERS,
    UNIQUE_CHARACTERS,
    Use,
    address,
    exchange_prefix,
    is_address,
    of_nodes,
    replies_of,
    use_of,
)
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.queue_names import why_illegal


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


UNIQUE = "0" * UNIQUE_CHARACTERS
PREFIXES = st.from_regex(rf"[A-Za-z0-9_-]{{1,{MAX_PREFIX_CHARACTERS}}}", fullmatch=True)


@given(PREFIXES, st.text(min_size=1), st.text(min_size=1))
def test_sqs_takes_every_name(prefix, exchange, node):
    own = address(node, UNIQUE)
    assert why_illegal(exchange_prefix(prefix, exchange) + own) is None
    assert is_address(own)
    assert of_nodes([own], [node]) == [own]


@given(PREFIXES, st.text(min_size=1), st.text(min_size=1), st.text(min_size=1))
def test_no_queue_is_listed_for_another_exchange(prefix, exchange, other, node):
    name = exchange_prefix(prefix, exchange) + address(node, UNIQUE)
    beginning = exchange_prefix(prefix, other)
    listed = name.startswith(beginning) and is_address(name[len(beginning) :])
    assert listed == (exchange == other)


def test_a_queue_of_another_node_is_not_chosen():
    assert not of_nodes([address("a@host", UNIQUE)], ["b@host", "c@host"])


@pytest.mark.parametrize("text", ["", "x", "../q", address("a", UNIQUE) + "0", f"{'0' * 8}-{'g' * 12}"])
def test_what_is_no_address_is_not_taken_for_one(text):
    assert not is_address(text)


def test_a_whole_prefix_that_is_too_long_is_refused():
    with pytest.raises(OptionError, match="in all, since remote_control is set"):
        Options.parse({"remote_control": True, "queue_name_prefix": "x" * 40})


def test_the_whole_prefix_is_as_sqs_has_it():
    options = Options.parse({"remote_control": True, "queue_name_prefix": "my.app-"})
    assert options.whole_control_prefix == "my-app-celery-control-"

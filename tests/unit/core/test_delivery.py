"""A delivery asks its holder how to settle and to reject it, and says how it is."""

from __future__ import annotations

import gc
import weakref
from unittest.mock import Mock, call

import pytest
from support import factories

from celery_sqs_visibility.core.delivery import State
from celery_sqs_visibility.core.settlements import Lapse
from celery_sqs_visibility.policy.quotas import HORIZON_MARGIN_SECONDS, VISIBILITY_HORIZON_SECONDS


def delivery(holder):
    return factories.delivery(factories.sqs_queue(), holder)


@pytest.mark.parametrize(
    ("act", "name", "asked", "answer"),
    [
        (lambda d: d.give_up("why", str, "keep", n="3"), "give_up", call("why", str, "keep", n="3"), None),
        (lambda d: d.reject(requeue=True), "reject", call(requeue=True), None),
        (
            lambda d: d.refuse("no", "body", others_may=True),
            "refuse",
            call("no", "body", others_may=True),
            None,
        ),
        (lambda d: d.after_an_error(), "after_an_error", call(), Lapse()),
        (lambda d: d.come_back("why"), "come_back", call("why"), None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_its_holder_says_how_it_is_rejected(act, name, asked, answer):
    holder = Mock()
    ask = getattr(holder.rejection, name)
    ask.return_value = answer
    one = delivery(holder)
    assert act(one) == answer
    assert holder.mock_calls == [getattr(call.rejection, name)(one, *asked.args, **asked.kwargs)]


def test_the_horizon_counts_from_the_receive_that_brought_it():
    one = delivery(None)
    assert one.horizon == 1000.0 + VISIBILITY_HORIZON_SECONDS
    assert not one.at_horizon
    one.deadline = one.horizon - HORIZON_MARGIN_SECONDS - 1
    assert one.at_horizon


def test_it_says_which_message_it_is_and_how_it_is():
    one = delivery(None)
    assert repr(one) == "<Delivery m1 of 'q': held>"
    one.state = State.RUNNING
    assert repr(one) == "<Delivery m1 of 'q': running>"
    one.lost = True
    assert repr(one) == "<Delivery m1 of 'q': lost>"


def test_deliveries_are_told_apart_by_identity_and_may_be_referred_to_weakly():
    one = delivery(None)
    assert one != delivery(None)
    assert len({one, one}) == 1
    reference = weakref.ref(one)
    del one
    gc.collect()
    assert reference() is None

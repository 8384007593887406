"""A delivery asks its holder what becomes of it, and says how it is."""

import gc
import weakref
from operator import attrgetter
from unittest.mock import Mock, call

import pytest
from support import factories

from celery_sqs_visibility.core.delivery import State
from celery_sqs_visibility.core.settlements import Lapse
from celery_sqs_visibility.policy.quotas import HORIZON_MARGIN_SECONDS, VISIBILITY_HORIZON_SECONDS

#: The delivery, in what its holder is asked.
THIS = "delivery"


def delivery(holder):
    return factories.delivery(factories.sqs_queue(), holder)


@pytest.mark.parametrize(
    ("act", "asked", "answer"),
    [
        (lambda d: d.settle("how"), call.settle(THIS, "how"), True),
        (lambda d: d.start(), call.start(THIS), True),
        (lambda d: d.dispatch(), call.dispatch(THIS), True),
        (lambda d: d.extend(5.0), call.extend(THIS, 5.0), None),
        (lambda d: d.tell_lost(), call.tell_lost(THIS), None),
        (lambda d: d.run_ended(), call.run_ended(THIS), None),
        (lambda d: d.renewal(5.0, str, {}), call.parking.renewal(THIS, 5.0, str, {}), "a copy"),
        (
            lambda d: d.give_up("why", str, "keep", n="3"),
            call.rejection.give_up(THIS, "why", str, "keep", n="3"),
            None,
        ),
        (lambda d: d.reject(requeue=True), call.rejection.reject(THIS, requeue=True), None),
        (
            lambda d: d.refuse("no", "body", others_may=True),
            call.rejection.refuse(THIS, "no", "body", others_may=True),
            True,
        ),
        (
            lambda d: d.refuse("no", "body"),
            call.rejection.refuse(THIS, "no", "body", others_may=False),
            False,
        ),
        (lambda d: d.after_an_error(), call.rejection.after_an_error(THIS), Lapse()),
        (lambda d: d.come_back("why"), call.rejection.come_back(THIS, "why"), None),
    ],
    ids=lambda value: str(value) if isinstance(value, type(call)) else "",
)
def test_its_holder_is_asked(act, asked, answer):
    holder, (name, args, named) = Mock(), asked
    attrgetter(name)(holder).return_value = answer
    one = delivery(holder)
    assert act(one) == answer
    assert holder.mock_calls == [(name, (one, *args[1:]), named)]


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

"""Every listener hears what it subscribed to, and none can harm the others."""

import pytest

from celery_sqs_visibility.events import (
    Deleted,
    DeliveryFacts,
    Event,
    Lost,
    SQSRequest,
    emit,
    subscribe,
)

EVENT = Deleted(DeliveryFacts("q", "m", 1, 0.0))
REQUEST = SQSRequest("ReceiveMessage", 0.1, "ok")


@pytest.fixture
def listen():
    """Subscribe for the length of a test."""
    ends = []

    def listen(listener, *kind):
        ends.append(subscribe(listener, *kind))
        return ends[-1]

    yield listen
    for end in ends:
        end()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [((), [EVENT]), ((SQSRequest,), [REQUEST]), ((Lost,), []), ((Event,), [EVENT, REQUEST])],
)
def test_a_listener_hears_of_deliveries_or_of_the_kind_it_asks_for(listen, kind, expected):
    heard = []
    listen(heard.append, *kind)
    emit(EVENT)
    emit(REQUEST)
    assert heard == expected
    assert SQSRequest.is_wanted() == (REQUEST in expected)


@pytest.mark.parametrize("conditions", [[], [False], [True], [False, False], [False, True]])
def test_a_frequent_event_is_made_if_a_listener_wants_one_now(listen, conditions):
    heard = []
    for condition in conditions:
        listen(heard.append, Deleted, lambda condition=condition: condition)
    assert Deleted.is_wanted() is any(conditions)
    if Deleted.is_wanted():
        emit(EVENT)
    assert heard == [EVENT] * (any(conditions) * len(conditions))


def test_a_class_of_events_may_be_defined_after_a_listener_has_subscribed(listen):
    heard = []
    end = listen(heard.append, Deleted)

    class DeletedTwice(Deleted):
        pass

    assert DeletedTwice.is_wanted()
    emit(DeletedTwice(EVENT.delivery))
    end()
    assert not DeletedTwice.is_wanted()
    emit(DeletedTwice(EVENT.delivery))
    assert heard == [DeletedTwice(EVENT.delivery)]


def test_every_listener_hears_an_event_in_order_and_one_that_raises_is_logged_and_does_no_harm(
    listen, caplog
):
    heard = []

    def broken(event):
        heard.append(("first", event))
        raise RuntimeError("a listener's bug")

    listen(broken)
    listen(lambda event: heard.append(("second", event)))
    emit(EVENT)
    assert heard == [("first", EVENT), ("second", EVENT)]
    assert "a listener raised at Deleted" in caplog.text
    assert "a listener's bug" in caplog.text


def test_ending_one_subscription_twice_even_while_it_listens_does_not_end_another(listen):
    heard = []

    def once(event):
        heard.append(event)
        end()
        end()

    end, other = listen(once), listen(once)
    emit(EVENT)
    emit(EVENT)
    assert heard == [EVENT] * 3
    other()
    emit(EVENT)
    assert heard == [EVENT] * 3


def test_events_cannot_be_changed():
    with pytest.raises(AttributeError):
        EVENT.delivery = None

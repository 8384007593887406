"""Messages that are fetched one by one, by nobody who would extend them."""

import os

import pytest
from support.clock import FakeClock
from support.factories import queue as make_queue
from support.kombu_site import declared_queue, publish

from celery_sqs_visibility.aws.fake import FakeObjectStore
from celery_sqs_visibility.delivery.payloads.outgoing import OutgoingMessages, PayloadStore
from celery_sqs_visibility.errors import AccessDeniedError, ThrottledError, UnavailableError
from celery_sqs_visibility.transport import channel as channel_module
from celery_sqs_visibility.transport.basic_get import FetchedMessages

SLOW_DOWN = ThrottledError("slow down")


@pytest.fixture
def queue(channel):
    """A queue with one message, "a"."""
    queue = declared_queue(channel)
    publish(channel, "a")
    return queue


def test_what_is_fetched_without_acknowledgement_is_deleted(site, channel, queue):
    publish(channel, "b")
    assert [queue.get(no_ack=True).payload, queue.get(no_ack=True).payload] == ["a", "b"]
    assert queue.get(no_ack=True) is None
    assert site.counts() == (0, 0, 0)
    channel.close()
    assert "ChangeMessageVisibilityBatch" not in site.actions()


def test_what_is_fetched_is_deleted_when_it_is_acknowledged_and_visible_at_once_when_it_is_requeued(
    site, channel, queue
):
    publish(channel, "b")
    fetched, other = queue.get(), queue.get()
    assert site.counts() == (0, 2, 0)
    fetched.ack()
    assert site.counts() == (0, 1, 0)
    other.requeue()
    assert site.counts() == (1, 0, 0)


@pytest.mark.parametrize("redrive", [True, False])
def test_a_rejected_message_is_left_to_the_redrive_policy_or_deleted_without_one(site, channel, redrive):
    if redrive:
        make_queue(site.sqs, letters=make_queue(site.sqs, "dead"))
    queue = declared_queue(channel)
    publish(channel, "a")
    queue.get().reject()
    assert site.counts() == (0, int(redrive), 0)


@pytest.mark.parametrize("redrive", ["none", "may not be read"])
def test_a_rejected_message_is_kept_where_on_exhausted_says_so(site, redrive):
    channel = site.connect(when_exhausted="keep").channel()
    queue = declared_queue(channel)
    publish(channel, "a")
    message = queue.get()
    if redrive == "may not be read":
        site.sqs.fail_next("GetQueueAttributes", AccessDeniedError("no"))
    message.reject()
    assert site.counts() == (0, 1, 0)
    asked = [call for call in site.actions() if call == "ChangeMessageVisibilityBatch"]
    assert len(asked) == (redrive == "none")  # it is hidden for an hour; else SQS's policy may count it
    channel.close()
    assert site.counts() == (0, 1, 0), "nobody gives back what was rejected"


def test_a_deletion_that_fails_is_an_error(site, queue):
    message = queue.get()
    site.sqs.fail_next("DeleteMessageBatch", SLOW_DOWN, position=0)
    with pytest.raises(ThrottledError):
        message.ack()


def test_what_was_fetched_and_not_settled_is_given_back_when_the_channel_closes(site, channel, queue):
    publish(channel, *range(11))
    for _ in range(12):
        queue.get()
    channel.close()
    assert site.counts() == (12, 0, 0)
    assert site.actions().count("ChangeMessageVisibilityBatch") == 2


def test_what_cannot_be_given_back_is_logged(site, channel, queue, caplog):
    queue.get()
    site.sqs.fail_next("ChangeMessageVisibilityBatch", SLOW_DOWN)
    channel.close()
    assert "messages fetched from queue 'q' stay hidden" in caplog.text


def test_a_fork_gives_nothing_back_that_its_parent_has(site, channel, queue):
    queue.get()
    channel._pid = os.getpid() + 1  # as seen by a child
    channel.close()
    assert site.counts() == (0, 1, 0)


def test_handles_whose_time_is_up_do_not_pile_up(channel, queue, monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(channel_module, "SYSTEM_CLOCK", clock)
    channel = channel.connection.client.channel()
    publish(channel, "b", "c")
    queue = queue(channel)
    queue.get()
    queue.get()
    clock.advance(200)
    queue.get()
    assert len(channel._fetched) == 1


@pytest.fixture
def store(site):
    return FakeObjectStore()


@pytest.fixture
def large(site, store):
    """A queue with one message whose payload is in S3."""
    connection = site.connect(payload_store=f"s3://{store.bucket}")
    context = connection.transport.context
    context.payloads = PayloadStore(store, threshold=0)
    context.send = OutgoingMessages(context.payloads).send
    channel = connection.channel()
    queue = declared_queue(channel)
    publish(channel, "a")
    return queue


@pytest.mark.parametrize(("end", "left"), [("ack", 0), ("requeue", 1), ("reject", 0)])
def test_a_payload_in_s3_comes_with_its_message_and_goes_with_it(large, store, end, left):
    message = large.get()
    assert message.payload == "a"
    getattr(message, end)()
    assert len(store.objects) == left


def test_a_payload_outside_the_prefix_is_not_fetched(site, store):
    connection = site.connect(payload_store=f"s3://{store.bucket}/celery/")
    context = connection.transport.context
    context.payloads = PayloadStore(store, threshold=0, prefix="celery/")
    context.send = OutgoingMessages(PayloadStore(store, threshold=0, prefix="other/")).send
    channel = connection.channel()
    queue = declared_queue(channel)
    publish(channel, "a")
    with pytest.raises(ValueError, match=r"payload_store is 's3://.*/celery/'"):
        queue.get()
    assert "GetObject" not in store.calls


def test_a_payload_of_another_producer_stays_since_others_may_need_it(site, large, store, monkeypatch):
    monkeypatch.setattr(PayloadStore, "owns", lambda _store, _key: False)
    large.get().ack()
    assert (site.counts(), len(store.objects)) == ((0, 0, 0), 1)


def test_a_payload_that_cannot_be_removed_is_logged_and_the_message_is_gone(site, large, store, caplog):
    store.fail_next("DeleteObjects", AccessDeniedError("not allowed"))
    large.get().ack()
    assert site.counts() == (0, 0, 0)
    assert "of a deleted message stays in S3: not allowed" in caplog.text


def test_a_payload_that_is_gone_makes_a_message_that_cannot_be_read(site, large, store):
    store.objects.clear()
    with pytest.raises(ValueError, match=r"queue 'q' cannot be read: its payload s3://payloads/\S+ is gone"):
        large.get()
    assert site.counts() == (0, 1, 0)


def test_a_payload_is_waited_for_while_its_message_is_hidden(large, monkeypatch):
    monkeypatch.setattr(FetchedMessages, "_deadline", lambda *_: 0.0)
    with pytest.raises(UnavailableError, match="had not come when the message was visible again"):
        large.get()


def test_a_message_that_may_be_another_consumers_by_now_keeps_its_payload(large, store, monkeypatch):
    message = large.get()
    fetched = large.channel._fetched
    monkeypatch.setattr(fetched, "_clock", FakeClock(fetched._clock.monotonic() + 1000))
    message.ack()
    assert len(store.objects) == 1


@pytest.mark.parametrize("requeue", [True, False])
def test_what_is_not_fetched_any_more_is_rejected_without_a_request(site, channel, queue, requeue):
    queue.get().ack()
    before = site.actions()
    channel.basic_reject("a tag of long ago", requeue=requeue)
    assert site.actions() == before

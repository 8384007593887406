"""Messages of any size: sent as they are, as pointers, or refused with a sentence."""

import pytest
from support.factories import EVERYTHING, counts, requests, sqs_queue

from celery_sqs_visibility.aws.fake import FakeObjectStore, FakeSQS
from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.delivery.payloads import outgoing as module
from celery_sqs_visibility.delivery.payloads.outgoing import OutgoingMessages, PayloadStore
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    MessageTooLargeError,
    RequestRefusedError,
    ThrottledError,
    UnavailableError,
)
from celery_sqs_visibility.policy.message_limits import PAYLOAD_BYTES
from celery_sqs_visibility.policy.payload_pointers import ReadablePayloads, new_key, pointer_in
from celery_sqs_visibility.policy.quotas import MESSAGE_BYTES

LARGE = "x" * (MESSAGE_BYTES + 1)
COLOUR = {"colour": {"DataType": "String", "StringValue": "red"}}


def shorter_than(limit):
    return RequestRefusedError(
        f"Reason: Message must be shorter than {limit} bytes.", code="InvalidParameterValue"
    )


@pytest.fixture
def sqs():
    return FakeSQS()


@pytest.fixture
def queue(sqs):
    return sqs_queue(sqs=sqs)


@pytest.fixture
def objects():
    return FakeObjectStore("payloads")


@pytest.fixture
def outgoing(objects):
    return OutgoingMessages(PayloadStore(objects, prefix="celery/"))


def received(queue):
    (message,) = queue.sqs.receive(queue.url, 10, 0, EVERYTHING)
    return message


@pytest.mark.parametrize("batch", [False, True])
def test_a_large_message_is_a_pointer_with_its_attributes_and_its_size(queue, objects, outgoing, batch):
    message = OutgoingMessage(LARGE, COLOUR)
    if batch:
        assert outgoing.send_batch(queue, [message]).failed == {}
    else:
        outgoing.send(queue, message)
    sent = received(queue)
    pointer = pointer_in(sent["Body"], sent["MessageAttributes"], ReadablePayloads("payloads"))
    assert objects.objects == {pointer.key: LARGE.encode()}
    assert pointer.key.startswith("celery/")
    assert sent["MessageAttributes"]["colour"] == COLOUR["colour"]
    assert sent["MessageAttributes"]["ExtendedPayloadSize"]["StringValue"] == str(len(LARGE))


@pytest.mark.parametrize(
    ("threshold", "body", "offloaded"),
    [(5, "x" * 6, 1), (5, "x" * 5, 0), (5, "ééé", 1), (0, "x", 1), (MESSAGE_BYTES, "x" * MESSAGE_BYTES, 0)],
    ids=str,
)
def test_beyond_the_threshold_means_more_bytes_than_it(queue, objects, threshold, body, offloaded):
    OutgoingMessages(PayloadStore(objects, threshold)).send(queue, OutgoingMessage(body))
    assert len(objects.objects) == offloaded


def test_attributes_count(queue, objects):
    OutgoingMessages(PayloadStore(objects, 10)).send(queue, OutgoingMessage("x", COLOUR))
    assert len(objects.objects) == 1


@pytest.mark.parametrize("told", [None, 1000])
def test_without_a_bucket_size_limit_and_advice_are_an_error(sqs, queue, told):
    size = MESSAGE_BYTES + 1
    if told:
        sqs.fail_next("SendMessage", shorter_than(told))
        size = 2000
    with pytest.raises(
        MessageTooLargeError, match=f"{size:,} bytes .* takes {told or MESSAGE_BYTES:,}: .*payload_store"
    ):
        OutgoingMessages().send(queue, OutgoingMessage("x" * size))
    assert len(requests(sqs, "SendMessage")) == (told is not None)


def test_a_queues_own_limit_is_learned_from_a_refusal(sqs, queue, objects, outgoing):
    sqs.fail_next("SendMessage", shorter_than(1000))
    for _ in range(2):
        outgoing.send(queue, OutgoingMessage("x" * 1001))
    outgoing.send(queue, OutgoingMessage("x" * 1000))
    assert len(objects.objects) == 2
    assert [len(call["message"].body) > 1000 for call in requests(sqs, "SendMessage")] == [
        True,
        False,
        False,
        False,
    ]


def test_in_a_batch_too_and_only_what_is_too_large_fails(sqs, queue, objects, outgoing):
    sqs.fail_next("SendMessageBatch", shorter_than(1000), position=1)
    bodies = ["a", "x" * 1001, LARGE, "b", "x" * (PAYLOAD_BYTES + 1)]
    failed = outgoing.send_batch(queue, [OutgoingMessage(body) for body in bodies]).failed
    assert {position: type(error) for position, error in failed.items()} == {4: MessageTooLargeError}
    assert counts(queue) == (4, 0)
    assert len(objects.objects) == 2
    assert len(requests(sqs, "SendMessage")) == 2


def test_in_a_batch_without_a_bucket_each_has_the_error_that_says_what_to_do(sqs, queue):
    sqs.fail_next("SendMessageBatch", shorter_than(1000), position=1)
    failed = (
        OutgoingMessages().send_batch(queue, [OutgoingMessage(body) for body in ("a", "x" * 1001)]).failed
    )
    assert {position: type(error) for position, error in failed.items()} == {1: MessageTooLargeError}
    assert f"queue {queue.name!r}" in str(failed[1])


@pytest.mark.parametrize("has_bucket", [True, False])
def test_where_sqs_refuses_a_whole_batch_for_one_message_the_others_are_sent(
    sqs, queue, outgoing, has_bucket, monkeypatch
):
    send = sqs.send

    def refuse_large(url, message):
        if len(message.body) > 1000:
            raise shorter_than(1000)
        return send(url, message)

    sqs.fail_next("SendMessageBatch", shorter_than(1000))
    monkeypatch.setattr(sqs, "send", refuse_large)
    outgoing = outgoing if has_bucket else OutgoingMessages()
    messages = [OutgoingMessage(body) for body in ("a", "x" * 1001, "b")]
    failed = outgoing.send_batch(queue, messages).failed
    assert {position: type(error) for position, error in failed.items()} == (
        {} if has_bucket else {1: MessageTooLargeError}
    )
    assert counts(queue) == (3 - len(failed), 0)


def test_a_pointer_that_is_too_large_blames_the_attributes(sqs, queue, objects, outgoing):
    sqs.fail_next("SendMessage", shorter_than(1000))
    with pytest.raises(MessageTooLargeError, match="its attributes are too large"):
        outgoing.send(queue, OutgoingMessage(LARGE, {"a": {"DataType": "String", "StringValue": "x" * 1000}}))
    assert objects.objects == {}


@pytest.mark.parametrize(
    ("error", "left"),
    [(AccessDeniedError("no"), 0), (ThrottledError("slow down"), 0), (UnavailableError("no answer"), 1)],
)
def test_a_message_that_was_not_sent_leaves_no_payload_unless_it_may_have_been(
    sqs, queue, objects, outgoing, error, left
):
    sqs.fail_next("SendMessage", error)
    with pytest.raises(type(error)):
        outgoing.send(queue, OutgoingMessage(LARGE))
    assert len(objects.objects) == left


def test_a_producer_may_lack_the_right_to_delete(sqs, queue, objects, outgoing):
    sqs.fail_next("SendMessage", ThrottledError("slow down"))
    objects.fail_next("DeleteObjects", AccessDeniedError("no"))
    with pytest.raises(ThrottledError):
        outgoing.send(queue, OutgoingMessage(LARGE))


def test_a_payload_that_s3_does_not_take_is_not_sent(sqs, queue, objects, outgoing):
    objects.fail_next("PutObject", AccessDeniedError("no"))
    with pytest.raises(AccessDeniedError):
        outgoing.send(queue, OutgoingMessage(LARGE))
    assert requests(sqs, "SendMessage") == []


@pytest.mark.parametrize("prefix", ["", "celery", "celery/a/"], ids=repr)
def test_a_producer_with_another_prefix_is_told_once_and_its_payloads_stay(objects, outgoing, caplog, prefix):
    keys = [new_key(prefix), new_key(prefix)]
    assert not any(outgoing.store.owns(key) for key in [*keys, "another-programs"])
    assert outgoing.store.owns(new_key("celery/"))
    (line,) = caplog.messages
    assert f"s3://payloads/{keys[0]} " in line
    assert f"the prefix {prefix!r} in payload_store, and this worker 'celery/'" in line


@pytest.mark.parametrize("batch", [False, True])
def test_of_duplicates_that_a_fifo_queue_drops_no_payload_stays(sqs, objects, outgoing, batch):
    queue = sqs_queue("q.fifo", sqs)
    for number in range(10):
        same = OutgoingMessage(f"{LARGE}{number}", group_id="g", deduplication_id="same")
        if batch:
            assert outgoing.send_batch(queue, [same]).failed == {}
        else:
            outgoing.send(queue, same)
    sent = received(queue)
    pointer = pointer_in(sent["Body"], sent["MessageAttributes"], ReadablePayloads("payloads"))
    assert objects.objects == {pointer.key: f"{LARGE}0".encode()}


def test_only_the_latest_messages_are_remembered(outgoing, monkeypatch):
    monkeypatch.setattr(module, "MAX_REMEMBERED", 2)
    assert [outgoing._is_new(each) for each in "abbcba"] == [True, True, False, True, False, True]


def test_after_an_answer_that_was_lost_both_payloads_stay(sqs, objects, outgoing):
    queue, send = sqs_queue("q.fifo", sqs), sqs.send

    def unanswered(*args):
        send(*args)
        raise UnavailableError("no answer")

    message = OutgoingMessage(LARGE, group_id="g", deduplication_id="same")
    sqs.send = unanswered
    with pytest.raises(UnavailableError):
        outgoing.send(queue, message)
    sqs.send = send
    outgoing.send(queue, message)
    sent = received(queue)
    pointer = pointer_in(sent["Body"], sent["MessageAttributes"], ReadablePayloads("payloads"))
    assert pointer.key in objects.objects
    assert len(objects.objects) == 2, "SQS does not tell which of them the message has"

"""What SQS is asked to delay: by Celery's own messages of both protocols, as a publisher sends them."""

import uuid
from datetime import UTC, datetime, timedelta, timezone

import pytest
from celery import Celery
from support.clock import FakeClock

from celery_sqs_visibility import publish_batch
from celery_sqs_visibility.aws.fake import FakeObjectStore, FakeSQS
from celery_sqs_visibility.aws.port import ReceiveOptions
from celery_sqs_visibility.aws.queues import Queue, Queues
from celery_sqs_visibility.aws.topics import Topic
from celery_sqs_visibility.delivery.payloads.outgoing import OutgoingMessages, PayloadStore
from celery_sqs_visibility.errors import ETATooFarError
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.policy.eta import DelayLimits
from celery_sqs_visibility.transport import encoding
from celery_sqs_visibility.transport.codec import decode_message
from celery_sqs_visibility.transport.encoding import encode_message

QUEUE = Queue("q", "https://sqs.example/1/q", FakeSQS())
FIFO = Queue("q.fifo", "https://sqs.example/1/q.fifo", FakeSQS())
NOW = datetime(2026, 7, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _stopped_clock(monkeypatch):
    """Publishing takes no time, on a busy machine too."""
    monkeypatch.setattr(Celery, "now", lambda _app: NOW)
    monkeypatch.setattr(SYSTEM_CLOCK, "wall", NOW.timestamp)


@pytest.fixture(params=[2, 1], ids=["protocol 2", "protocol 1"])
def published(request):
    """`published(countdown=...)`: kombu's message of a task of Celery's, as a transport gets it."""
    app = Celery("delays", set_as_current=False, broker="memory://")
    app.conf.task_protocol = request.param

    def publish(**options):
        put = []
        with app.connection_for_write() as connection, connection.channel() as channel:
            channel._put = lambda _queue, message, **_: put.append(message)
            with app.amqp.Producer(channel) as producer:
                app.send_task("tasks.add", (1, 2), producer=producer, **options)
        return put[0]

    return publish


def delay(message, queue=QUEUE, **limits):
    return encode_message(message, queue, base64_encoded=True, limits=DelayLimits(**limits)).delay


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, None),
        ({"countdown": 30}, 30),
        ({"countdown": 30, "expires": 10}, 30),
        ({"countdown": 0.5}, None),
        ({"countdown": -5}, None),
        ({"countdown": 7200}, 900),
        ({"countdown": 30, "delay_seconds": 600}, 600),
        ({"countdown": 3600, "DelaySeconds": 0}, 0),
        ({"countdown": 30, "delay_seconds": "soon"}, 30),
    ],
    ids=repr,
)
def test_a_countdown_goes_out_as_a_delay_and_a_delay_that_is_given_goes_before_it(
    published, options, expected
):
    message = published(**options)
    assert delay(message) == expected
    assert delay(message, FIFO) is None


@pytest.mark.parametrize(
    ("given", "queue", "reason"),
    [
        (901, QUEUE, "delay_seconds=901 of a message to 'q' is not kept: SQS takes at most 900"),
        (-1, QUEUE, "not a number of seconds of at least 0"),
        ("soon", QUEUE, "delay_seconds='soon' of a message to 'q' is not kept: it is not a number"),
        (60, FIFO, "SQS delays no single message of a FIFO queue"),
        (
            60,
            Topic("news", "arn:aws:sns:r:1:news", None),
            "to 'news' is not kept: SNS has no delays",
        ),
        (900, QUEUE, None),
        (0, FIFO, None),
        (None, QUEUE, None),
    ],
    ids=str,
)
def test_a_delay_that_is_not_kept_is_told(published, caplog, given, queue, reason):
    delay(published(delay_seconds=given, countdown=30), queue)
    assert len(caplog.messages) == (reason is not None)
    assert (reason or "") in caplog.text


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=9)), None], ids=repr)
def test_an_eta_does_too_and_without_a_zone_it_is_utc(published, zone):
    eta = NOW + timedelta(seconds=30)
    message = published(eta=eta.astimezone(zone) if zone else eta.replace(tzinfo=None))
    assert delay(message) == 30
    assert delay(published(eta=eta - timedelta(hours=1))) is None


def test_the_delay_for_an_eta_ends_at_one_instant_and_one_that_is_given_does_not(published):
    def visible_at(**options):
        limits = DelayLimits(sleep=60)
        return encode_message(published(**options), QUEUE, base64_encoded=True, limits=limits).visible_at

    assert visible_at(countdown=100) == NOW.timestamp() + 40
    assert visible_at(countdown=7200) == NOW.timestamp() + 7140
    assert visible_at(countdown=100, delay_seconds=30) is visible_at(delay_seconds=30) is visible_at() is None


@pytest.mark.parametrize("threshold", [100, 10_000], ids=["by S3", "in SQS"])
def test_what_a_message_waits_before_it_is_sent_is_no_part_of_its_delay(published, threshold):
    """It lingers, its payload goes to S3, it is sent again: SQS shows it when it would have anyway."""
    clock = FakeClock(wall=NOW.timestamp())
    sqs = FakeSQS(clock)
    queue = Queue("q", sqs.create_queue("q", {}, {}), sqs)
    outgoing = OutgoingMessages(PayloadStore(FakeObjectStore(), threshold))
    message = encode_message(published(countdown=300), queue, base64_encoded=True)
    clock.advance(30)
    outgoing.send(queue, message)
    outgoing.send_batch(queue, [message])
    clock.advance(270)
    assert len(sqs.receive(queue.url, 10, 0, ReceiveOptions())) == 2


def test_the_eta_stays_with_the_message(published):
    message = published(countdown=30)
    body = encode_message(message, QUEUE, base64_encoded=True).body
    received = decode_message(QUEUE, {"MessageId": "m", "ReceiptHandle": "h", "Body": body, "Attributes": {}})
    assert received.payload["body"] == message["body"]
    if "task" in message["headers"]:
        assert received.eta == NOW.timestamp() + 30


@pytest.mark.parametrize(
    "change",
    [
        {"body": "eJxLzs"},
        {"body": "%"},
        {"body": None},
        {"content-type": "application/x-python-serialize"},
        {"properties": {}},
    ],
    ids=repr,
)
def test_a_body_of_protocol_1_that_cannot_be_read_has_no_delay(published, change):
    message = published(countdown=30)
    assert delay({**message, "headers": {}, **change}) is None


@pytest.mark.parametrize(
    ("options", "queue", "sentence"),
    [
        ({"countdown": 7200}, FIFO, "an ETA in 7,200 s is too far for queue 'q.fifo': the queue keeps"),
        ({"delay_seconds": 900}, QUEUE, "delay_seconds=900 is too long for queue 'q': the queue keeps"),
    ],
)
def test_what_sqs_would_delete_before_its_time_is_refused(published, options, queue, sentence):
    with pytest.raises(ETATooFarError, match=sentence) as refusal:
        delay(published(**options), queue, retention=600)
    assert "EventBridge Scheduler" in str(refusal.value)


def test_celery_and_publish_batch_send_the_delay_and_raise_the_refusal(monkeypatch):
    """Through all of Celery and kombu, which would try an operational error again."""
    sqs = FakeSQS()
    with Celery("delays", set_as_current=False, broker=f"celery-sqs-visibility://{uuid.uuid4()}:s@") as app:
        with app.connection_for_write() as connection:
            monkeypatch.setattr(connection.transport.context, "queues", Queues(sqs))
        with publish_batch(app):
            app.send_task("tasks.add", countdown=60, queue="q")
        app.send_task("tasks.add", countdown=60, queue="q")
        with pytest.raises(ETATooFarError, match="EventBridge Scheduler"):
            app.send_task("tasks.add", countdown=15 * 24 * 3600, queue="q.fifo")
    sent = {action: arguments for action, arguments in sqs.calls if action.startswith("Send")}
    messages = [*sent["SendMessageBatch"]["messages"], sent["SendMessage"]["message"]]
    assert [message.delay for message in messages] == [60, 60]


def test_an_eta_for_which_memory_lacks_is_no_fault_of_its_message(monkeypatch):
    def lack(_text):
        raise MemoryError

    monkeypatch.setattr(encoding, "maybe_iso8601", lack)
    with pytest.raises(MemoryError):
        encoding.eta_of({"eta": "2026-01-01T12:00:00"})

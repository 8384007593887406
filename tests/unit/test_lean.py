"""What the package costs: an import, memory for each message in flight, bytes on the way to a child."""

import base64
import functools
import gc
import pickle
import subprocess
import sys
import tracemalloc
import uuid
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.worker.request import Request, create_request_cls
from kombu.transport import virtual
from support.badmessages import TASK, encoded, envelope
from support.clock import FakeClock
from support.factories import queue_consumer, sqs_queue

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.delivery.receive.buffer import Buffer
from celery_sqs_visibility.transport.codec import decode_message
from celery_sqs_visibility.transport.message import Message
from celery_sqs_visibility.worker.request import DeliveryRequest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "celery_sqs_visibility"
MODULES_OF_A_PRODUCER = 71
LINES_OF_A_PRODUCER = 10_600
MESSAGES = 10_000
BYTES_A_MESSAGE = 1500


def quick(argument):
    """A task."""


class Pool:
    """Takes what a pool would."""

    def apply_async(self, target, args, **_):
        self.args = args


POOL = Pool()


class World:
    """A consumer whose messages are given to it, and what Celery would have of them."""

    def __init__(self):
        self.clock = FakeClock()
        self.queue = sqs_queue(sqs=FakeSQS(self.clock))
        self.buffer = Buffer()
        self.opened = {}
        self.messages = []
        self.queue_consumer = queue_consumer(
            self.clock,
            buffer=self.buffer,
            open_message=lambda _, message: self.opened[message["ReceiptHandle"]],
            polling_interval=3600,
        )
        self.queue_consumer.set_prefetch_count(0)  # no limit
        # Whatever is handed over becomes a message, as for a consumer.
        self.queue_consumer.consume(
            self.queue,
            lambda payload, delivery: self.messages.append(Message(payload, self, delivery=delivery)),
        )
        self.app = Celery("lean", set_as_current=False, broker="memory://")
        self.task = self.app.task(quick, name=TASK, shared=False)

    def received(self, count, **message):
        """Messages, opened beforehand: what they weigh, stock has too."""
        messages = [received(**message) for _ in range(count)]
        self.opened.update((m["ReceiptHandle"], decode_message(self.queue, m)) for m in messages)
        return messages

    def arrive(self, messages):
        now = self.clock.monotonic()
        for start in range(0, len(messages), 10):
            self.queue_consumer._arrived(self.queue, messages[start : start + 10], now, now)

    def decode_body(self, body, _encoding):
        """As a channel does."""
        return base64.b64decode(body)

    @functools.cache  # noqa: B019 - it lives as long as the test
    def request_class(self, base, pool):
        return create_request_cls(base, self.task, pool, "host", None, app=self.app)

    def request(self, message, base=DeliveryRequest, pool=POOL):
        return self.request_class(base, pool)(
            message, app=self.app, task=self.task, hostname="host", utc=True
        )


def received(argument="a", handle_bytes=350):
    """A message as SQS answers it; real receipt handles are that long."""
    identity = str(uuid.uuid4())
    message = envelope(
        [[argument], {}, {}],
        headers={"id": identity, "root_id": identity},
        properties={"correlation_id": identity, "delivery_tag": str(uuid.uuid4())},
    )
    return {
        "MessageId": str(uuid.uuid4()),
        "ReceiptHandle": f"{uuid.uuid4()}".ljust(handle_bytes, "="),
        "Body": encoded(message),
        "Attributes": {"ApproximateReceiveCount": "1", "ApproximateFirstReceiveTimestamp": "1700000000000"},
    }


@pytest.fixture
def world():
    world = World()
    yield world
    world.queue_consumer.close()
    world.app.close()


@contextmanager
def weighed():
    """The bytes that a block allocates and keeps."""
    gc.collect()
    tracemalloc.start()
    weight = SimpleNamespace()
    yield weight
    gc.collect()
    weight.bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()


def python(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.split()


@pytest.mark.parametrize(
    "code",
    [
        "import celery_sqs_visibility",
        "from celery_sqs_visibility import VisibilityTask",
        "from celery_sqs_visibility import ExponentialBackoff, message_lost, subscribe",
        "import celery; celery.Celery(broker='celery_sqs_visibility://').task(len, name='a')",
    ],
)
def test_neither_boto3_nor_django_is_imported_before_it_is_used(code):
    late = "{'boto3', 'botocore', 'django.core'}"
    assert python(f"{code}; import sys; print(*{late} & set(sys.modules))") == []


def test_the_face_imports_nothing_but_itself():
    before = "import celery, kombu, importlib, sys; before = set(sys.modules)"
    added = python(f"{before}; import celery_sqs_visibility; print(*set(sys.modules) - before)")
    assert added in ([], ["celery_sqs_visibility"])  # kombu's entry point may have imported it


def test_a_producer_imports_nothing_that_receives():
    code = """if True:
        import sys, celery, kombu.exceptions
        from celery_sqs_visibility import VisibilityTask
        app = celery.Celery(broker="celery-sqs-visibility://key:secret@127.0.0.1:9", set_as_current=False)
        from celery_sqs_visibility.aws.queues import Queues
        Queues.reach = lambda self: None  # so that it fails when the message is sent, not before
        @app.task(name="t", base=VisibilityTask)
        def task(): ...
        for publish in (task.apply_async, lambda **options: app.send_task("t", **options)):
            try:
                publish(retry=False)
            except kombu.exceptions.OperationalError:
                continue
            sys.exit("published to nowhere")
        print(*(m.__file__ for name, m in sys.modules.items() if name.startswith("celery_sqs_visibility")))
    """
    files = python(code)
    ours = {Path(file).relative_to(PACKAGE).as_posix() for file in files}
    assert {"transport/encoding.py", "aws/boto.py", "aws/exchange.py"} <= ours
    receiving = ("core/delivery", "delivery/consumer", "delivery/holder", "delivery/pump", "delivery/settle")
    assert [name for name in ours if name.startswith(receiving)] == []
    assert len(ours) <= MODULES_OF_A_PRODUCER
    assert sum(len(Path(file).read_text().splitlines()) for file in files) <= LINES_OF_A_PRODUCER


def test_what_only_runs_need_is_imported_by_a_worker_before_its_pool_forks():
    needed = {"task.exclusive", "task.outcomes", "task.tracing", "visibility"}
    code = "import celery_sqs_visibility.worker.bound_tasks, sys; print(*sys.modules)"
    assert {f"celery_sqs_visibility.{name}" for name in needed} <= set(python(code))


def test_nothing_of_fanout_or_remote_control_is_imported_before_it_is_used():
    added = python("import celery_sqs_visibility.transport.transport, sys; print(*sys.modules)")
    ours = [name for name in added if name.startswith("celery_sqs_visibility")]
    parts = ("topics", "subscriptions", "queue_policy", "transport.fanout", "control.remote")
    assert [name for name in ours if name.endswith(parts)] == []


@pytest.mark.parametrize(
    "code",
    [
        "import celery_sqs_visibility.worker.bootsteps, celery_sqs_visibility.serverless.handler",
        "import celery_sqs_visibility.operate.commands",
        "import celery_sqs_visibility as face; [getattr(face, name) for name in face.__all__]",
    ],
    ids=["worker", "commands", "face"],
)
def test_the_test_kit_is_imported_by_nobody_but_tests(code):
    imported = python(f"{code}; import sys; print(*sys.modules)")
    assert [name for name in imported if name.startswith("celery_sqs_visibility.testing")] == []


def test_the_plug_in_of_pytest_imports_none_of_what_it_offers():
    code = "import pytest, sys; before = set(sys.modules); import celery_sqs_visibility.testing.plugin"
    added = python(f"{code}; print(*set(sys.modules) - before)")
    room = "celery_sqs_visibility.testing"
    assert set(added) <= {"celery_sqs_visibility", room, f"{room}.plugin"}


def test_nothing_of_metrics_is_imported_where_nobody_gets_any():
    imported = python("import celery_sqs_visibility.operate.worker_step, sys; print(*sys.modules)")
    parts = ("operate.metrics", "prometheus_client", "opentelemetry")
    assert [name for name in imported if any(part in name for part in parts)] == []


@pytest.mark.parametrize(
    "code",
    [
        "import celery.bin.celery, celery_sqs_visibility.operate.commands",
        "from celery_sqs_visibility import VisibilityTask; import celery_sqs_visibility.transport.transport",
    ],
    ids=["celery --help", "producer"],
)
def test_commands_are_imported_by_nobody_who_calls_none(code):
    room = "celery_sqs_visibility.operate"
    imported = [name for name in python(f"{code}; import sys; print(*sys.modules)") if name.startswith(room)]
    assert set(imported) <= {room, f"{room}.commands"}


@pytest.mark.slow("it weighs thousands of messages")
def test_a_message_in_the_inbox_weighs_less_than_a_kilobyte_and_a_half(world):
    messages = world.received(MESSAGES)
    with weighed() as ours:
        world.arrive(messages)
    assert len(world.buffer) == MESSAGES
    assert ours.bytes / MESSAGES < BYTES_A_MESSAGE


@pytest.mark.slow("it weighs thousands of messages")
def test_a_message_in_celerys_hands_weighs_that_more_than_on_another_transport(world):
    messages = world.received(MESSAGES)
    with weighed() as theirs:
        foreign = (virtual.Message(opened.payload, channel=world) for opened in world.opened.values())
        requests = [world.request(message, Request) for message in foreign]
    assert len(requests) == MESSAGES
    del requests
    with weighed() as ours:
        world.arrive(messages)
        while world.buffer.dispatch(world.clock):
            pass
        requests = [world.request(message) for message in world.messages]
    assert len(requests) == MESSAGES
    assert (ours.bytes - theirs.bytes) / MESSAGES < BYTES_A_MESSAGE


def test_a_child_gets_the_arguments_once(world):
    argument = uuid.uuid4().hex * 10_000
    world.arrive(world.received(1, argument=argument))
    world.buffer.dispatch(world.clock)
    pool = Pool()
    request = world.request(world.messages[0], pool=pool)
    request.execute_using_pool(pool)
    sent = pickle.dumps(pool.args)
    # Celery sends the body, and the arguments made of it; the message as received would be twice that again.
    assert sent.count(argument.encode()) == 2
    assert len(sent) < 2 * len(argument) + 3000

"""An app's queues in memory, on a clock that tests turn, with workers driven by one thread: turned time."""

from __future__ import annotations

import math
import random
import sys
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from celery import Celery
from celery.exceptions import ImproperlyConfigured
from kombu import Producer

from celery_sqs_visibility.aws.fake import FakeObjectStore, FakeSQS, as_received
from celery_sqs_visibility.aws.port import BatchResult, ReceivedMessage, ReceiveOptions
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.delivery.lease_table import open_lease_table
from celery_sqs_visibility.delivery.payloads.outgoing import PayloadStore
from celery_sqs_visibility.delivery.threads import start_thread
from celery_sqs_visibility.operate.queues import Creation
from celery_sqs_visibility.stores.guarded import GuardedStore
from celery_sqs_visibility.stores.memory import MemoryStore
from celery_sqs_visibility.stores.port import ExclusiveStore
from celery_sqs_visibility.task.settings import refuse_on_other_tasks
from celery_sqs_visibility.testing.account import Accounts, MessageAccount
from celery_sqs_visibility.testing.apps import create_queues, load_tasks
from celery_sqs_visibility.testing.clock import TurnedClock, reading, reading_in_app, replaced
from celery_sqs_visibility.testing.worker import Worker
from celery_sqs_visibility.transport import broker_clients, broker_context
from celery_sqs_visibility.transport.broker_context import BrokerContext
from celery_sqs_visibility.transport.transport import Transport
from celery_sqs_visibility.worker.bound_tasks import take_events

if TYPE_CHECKING:
    from typing import Self

#: A message that was received more often than this comes back for ever.
MAX_RECEIVES: Final = 1000

#: After more receives in total, a task must be publishing itself again and again.
MAX_MESSAGES: Final = 10_000

PUBLISH: Final = Producer.publish

NO_APP: Final = "no app is known: call open(app) first, or send a task"

#: Receives all attributes.
EVERYTHING: Final = ReceiveOptions(0, ("All",), ("All",))


class MemorySQS(FakeSQS):
    """A fake SQS that knows when a message becomes visible, and can lose a delete.

    Attributes:
        deletes_to_lose: how many of the next deletes are confirmed but not carried out.
    """

    deletes_to_lose = 0

    def next_change(self, queue_url: str) -> float:
        """Seconds until the queue's next hidden message becomes visible; infinity if none is hidden."""
        return self.queues[queue_url].next_change(self._now())

    def visible(self, queue_url: str) -> int:
        """Number of visible messages of the queue."""
        return int(self.queues[queue_url].counts(self._now())["ApproximateNumberOfMessages"])

    def receive(
        self, queue_url: str, max_messages: int, wait: int, options: ReceiveOptions
    ) -> list[ReceivedMessage]:
        """Receive, and check that no message comes back for ever.

        Raises:
            AssertionError: a message does.
        """
        messages = super().receive(queue_url, max_messages, wait, options)
        for message in messages:
            if int(message.get("Attributes", {}).get("ApproximateReceiveCount", 0)) > MAX_RECEIVES:
                raise AssertionError(f"a message still comes back after {MAX_RECEIVES} receives")
        return messages

    def everything(self, queue_url: str) -> list[ReceivedMessage]:
        """All visible messages of a queue, as ReceiveMessage returns them. They stay visible."""
        taken = self._take(self.queues[queue_url], sys.maxsize, EVERYTHING, self._now())
        return [as_received(message, EVERYTHING) for message in taken]

    def bodies(self, queue_url: str) -> list[str]:
        """The bodies of all messages of a queue, hidden ones included."""
        return [message.body for message in self.queues[queue_url].messages]

    def delete(self, queue_url: str, handles: Any) -> BatchResult:
        if self.deletes_to_lose > 0:
            self.deletes_to_lose -= 1
            return BatchResult({})
        return super().delete(queue_url, handles)


class World:
    """SQS in memory with the queues of one app, and at least one worker. Inside the block, one thread.

    The app's own publications go there, too. Its result backend and other services are the real ones.

    Attributes:
        clock: advances only by `pass_time` and by waits for messages.
        workers: the live ones.
    """

    worker_class = Worker

    def __init__(self, seed: int = 0) -> None:
        self.clock = TurnedClock()
        self.accounts = Accounts()
        self.sqs = MemorySQS(self.clock)
        self.workers: list[Worker] = []
        self._seed = seed
        self._app: Celery[Any] | None = None
        self._stack = ExitStack()
        self._store: ExclusiveStore = MemoryStore(self.clock)
        self._objects = FakeObjectStore()
        self._made = 0
        self._queues: list[Queue] = []

    @property
    def queues(self) -> list[Queue]:
        """The app's, those that workers consume.

        Raises:
            RuntimeError: no app is known.
        """
        if self._app is None:
            raise RuntimeError(NO_APP)
        return self._queues

    def __enter__(self) -> Self:
        # So that delays with jitter are the same each time.
        self._stack.callback(random.setstate, random.getstate())
        random.seed(self._seed)
        self._stack.enter_context(reading(self.clock))
        self._stack.enter_context(replaced(Producer, "publish", _refuse_publishing))
        self.accounts.start()
        self._stack.callback(self.accounts.stop)
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.die()
        self._stack.close()

    def open(self, app: Celery[Any]) -> None:
        """Create the app's queues; its publications come here from now on.

        Code under test may publish before `send` and `run` tell the app.

        Raises:
            ImproperlyConfigured: its broker is not SQS, its tasks run eagerly, or another app is open.
        """
        if self._app is not None:
            if self._app is not app:
                raise ImproperlyConfigured("expected tasks of one app, got those of two")
            return
        load_tasks(app)
        self._app = app
        try:
            self._open(app)
        except BaseException:
            self._app = None
            raise

    def _open(self, app: Celery[Any]) -> None:
        self._broker, self._options = _settings_of(app)
        self._leases = open_lease_table()
        enter = self._stack.enter_context
        enter(reading_in_app(app, self.clock))
        enter(replaced(broker_clients, "shared_sqs", lambda _settings: self.sqs))
        enter(replaced(broker_context, "payloads_of", self._payloads_of))
        refuse_on_other_tasks(app.tasks.values())
        self._context = self._new_context(app, "producer")
        enter(replaced(Producer, "publish", PUBLISH))
        enter(replaced(Transport, "context", property(lambda _connection: self._context)))
        names = create_queues(app, self._options, Creation(self.sqs))
        self._queues = [self._context.queues.find(name) for name in names]
        for queue in self.queues:
            self._context.redrive.get(queue, self.clock.monotonic())
        self.new_worker()

    def new_worker(self) -> Worker:
        """Start another worker: a process of its own, which remembers nothing."""
        if self._app is None:
            raise RuntimeError(NO_APP)
        self._made += 1
        context = self._new_context(self._app, f"worker {self._made}")
        worker = self.worker_class(self._app, context, self.clock, self._leases, self.pass_time)
        self.workers.append(worker)
        return worker

    def now(self) -> float:
        """The turned time in seconds since the epoch, for the code under test."""
        return self.clock.wall()

    def send(self, signature: Any) -> Any:
        """Publish a task, which runs in `work`. Returns its result."""
        self.open(signature.app)
        return signature.apply_async()

    def run(self, *signatures: Any) -> MessageAccount:
        """Publish tasks, and work until all queues are empty; tasks that they publish run, too.

        Returns:
            The account of the first; of a group it is that of its first task, of a chain that of its last.
        """
        results = [self.send(signature) for signature in signatures]
        self.work()
        return self.accounts.so_far(results[0])

    def work(self) -> None:
        """Let the workers work until only dead letters are left, whatever time that takes.

        Raises:
            AssertionError: a message still comes back after 1,000 receives, or others come again and again.
            RuntimeError: no app is known.
        """
        for _ in range(MAX_MESSAGES):
            if not self.work_once():
                return
        raise AssertionError(f"messages still come after {MAX_MESSAGES} receives: a task publishes itself")

    def work_once(self) -> bool:
        """Take the next message, once its time has come. Returns whether there was one."""
        while (wait := self._next_message()) < math.inf:
            if wait > 0:
                self.pass_time(wait)
            if any(self.take(queue) for queue in self.queues):
                return True
        return any(self.take(queue) for queue in self.queues)

    def take(self, queue: Queue) -> bool:
        """Let a worker take a message. Returns whether there was one."""
        return self.workers[0].take(queue)

    def pass_time(self, seconds: float) -> None:
        """Let time pass; workers extend what they hold."""
        until = self.clock.monotonic() + seconds
        while True:
            now, due = self.clock.monotonic(), self._next_due()
            if due > until:
                self.clock.turn(until - now)
                return
            self.clock.turn(max(0.0, due - now))
            for worker in tuple(self.workers):
                worker.send_all()
            if self._next_due() <= due:
                raise AssertionError("a worker's requests do not get on")

    def _next_due(self) -> float:
        return min((worker.next_due() for worker in self.workers), default=math.inf)

    def dead_letters(self) -> list[ReceivedMessage]:
        """The messages of all dead-letter queues, as ReceiveMessage answers them."""
        return [message for letters in self._letter_queues() for message in self.sqs.everything(letters.url)]

    def redrive(self) -> int:
        """Move all dead letters back to the queues that they came from. Returns their number."""
        moved = 0
        for queue in self.queues:
            letters = self._context.redrive.dead_letter_queue(queue)
            if letters is not None and (count := len(self.sqs.bodies(letters.url))):
                self.sqs.start_move_task(letters.arn(), queue.arn())
                moved += count
        return moved

    def _letter_queues(self) -> list[Queue]:
        found = [self._context.redrive.dead_letter_queue(queue) for queue in self.queues]
        return list({letters.url: letters for letters in found if letters is not None}.values())

    def _next_message(self) -> float:
        return min((self.sqs.next_change(queue.url) for queue in self.queues), default=math.inf)

    def _new_context(self, app: Celery[Any], name: str) -> BrokerContext:
        context = BrokerContext(self._broker, self._options)
        context.worker_name = name
        context.send = context.outgoing.send  # nothing waits for others
        if self._options.coordination_store is not None:
            store = GuardedStore(self._store, start_thread, self.clock)
            vars(context)["coordination_store"] = store  # a cached property
        take_events(app, context)
        return context

    def _payloads_of(self, _settings: Any, options: Any) -> PayloadStore | None:
        store = options.payload_store
        if store is None or store.bucket is None:
            return None
        return PayloadStore(self._objects, prefix=store.prefix)


class TurnedTime(World):
    """A context manager in which tasks run in memory, and time passes when it is turned.

    Give it to one test. Inside, everything of this package in the process reads the turned clock: no worker
    may run in another thread.
    """

    def account(self, result: Any) -> MessageAccount:
        """The account of another task, by its result or its id."""
        return self.accounts.so_far(result)

    def turn(self, seconds: float) -> None:
        """Let time pass: in a test between tasks, or in a task, whose message is extended meanwhile.

        Raises:
            ValueError: time does not go back.
        """
        if seconds < 0:
            raise ValueError(f"expected 0 or more seconds, got {seconds!r}: time does not go back")
        self.pass_time(seconds)

    @property
    def passed(self) -> float:
        """Seconds that have passed since the block began."""
        return self.clock.passed


def turned_time() -> TurnedTime:
    """Return a context manager: see `TurnedTime`."""
    return TurnedTime()


def _refuse_publishing(producer: Producer, *args: Any, **kwargs: Any) -> Any:
    """In place of `Producer.publish`, so that nothing is published to the app's own broker.

    Raises:
        RuntimeError: that is SQS.
    """
    connection = producer.connection
    if connection is None or not isinstance(connection.transport, Transport):
        return PUBLISH(producer, *args, **kwargs)
    raise RuntimeError(NO_APP)


def _settings_of(app: Celery[Any]) -> tuple[Any, Any]:
    """The app's broker URL and transport options, as they are in memory."""
    with app.connection_for_read() as connection:
        transport = connection.transport
        if not isinstance(transport, Transport):
            raise ImproperlyConfigured(
                f"expected an app on SQS, got one on {transport.driver_name!r}: set "
                "broker_transport = 'celery_sqs_visibility'"
            )
        # Queues have no other addresses.
        return transport.broker, replace(transport.options, predefined_queues={})

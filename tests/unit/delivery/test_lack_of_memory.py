"""Memory lacks at any one call from a message's receive to its settlement: it runs, or comes back."""

import contextlib
import sys
from weakref import ref

import pytest
from support import factories
from support.factories import TIMEOUT
from support.processes import SOON, wait_until

from celery_sqs_visibility.core.capacity import Waiter
from celery_sqs_visibility.core.settlements import Delete
from celery_sqs_visibility.delivery.inline import InlinePump
from celery_sqs_visibility.delivery.supervisor import CHECK_INTERVAL_SECONDS
from celery_sqs_visibility.delivery.watches import ENOUGH_CHECKS

#: More calls than there are; the last worlds lack nothing.
MOST_CALLS = 1_000

#: Looks of more than a visibility timeout, after which a message comes back that was lost on its way.
LOOKS_OF_MINUTES = 300

OURS = "celery_sqs_visibility"


class Lack:
    """A MemoryError as the n-th call of a function of ours begins, on this thread."""

    def __init__(self, calls):
        self._calls = calls
        self.at = None
        self.raised = False

    def __call__(self, frame, event, _argument):
        path = frame.f_code.co_filename
        if OURS not in path or "fake" in path:
            return None
        if event == "line":  # not "call", at which what is raised would leave the caller's `with` entered
            frame.f_trace_lines = False
            self._calls -= 1
            if self._calls < 0:
                sys.settrace(None)
                self.at = frame.f_code.co_qualname
                raise MemoryError
        return self

    @contextlib.contextmanager
    def during(self):
        """Let memory lack in this block, unless it has lacked before; what it raises ends the block."""
        self.raised = False
        before = sys.gettrace()  # coverage.py's, for one
        if self.at is None:
            sys.settrace(self)
        try:
            yield
        except MemoryError:
            self.raised = True
        finally:
            sys.settrace(before)


class Request:
    """As Celery's: it keeps the delivery that it settles."""

    def __init__(self, world, payload):
        self.delivery = world.delivery(payload)
        self.delivery.carrier = ref(self)

    def run(self, end):
        self.delivery.start()
        end(self.delivery)


#: How a run ends.
ENDS = {
    "success": lambda delivery: delivery.settle(Delete()),
    "a dead letter": lambda delivery: delivery.give_up("broken", lambda: "a letter"),
}


def receive_and_run(world, queue, lack, end):
    """Receive a message and hand it to Celery, which runs it; whether it ran, and the worker is still there.

    Memory lacks once, on the receiver's or on the main thread, both of which the test plays.
    """
    ran = []

    def run(payload):
        request = Request(world, payload)
        ran.append(payload)
        request.run(end)

    world.consume(queue, on_message=run)
    wait_until(lambda: world.next_poll(queue) > world.clock.monotonic(), SOON, "the receiver to sleep")
    factories.send(queue, "a")
    now = world.clock.monotonic()
    messages = world.sqs.receive(queue.url, 10, 0, factories.EVERYTHING)
    with lack.during():
        world.consumer._arrived(queue, messages, now, now)
    with lack.during():
        world.hand_over()
    return bool(ran), not lack.raised  # what Celery's event loop gets ends the worker


def look(world, looks):
    for _ in range(looks):
        world.consumer._supervisor.check(world.clock.monotonic())
        world.clock.advance(CHECK_INTERVAL_SECONDS)


def may_receive(world):
    """Whether a queue that waits for the only place has it after the supervisor's next look."""
    world.consumer.set_prefetch_count(1)
    waiter = Waiter("another", False, lambda: None)
    with world.pump.lock:
        world.consumer.capacity.add_waiter(waiter, world.clock.monotonic())
    look(world, 2)
    return waiter.reservation is not None


@pytest.mark.parametrize("how", ENDS)
def test_a_message_runs_or_comes_back_wherever_memory_lacks(make, how):
    places = []
    for calls in range(MOST_CALLS):
        world, lack = make(), Lack(calls)
        queue = world.queue(letters=world.queue("letters"), most=9)
        ran, alive = receive_and_run(world, queue, lack, ENDS[how])
        if lack.at is None:
            break
        places.append(lack.at)
        if alive:
            look(world, ENOUGH_CHECKS + 2)
            assert world.consumer.holder.copies.flush(SOON), lack.at
            assert not world.consumer.held(), f"held for ever, since memory lacked at {lack.at}"
            assert may_receive(world), f"no place for another message, since memory lacked at {lack.at}"
            assert world.consumer.holder.settler.flush(SOON), lack.at
            world.clock.advance(TIMEOUT)
            assert ran or world.visible(queue) == ["a"], lack.at
        world.close()
    last = {"success": {"Held.settle", "SettlementBatches.add"}, "a dead letter": {"PendingCopies.add"}}
    assert {"QueueConsumer._arrived", "Buffer.put", *last[how]} <= set(places)


def test_polls_go_on_wherever_memory_lacks_in_one(make):
    places = []
    for calls in range(MOST_CALLS):
        world, lack = make(pump=InlinePump, polling_interval=1, wait_time_seconds=1), Lack(calls)
        queue = world.queue()
        world.consume(queue, "a")
        with lack.during():
            world.pump.work_off()
        if lack.at is None:
            break
        places.append(lack.at)
        for _ in range(LOOKS_OF_MINUTES):
            world.hand_over()
            if world.handed:
                break
            world.clock.advance(CHECK_INTERVAL_SECONDS)
            world.pump.work_off()
        else:
            pytest.fail(f"nothing is received any more, since memory lacked at {lack.at}")
        world.close()
    assert {"QueuePolls.take", "QueuePolls.succeeded", "Capacity.serve", "AskedFor.remove"} <= set(places)


def test_a_poll_whose_answer_could_not_be_counted_is_over(world, queue, monkeypatch, caplog):
    def lacks_memory(*_):
        raise MemoryError

    monkeypatch.setattr(world.consumer.capacity, "answered", lacks_memory)
    world.consume(queue)
    wait_until(lambda: "unexpected error in a thread that polls 'q'" in caplog.text, SOON, "the error")
    assert not world.consumer._receivers.get("q").in_flight
    assert world.consumer.capacity._asked.counts.messages == {}

"""What Celery's pools forget at a consumer's end, how much they run, and how they free their slots."""

import inspect
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import MethodType, SimpleNamespace

import pytest
from billiard.pool import CLOSE, RUN
from celery.concurrency.prefork import TaskPool
from celery.exceptions import TaskRevokedError
from kombu.asynchronous.semaphore import LaxBoundedSemaphore
from kombu.common import QoS
from support.factories import exc_info
from support.processes import SOON

from celery_sqs_visibility.core.settlements import RELEASE
from celery_sqs_visibility.policy.prefetch import Slots
from celery_sqs_visibility.worker import pool_patches as module
from celery_sqs_visibility.worker.pool_patches import (
    flush_only_unsent,
    hand_over_requests,
    leave_runs,
    one_by_one,
    slots_of,
    watch_runs,
)
from celery_sqs_visibility.worker.request import DeliveryRequest, GivenBackError
from celery_sqs_visibility.worker.worker_context import WorkerContext

ALIVE, DEAD = "alive", "dead"


def job(sent_to=None, *, accepted=False):
    """A request's job in the pool; `settled` has what became of its delivery."""
    request, settled = DeliveryRequest.__new__(DeliveryRequest), []
    request.delivery = SimpleNamespace(settle=settled.append)
    return SimpleNamespace(
        _accepted=accepted, _write_to=sent_to, _accept_callback=request.on_accepted, settled=settled
    )


class Pool:
    """Puts back what its dead have not read: when it replaces them, or, once it is closed, buries them."""

    def __init__(self, *jobs, closed=False):
        self.processes = self._pool = SimpleNamespace(
            _cache={},
            _state=CLOSE if closed else RUN,
            _join_exited_workers=self.put_back,
            _active_writers=set(),
            maintain_pool=lambda: None if closed else self.put_back(),
            outbound_buffer=deque(),
        )
        for number, one in enumerate(jobs):
            self.processes._cache[number] = one
            one.discard = partial(self.processes._cache.pop, number)
        self.processes.outbound_buffer.extend(one for one in jobs if one._write_to is None)

    def put_back(self):
        jobs = self.processes._cache.values()
        self.processes.outbound_buffer.extendleft(one for one in jobs if one._write_to is DEAD)

    def flush(self):
        raise AssertionError("it would forget what was sent")


FATES = {
    "what was sent to a process is waited for": (job(ALIVE), RUN, True, False, []),
    "also once the pool is closed": (job(ALIVE), CLOSE, True, False, []),
    "so is what was accepted": (job(ALIVE, accepted=True), RUN, True, False, []),
    "what no process has is given back": (job(), RUN, False, False, [RELEASE]),
    "what a dead one has not read is for its successor": (job(DEAD), RUN, True, True, []),
    "where there is none, it is given back": (job(DEAD), CLOSE, False, False, [RELEASE]),
}


@pytest.mark.parametrize("times", [1, 2])  # a consumer may start more than once
@pytest.mark.parametrize(("one", "state", "waited_for", "to_send", "fate"), FATES.values(), ids=FATES)
def test_at_a_consumers_end(times, one, state, waited_for, to_send, fate):
    pool = Pool(one, closed=state == CLOSE)
    for _ in range(times):
        flush_only_unsent(pool)
    one.settled.clear()
    pool.flush()
    assert (one in pool.processes._cache.values()) is waited_for
    assert (one in pool.processes.outbound_buffer) is to_send
    assert one.settled == fate


def test_a_run_that_is_half_sent_is_sent_to_its_end():
    writer, sent = object(), []
    half_sent = job(ALIVE)
    half_sent._writer = lambda: writer  # a weak reference
    pool = Pool(half_sent, job(ALIVE))
    pool.processes._active_writers.add(writer)
    pool.processes._flush_writer = lambda *args: sent.append(args)
    flush_only_unsent(pool)
    pool.flush()
    assert sent == [(ALIVE, writer)]


def test_a_pool_that_has_nothing_to_forget_with_is_left_alone():
    pool = Pool()
    pool.flush = None  # Celery's, where there is no event loop
    flush_only_unsent(pool)
    assert pool.flush is None


@pytest.fixture
def semaphore():
    """One slot, which is taken, and is freed by `semaphore.release_one`."""
    semaphore = LaxBoundedSemaphore(1)
    semaphore.release_one = one_by_one(semaphore.release)
    assert semaphore.acquire(lambda: None)
    return semaphore


def test_thousands_that_may_not_begin_free_their_slot_one_after_the_other(semaphore):
    asked = []

    def may_not_begin(number):
        asked.append(number)
        semaphore.release_one()

    for number in range(5000):
        semaphore.acquire(may_not_begin, number)
    semaphore.release()  # as billiard does when a run has ended
    assert asked == list(range(5000))
    assert semaphore.value == 1


def test_what_one_of_them_raises_keeps_no_other_from_its_slot(semaphore):
    asked = []
    semaphore.acquire(lambda: 1 / 0)
    semaphore.acquire(asked.append, "the next")
    with pytest.raises(ZeroDivisionError):
        semaphore.release_one()
    semaphore.release_one()
    assert asked == ["the next"]


def test_a_run_that_the_pool_cannot_be_given_comes_back_and_frees_its_slot():
    semaphore, came_back, ran = LaxBoundedSemaphore(1), [], []

    class Request(DeliveryRequest):
        def execute_using_pool(self, pool):
            if self.message is not None:
                raise MemoryError
            ran.append(self)

    worker = SimpleNamespace(semaphore=semaphore, pool_putlocks=True)
    consumer = SimpleNamespace(controller=worker, pool=SimpleNamespace(uses_semaphore=True))
    hand_over_requests(consumer)
    unsent, sent = (Request.__new__(Request) for _ in range(2))
    unsent._message, sent._message = SimpleNamespace(come_back=came_back.append), None
    unsent.id = "1"
    consumer.on_task_request(unsent)
    consumer.on_task_request(sent)
    assert [type(error) for error in came_back] == [MemoryError]
    assert ran == [sent]


@pytest.mark.parametrize("ours", [True, False])
def test_a_run_that_was_revoked_or_given_back_frees_its_slot(ours):
    semaphore, ran = LaxBoundedSemaphore(1), []

    class Request(DeliveryRequest if ours else object):
        def execute_using_pool(self, pool):
            if not ran:
                ran.append("revoked")
                raise TaskRevokedError("id")
            ran.append("ran")

    worker = SimpleNamespace(semaphore=semaphore, pool_putlocks=True)
    consumer = SimpleNamespace(controller=worker, pool=SimpleNamespace(uses_semaphore=True))
    hand_over_requests(consumer)
    for _ in range(2):
        consumer.on_task_request(Request.__new__(Request))
    assert ran == ["revoked", "ran"]


def test_an_error_of_a_request_that_is_none_of_ours_is_celerys():
    class Request:
        def execute_using_pool(self, pool):
            raise MemoryError

    consumer = SimpleNamespace(
        controller=SimpleNamespace(semaphore=None, pool_putlocks=False),
        pool=SimpleNamespace(uses_semaphore=False),
    )
    hand_over_requests(consumer)
    with pytest.raises(MemoryError):
        consumer.on_task_request(Request())


def consumer_of(pool, autoscaler=None):
    """As Celery's, before it consumes."""
    controller = SimpleNamespace(autoscaler=autoscaler)
    return SimpleNamespace(pool=pool, controller=controller, prefetch_multiplier=4, qos=None)


@pytest.mark.parametrize(
    ("processes", "autoscaler", "number"),
    [(True, None, 2), (True, SimpleNamespace(max_concurrency=6), 6), (False, None, 3)],
)
def test_a_pool_runs_as_much_as_it_may(processes, autoscaler, number):
    # Of greenlets `num_processes` was, before Celery 5.7, how many run.
    pool = SimpleNamespace(uses_semaphore=processes, num_processes=2, limit=3)
    consumer = consumer_of(pool, autoscaler)
    assert slots_of(consumer, WorkerContext()) == Slots(number, number * 4, idle=True)
    consumer.qos = QoS(print, 8)
    consumer.qos.increment_eventually(2)
    worker = WorkerContext()
    worker.collects = True
    assert slots_of(consumer, worker) == Slots(number, number * 4, collecting=True, idle=True)


@pytest.mark.skipif(
    "max_prefetch" not in inspect.signature(QoS).parameters, reason="kombu 5.5 has no worker_eta_task_limit"
)
def test_celerys_limit_of_waiting_tasks_is_known():
    consumer = consumer_of(TaskPool(3))
    consumer.qos = QoS(print, 8, max_prefetch=5)
    assert slots_of(consumer, WorkerContext()) == Slots(3, 12, eta_task_limit=5, idle=True)


def test_a_pool_of_greenlets_runs_what_it_has_grown_to():
    """As before Celery 5.7, where `limit` stays."""
    pool = SimpleNamespace(uses_semaphore=False, num_processes=1, limit=3, _pool=SimpleNamespace(size=5))
    assert slots_of(consumer_of(pool), WorkerContext()) == Slots(5, 20, idle=True)


def test_a_pool_that_has_stopped_has_as_many_slots_as_before():
    pool = TaskPool(3)
    pool.on_stop()
    assert slots_of(consumer_of(pool), WorkerContext()) == Slots(3, 12, idle=True)


def applied(target, args, kwargs, **options):
    """As `celery.concurrency.base.apply_target`."""
    options["accept_callback"](1, 2.0)
    options["callback"](target(*args, **kwargs))


def watched(apply_async, *, processes):
    """The `apply_async` of a watched pool that applies so."""
    pool = SimpleNamespace(apply_async=apply_async)
    watch_runs(pool, WorkerContext(has_processes=processes))
    return pool.apply_async


def test_what_cannot_be_pickled_is_refused_and_its_job_forgotten_unless_a_process_has_it():
    def job_of(request, *, accepted=False):
        return SimpleNamespace(
            _accepted=accepted,
            _accept_callback=request.on_accepted,
            discard=lambda: discarded.append((request, accepted)),
        )

    def apply_async(*_args, **_options):
        raise TypeError("cannot pickle")

    discarded, refused = [], []
    unsent, another = (DeliveryRequest.__new__(DeliveryRequest) for _ in range(2))
    unsent.id, unsent.is_early, unsent.delivery = "an id", False, None
    unsent._message = SimpleNamespace(refuse=lambda reason, others_may: refused.append((reason, others_may)))
    jobs = [job_of(unsent), job_of(another), job_of(unsent, accepted=True)]
    pool = SimpleNamespace(apply_async=apply_async, _pool=SimpleNamespace(_cache=dict(enumerate(jobs))))
    watch_runs(pool, WorkerContext(has_processes=True))
    with pytest.raises(TaskRevokedError):
        pool.apply_async(print, accept_callback=unsent.on_accepted)
    assert discarded == [(unsent, False)]
    assert refused == [("it cannot be sent to a pool process: TypeError('cannot pickle')", True)]


def test_what_a_pool_of_threads_tells_of_a_run_reaches_its_callbacks_whole():
    told = []

    def note(*args, **kwargs):
        told.append((args, kwargs))

    def apply_async(_target, _args, _kwargs, **options):
        options["accept_callback"](1, at=2.0)
        options["callback"]("result", by=3)

    watched(apply_async, processes=False)(print, accept_callback=note, callback=note)
    assert told == [((1,), {"at": 2.0}), (("result",), {"by": 3})]


class Asked(DeliveryRequest):
    """A request of a task that was acknowledged when it began, or is when it ends."""

    id = "an id"

    def __init__(self, *, acks_late, given_back=False):
        self.is_early = not acks_late
        self._given_back = given_back
        self.delivery = SimpleNamespace(current=SimpleNamespace(carrier=None))
        self.told = []

    def dispatch(self):
        return True

    def ended(self):
        self.told.append("ended")

    def measure_run(self):
        self.told.append("measured")

    def on_accepted(self, *_):
        self.told.append("accepted")
        if self._given_back:
            raise GivenBackError(self.id)

    def apply(self, apply_async, *, processes):
        """Run it in a watched pool that applies so; what it was told."""
        watched(apply_async, processes=processes)(
            lambda: self.told.append("run"),
            accept_callback=self.on_accepted,
            callback=lambda _: self.told.append("success"),
            error_callback=lambda _: self.told.append("failure"),
        )
        return self.told


@pytest.mark.parametrize("processes", [True, False])
@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("acks_late", [True, False])
def test_the_end_of_a_run_that_was_acknowledged_before_is_told(processes, fails, acks_late):
    def apply_async(target, args, kwargs, **options):
        options["accept_callback"](1, 2.0)
        failed = fails and processes  # without processes failures come as results
        options["error_callback" if failed else "callback"](ended_with)

    ended_with = exc_info(ZeroDivisionError()) if fails else "result"
    told = Asked(acks_late=acks_late).apply(apply_async, processes=processes)
    end = "failure" if fails else "success"
    assert told == ["accepted", *([end] if acks_late else ["ended", end, "measured"])]


@pytest.mark.parametrize("where", ["accepted", "success"])
def test_where_the_pool_cannot_tell_of_a_run_its_message_comes_back(where):
    def raise_at(point, *_):
        if point == where:
            raise MemoryError

    came_back = []
    request = Asked(acks_late=True)
    request._message = SimpleNamespace(come_back=came_back.append)
    request.on_accepted = MethodType(lambda *_: raise_at("accepted"), request)
    watched(applied, processes=False)(
        lambda: request.told.append("run"),
        accept_callback=request.on_accepted,
        callback=lambda _: raise_at("success"),
    )
    assert [type(error) for error in came_back] == [MemoryError]
    assert request.told == ([] if where == "accepted" else ["run"])


def test_a_run_that_a_pool_of_threads_loses_is_known_to_be_gone_though_celery_keeps_its_request():
    waiting = []

    def apply_async(target, _args, _kwargs, **options):
        waiting.append((target, options))

    request = Asked(acks_late=True)
    request.apply(apply_async, processes=False)
    carrier = request.delivery.carrier
    assert carrier() is not None
    waiting.clear()
    assert carrier() is None


def test_what_was_given_back_is_not_run_and_nothing_is_raised_where_a_green_pool_would_print_it():
    request = Asked(acks_late=True, given_back=True)
    assert request.apply(applied, processes=False) == ["accepted"]


def test_an_error_of_a_run_is_told_as_a_process_would_tell_it():
    ended = []
    request = Asked(acks_late=True)
    watched(applied, processes=False)(
        lambda: 1 / 0, accept_callback=request.on_accepted, callback=ended.append
    )
    assert [type(result.exception.exc) for result in ended] == [ZeroDivisionError]


def test_a_run_of_no_request_of_ours_needs_no_callbacks_and_its_errors_are_its_callers():
    ran = []
    watched(applied, processes=False)(lambda: ran.append(1))
    assert ran == [1]
    with pytest.raises(ZeroDivisionError):
        watched(applied, processes=False)(lambda: 0, callback=lambda result: 1 / result)
    with pytest.raises(MemoryError):
        watched(raise_lack, processes=True)(print)


def raise_lack(*_, **__):
    raise MemoryError


def test_a_run_that_was_acknowledged_before_is_measured_though_nobody_else_hears_of_its_end():
    request = Asked(acks_late=False)
    watched(applied, processes=True)(lambda: request.told.append("run"), accept_callback=request.on_accepted)
    assert request.told == ["accepted", "run", "ended", "measured"]


def test_what_is_not_a_request_is_forgotten_with_the_pools_jobs():
    foreign = SimpleNamespace(_write_to=None, _accept_callback=None)
    pool = Pool(foreign)
    flush_only_unsent(pool)
    pool.flush()
    assert (pool.processes._cache, list(pool.processes.outbound_buffer)) == ({}, [])


@pytest.fixture
def hooks(monkeypatch):
    """What is called before the interpreter joins threads."""
    hooks = []
    monkeypatch.setattr(module, "call_before_threads_are_joined", hooks.append)
    return hooks


@pytest.fixture
def exits(monkeypatch):
    calls = []
    monkeypatch.setattr(module, "call_exit_hooks", lambda: calls.append("exit hooks"))
    monkeypatch.setattr(module.os, "_exit", calls.append)
    return calls


@pytest.fixture
def run():
    """A run in a pool of threads that goes on until the test is over."""
    over, began = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as executor:

        def go_on():
            began.set()
            over.wait(SOON)

        executor.submit(go_on)
        assert began.wait(SOON)
        (thread,) = executor._threads
        yield SimpleNamespace(pool=SimpleNamespace(executor=executor), thread=thread, over=over)
        over.set()


def stopping(pool):
    thread = threading.Thread(target=pool.on_stop, daemon=True)
    thread.start()
    return thread


def test_a_pool_waits_for_a_run_and_no_longer_once_that_is_left(run, hooks, monkeypatch):
    monkeypatch.setattr(module, "RECHECK_SECONDS", 0.01)
    worker = WorkerContext()
    leave_runs(run.pool, worker, None)
    stop = stopping(run.pool)
    stop.join(0.1)
    assert stop.is_alive()
    worker.left.add(run.thread.ident)
    stop.join(SOON)
    assert not stop.is_alive()
    assert run.thread.is_alive()
    assert len(hooks) == 1


def test_a_pool_whose_runs_end_has_ended(run, hooks):
    leave_runs(run.pool, WorkerContext(), None)
    stop = stopping(run.pool)
    run.over.set()
    stop.join(SOON)
    assert not stop.is_alive()
    assert not run.thread.is_alive()


def test_what_waits_in_a_pool_that_stops_is_not_run(run, hooks):
    waiting = run.pool.executor.submit(pytest.fail, "it was run")
    leave_runs(run.pool, WorkerContext(), None)
    run.over.set()
    run.pool.on_stop()
    assert waiting.cancelled()


def test_a_pool_without_threads_is_left_alone(hooks):
    pool = SimpleNamespace(executor=None)
    leave_runs(pool, WorkerContext(), None)
    assert not hasattr(pool, "on_stop")
    assert hooks == []


def test_a_worker_on_another_thread_does_not_end_the_interpreter(run, hooks):
    thread = threading.Thread(target=leave_runs, args=[run.pool, WorkerContext(), None])
    thread.start()
    thread.join()
    assert hooks == []
    run.over.set()


@pytest.mark.parametrize(("exitcode", "status"), [(None, 0), (1, 1)])
def test_the_interpreter_ends_at_once_where_a_run_is_left(run, hooks, exits, exitcode, status):
    worker = WorkerContext()
    leave_runs(run.pool, worker, SimpleNamespace(exitcode=exitcode))
    hooks[0]()
    assert exits == []
    worker.left.add(run.thread.ident)
    hooks[0]()
    assert exits == ["exit hooks", status]

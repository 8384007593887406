"""As many threads as there is work for; one that died or hangs is replaced, and its batch is concluded."""

import random
import threading

import pytest
from support.clock import FakeClock
from support.lanes import work_off
from support.processes import SOON, wait_until
from support.scheduler import Scheduler, scheduled

from celery_sqs_visibility.aws.port import BatchResult
from celery_sqs_visibility.delivery import pump as pump_module
from celery_sqs_visibility.delivery.pump import IDLE_SECONDS, Pump
from celery_sqs_visibility.errors import ThrottledError, UnavailableError
from celery_sqs_visibility.policy.health import HUNG_AFTER_SECONDS

MOST = 4
LATER = 60.0  # seconds, on a clock that stands still

#: pytest says so where a thread ends with an exception.
DIES = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


class Tasks:
    """Batches of one or more letters, due at an instant; each is sent when the test says so. An "x" fails."""

    def __init__(self, clock, pump=None):
        self.clock = clock
        self.pump = pump or Pump(clock)
        self.lane = self.pump.lane("does its work", MOST, self)
        self.waiting = []  # (instant, batch)
        self.sent = []
        self.raises = None
        self.sending = threading.Semaphore(0)
        self.let_go = threading.Semaphore(0)
        self.concluded = []
        self.over = threading.Semaphore(0)

    def add(self, *batches, at=0.0):
        with self.lane.lock:
            for batch in batches:
                self.waiting.append((at, batch))
                self.lane.wake()

    def due(self, _now):
        return min((at for at, _ in self.waiting), default=None)

    def ready(self):
        return sum(at <= self.clock.monotonic() for at, _ in self.waiting)

    def take(self, now):
        for entry in self.waiting:
            if entry[0] <= now:
                self.waiting.remove(entry)
                return entry[1]
        return None

    def send(self, batch, _since):
        self.sent.append(batch)
        self.sending.release()
        assert self.let_go.acquire(timeout=SOON)
        if self.raises is not None:
            raise self.raises
        return BatchResult({place: ThrottledError("slow") for place, one in enumerate(batch) if one == "x"})

    def conclude(self, batch, _since, failed):
        self.concluded.append((batch, sorted(failed)))
        self.over.release()

    def under_way(self, count):
        """Wait until that many more are being sent."""
        for _ in range(count):
            assert self.sending.acquire(timeout=SOON)

    def finish(self, count):
        self.let_go.release(count)
        for _ in range(count):
            assert self.over.acquire(timeout=SOON)

    def supervise(self):
        self.pump.replace_stuck(self.clock.monotonic())

    @property
    def threads(self):
        return set(self.pump._threads)

    def wake(self):
        with self.lane.lock:
            self.lane.wake()


def join(*threads):
    for thread in threads:
        thread.join(SOON)
        assert not thread.is_alive()


@pytest.fixture
def tasks():
    made = Tasks(FakeClock())
    made.lane.start()
    yield made
    made.let_go.release(100)
    with made.lane.lock:
        made.waiting.clear()
    made.lane.stop()
    join(*made.threads)


@pytest.mark.parametrize(("batches", "threads"), [("a", 1), ("abc", 3), ("abcdefgh", MOST)])
@pytest.mark.parametrize("wakes", ["each", "once"])
def test_there_are_as_many_threads_as_there_is_work_for_up_to_a_limit(tasks, batches, threads, wakes):
    assert tasks.threads == set()
    if wakes == "each":
        tasks.add(*batches)
    else:
        with tasks.lane.lock:
            tasks.waiting += [(0.0, batch) for batch in batches]
            tasks.lane.wake()
    tasks.under_way(threads)
    assert len(tasks.threads) == threads
    assert sorted(tasks.sent) == list(batches[:threads])
    tasks.finish(len(batches))
    assert sorted(batch for batch, _ in tasks.concluded) == list(batches)
    assert len(tasks.threads) <= MOST


def test_a_thread_that_is_free_does_it_instead_of_a_new_one(tasks):
    for batch in "abc":
        tasks.add(batch)
        tasks.finish(1)
    assert len(tasks.threads) <= 2  # the one before may still be about to wait


def test_what_is_due_later_needs_one_thread_and_no_more(tasks):
    tasks.add("a", "b", at=tasks.clock.monotonic() + LATER)
    assert len(tasks.threads) == 1
    tasks.clock.advance(LATER)
    tasks.wake()
    tasks.under_way(2)
    tasks.finish(2)


def test_while_all_are_busy_another_waits_for_what_falls_due(tasks):
    tasks.add("a")
    tasks.under_way(1)
    tasks.add("b", at=tasks.clock.monotonic() + LATER)
    assert len(tasks.threads) == 2
    tasks.clock.advance(LATER)
    tasks.wake()  # it sleeps, on a clock that stands still
    tasks.under_way(1)
    tasks.finish(2)


def test_lanes_share_the_threads_and_none_waits_for_another(tasks):
    other = Tasks(tasks.clock, tasks.pump)
    other.lane.start()
    tasks.add(*"abcdef")
    tasks.under_way(MOST)
    other.add("g")
    other.under_way(1)
    assert tasks.threads == other.threads
    other.finish(1)
    other.lane.stop()
    tasks.finish(6)
    assert sorted(batch for batch, _ in tasks.concluded) == list("abcdef")


def test_a_lane_that_ends_is_forgotten_and_takes_part_again_with_new_work(tasks):
    tasks.lane.stop()
    other = Tasks(tasks.clock, tasks.pump)
    other.lane.start()
    other.add("a")
    other.finish(1)
    wait_until(lambda: list(tasks.pump._lanes) == [other.lane], SOON, "the first lane to end")
    other.lane.stop()
    tasks.add("b")
    tasks.finish(1)


def test_what_its_last_batch_leaves_is_done_though_the_lane_was_forgotten_meanwhile(tasks, monkeypatch):
    concluded = tasks.conclude

    def leaves_work(batch, since, failed):
        if batch == "a":
            with tasks.lane.lock:
                tasks.pump._first()  # as another thread looks
                assert tasks.lane not in tasks.pump._lanes
                tasks.waiting.append((0.0, "b"))
        concluded(batch, since, failed)

    monkeypatch.setattr(tasks, "conclude", leaves_work)
    tasks.add("a")
    tasks.under_way(1)
    tasks.lane.stop()
    tasks.finish(2)
    assert [batch for batch, _ in tasks.concluded] == ["a", "b"]


def test_those_that_are_not_needed_any_more_end_but_one(tasks):
    tasks.add(*"abcd")
    tasks.under_way(MOST)
    threads = tasks.threads
    tasks.finish(MOST)
    tasks.add("for one to wait for", at=tasks.clock.monotonic() + 1e6)

    def one_is_left():
        """In the end: each lingers from when it had nothing more to do."""
        tasks.clock.advance(IDLE_SECONDS)
        with tasks.lane.lock:
            tasks.lane.wake()
        return len(tasks.threads) == 1

    wait_until(one_is_left, SOON, "the others to end")
    join(*(threads - tasks.threads))
    tasks.add("e")
    tasks.under_way(1)
    assert len(tasks.threads) == 2, "one sends, and one waits for what is due later"
    tasks.finish(1)


@pytest.mark.parametrize(
    ("raises", "failed", "lines"),
    [
        (None, [1, 3], 0),
        (UnavailableError("down"), [0, 1, 2, 3], 0),
        (ZeroDivisionError(), [0, 1, 2, 3], 1),
    ],
    ids=["some fail", "all fail", "a bug"],
)
def test_errors_are_told_by_position_and_what_is_raised_failed_for_all(tasks, caplog, raises, failed, lines):
    tasks.raises = raises
    tasks.add("oxox")
    tasks.finish(1)
    assert tasks.concluded == [("oxox", failed)]
    assert len(caplog.records) == lines


@pytest.mark.parametrize("method", ["take", "conclude"])
def test_a_bug_ends_no_thread(tasks, method, monkeypatch, caplog):
    monkeypatch.setattr(pump_module, "PAUSE_AFTER_BUG_SECONDS", 0.0)  # the clock stands still
    right = getattr(tasks, method)
    bugs = iter([ZeroDivisionError()])  # whichever thread comes first

    def fail_once(*arguments):
        bug = next(bugs, None)
        result = right(*arguments) if bug is None or method == "conclude" else None
        if bug is not None:
            raise bug
        return result

    setattr(tasks, method, fail_once)
    tasks.add("a", "b")
    tasks.finish(2)
    assert sorted(tasks.concluded) == [("a", []), ("b", [])]
    wait_until(lambda: caplog.messages, SOON, "the log line")
    assert caplog.messages == ["unexpected error in a thread that does its work; continuing"]


def test_where_no_thread_can_be_started_the_supervisor_tries_again(tasks, monkeypatch, caplog):
    with monkeypatch.context() as without:
        without.setattr(pump_module, "start_thread", lambda *_: None)
        tasks.add("a")
    assert tasks.threads == set()
    tasks.supervise()
    assert caplog.messages == ["cannot start a thread that does its work; it is tried again in a moment"]
    tasks.finish(1)


def test_before_the_start_nothing_is_done_and_a_stop_is_legal():
    tasks = Tasks(FakeClock())
    tasks.lane.stop()
    tasks.add("a")
    assert tasks.threads == set()
    tasks.let_go.release()
    assert work_off(tasks.lane) == 1  # but on the caller's own thread


def test_after_a_stop_threads_finish_and_end_and_new_work_starts_them_again(tasks):
    tasks.add(*"abcdef")
    tasks.lane.stop()
    threads = tasks.threads
    tasks.under_way(MOST)
    tasks.finish(6)
    join(*threads)
    wait_until(lambda: tasks.threads == set(), SOON, "the last to end")
    tasks.under_way(6 - MOST)
    tasks.add("a")
    tasks.under_way(1)
    (thread,) = tasks.threads
    tasks.finish(1)
    join(thread)


@DIES
@pytest.mark.parametrize("how", ["hangs", "died"])
def test_one_that_hangs_or_died_is_replaced_and_its_batch_failed(tasks, how, caplog):
    tasks.raises = SystemExit() if how == "died" else None
    tasks.add("abc")
    tasks.under_way(1)
    (first,) = tasks.threads
    if how == "died":
        tasks.let_go.release()
        join(first)
        tasks.raises = None
    else:
        tasks.clock.advance(HUNG_AFTER_SECONDS - 1)
        tasks.supervise()
        assert (tasks.threads, caplog.messages) == ({first}, []), "one that works is left alone"
        tasks.clock.advance(1)
    tasks.supervise()
    assert tasks.over.acquire(timeout=SOON)
    assert tasks.concluded == [("abc", [0, 1, 2])]
    assert first not in tasks.threads
    assert caplog.messages == [f"a thread that does its work {how}; another takes its place"]
    tasks.add("d")
    tasks.under_way(1)
    tasks.let_go.release(2)
    assert tasks.over.acquire(timeout=SOON)
    join(first)
    assert tasks.concluded[1:] == [("d", [])], "the late answer of the first counts for nothing"


def test_one_whose_request_goes_on_is_left_alone_however_long_it_takes(tasks):
    goes_on = tasks.lane.progress
    tasks.send = lambda _batch, _since: [slow() for _ in range(3)] and BatchResult({})

    def slow():
        tasks.clock.advance(HUNG_AFTER_SECONDS - 1)
        goes_on()
        tasks.supervise()

    tasks.add("a")
    assert tasks.over.acquire(timeout=SOON)
    assert tasks.concluded == [("a", [])]
    goes_on()  # of a thread that makes no request


def test_who_waits_hears_of_the_end_of_a_batch(tasks):
    tasks.add("a")
    tasks.under_way(1)
    heard = []

    def wait():
        with tasks.lane.lock:
            heard.append(tasks.lane.wait_until(lambda: bool(tasks.concluded), 10 * SOON))

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    wait_until(lambda: tasks.pump.waiting, SOON, "the other thread to wait")
    tasks.finish(1)
    join(waiter)
    assert heard == [True]


def test_work_is_late_while_no_thread_gets_on_with_it(tasks):
    late = tasks.lane.late
    assert late(LATER) == 0  # nothing is due
    tasks.add("a", "b")
    tasks.under_way(2)
    tasks.waiting.append((0.0, "c"))
    began = tasks.clock.monotonic()
    assert late(began + HUNG_AFTER_SECONDS - 1) == 0  # c waits, but a and b are sent
    tasks.waiting[:] = [(began + LATER, "c")]
    assert late(began + LATER + 1) == 1
    tasks.waiting.clear()
    tasks.finish(2)


def test_a_look_at_the_work_keeps_no_thread_from_it(tasks):
    tasks.waiting.append((0.0, "a"))  # and nobody has said so
    tasks.lane.late(0.0)
    tasks.under_way(1)
    tasks.finish(1)


class Timed:
    """Batches: the instant at which each is due, and the seconds that its request takes."""

    def __init__(self, scheduler):
        self.scheduler, self.clock = scheduler, scheduler.clock
        self.pump = Pump(self.clock)
        self.lane = self.pump.lane("does its work", MOST, self)
        self.pump._woken.woken_for_nothing = False  # a spare thread would wait less long
        self.waiting, self.sent_at = [], []

    def add(self, *batches):
        with self.lane.lock:
            self.waiting += batches
            self.lane.wake()

    def due(self, _now):
        return min((at for at, _ in self.waiting), default=None)

    def ready(self):
        return sum(at <= self.clock.monotonic() for at, _ in self.waiting)

    def take(self, now):
        due = [batch for batch in self.waiting if batch[0] <= now]
        return self.waiting.pop(self.waiting.index(due[0])) if due else None

    def send(self, batch, since):
        self.sent_at.append(since)
        self.scheduler.sleep(batch[1])
        return BatchResult({})

    def conclude(self, _batch, _since, _failed):
        pass


def test_a_spare_thread_that_ends_passes_a_wake_up_on():
    """Of two idle threads the one was woken that was idle for long enough to end; the other waited on."""
    scheduler = Scheduler(FakeClock(), random.Random(0))
    with scheduled(scheduler, "celery_sqs_visibility.delivery"):
        tasks = Timed(scheduler)
        scheduler.start(tasks.lane.start, "test")
        now = scheduler.clock.monotonic()
        scheduler.start(tasks.add, "test", (now, 0.1 * IDLE_SECONDS), (now, 0.9 * IDLE_SECONDS))
        scheduler.advance(1.2 * IDLE_SECONDS)
        assert len(tasks.pump._threads) == 2
        due = scheduler.clock.monotonic() + 0.01
        scheduler.start(tasks.add, "test", (due, 0))
        scheduler.advance(IDLE_SECONDS)
        assert tasks.sent_at[-1] == pytest.approx(due)
        scheduler.kill(scheduler.threads)

"""Python's `threading` on greenlets and a fake clock: every order of threads that a seed chooses.

One thread runs at a time. It may give way wherever it takes a lock, and always where it waits. Time passes
only when no thread can go on. Before it passes, each thread that waits for a condition is woken for nothing:
if it then goes on, it should have been notified, and a real wait would have ended by its timeout.
"""

import contextlib
import heapq
import itertools
import math
import select
import sys
import threading
from types import SimpleNamespace

import greenlet

#: Instants that are no further apart are one: sums of floats differ.
MOMENT = 1e-6

#: Steps of threads without time passing, after which they go round in circles.
MOST_SWITCHES = 100_000


class _ClosedError(BaseException):
    """The test is over, or the simulated process dies."""


class Thread:
    """A simulated thread, in place of `threading.Thread`."""

    daemon, ident = True, 1

    def __init__(self, scheduler, target, name, number):
        self.name = name
        self._number = number
        self._scheduler = scheduler
        self._target = target
        self.greenlet = greenlet.greenlet(self._run, parent=scheduler.hub)
        self.alive = True
        self.condition = None  # that it waits for
        self.until = math.inf  # and how long
        self.notified = False
        self.waits = 0  # so many times it has waited: an older timeout is none
        self.readable = None  # a file descriptor for which it waits
        self.locks = 0  # that it holds

    def __hash__(self):
        return self._number  # the same in each run, and so the order in sets

    def __repr__(self):
        return f"<{self.name}>"

    def is_alive(self):
        return self.alive

    def _run(self):
        try:
            self._target()
        except _ClosedError:
            pass
        except BaseException as error:  # noqa: BLE001 - raised by `advance`
            self._scheduler.errors.append(error)
        finally:
            self.alive = False


class Lock:
    """`threading.Lock` and `threading.RLock`."""

    def __init__(self, scheduler, *, reentrant):
        self._scheduler = scheduler
        self._reentrant = reentrant
        self._owner = None
        self._count = 0
        self._waiting = []

    def acquire(self, blocking=True, timeout=-1):
        scheduler = self._scheduler
        me = scheduler.me
        if self._reentrant and self._owner is me:
            self._count += 1
            return True
        scheduler.give_way()
        while self._owner is not None and not scheduler.closed:
            if not blocking:
                return False
            self._waiting.append(me)
            scheduler.block()
        self._owner, self._count = me, 1
        me.locks += 1
        return True

    def release(self):
        self._count -= 1
        if not self._count:
            self.free()

    def free(self):
        """Release it entirely."""
        if self._owner is not None:
            self._owner.locks -= 1
        self._owner, self._count = None, 0
        self._scheduler.ready += self._waiting
        self._waiting = []

    @property
    def owned(self):
        return self._owner is self._scheduler.me

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *_):
        self.release()

    def held(self):
        """So many times by the thread that has it."""
        return self._count

    def take(self, times):
        """As it was before `free`."""
        self.acquire()
        self._count = times


class Condition:
    """`threading.Condition`."""

    def __init__(self, scheduler, lock=None, *, woken_for_nothing=True):
        self._scheduler = scheduler
        self._lock = lock or Lock(scheduler, reentrant=True)
        self.woken_for_nothing = woken_for_nothing
        self.acquire, self.release = self._lock.acquire, self._lock.release
        self.waiting = []

    def __enter__(self):
        return self._lock.__enter__()

    def __exit__(self, *exc_info):
        return self._lock.__exit__(*exc_info)

    def wait(self, timeout=None):
        assert self._lock.owned, "who waits has the lock"
        times, scheduler = self._lock.held(), self._scheduler
        self._lock.free()
        try:
            return scheduler.wait(self, timeout)
        finally:
            self._lock.take(times)

    def wait_for(self, predicate, timeout=None):
        now = self._scheduler.clock.monotonic
        until = None if timeout is None else now() + timeout
        while not (result := predicate()):
            if until is not None and until - now() <= 0:
                break
            self.wait(None if until is None else until - now())
        return result

    def notify(self, n=1):
        assert self._lock.owned or self._scheduler.closed, "who notifies has the lock"
        for thread in self.waiting[:n]:
            self.waiting.remove(thread)
            thread.notified = True
            self._scheduler.ready.append(thread)

    def notify_all(self):
        self.notify(len(self.waiting))


class Scheduler:
    """Threads, of which `chance` lets one run. `advance` and `kill` belong to the test.

    Args:
        clock: the fake one.
        chance: a `random.Random`.
        switches: how likely a thread gives way where it takes a lock.
        check: is called whenever no thread can go on, if any ran.
    """

    def __init__(self, clock, chance, switches=0.1, check=lambda: None):
        self.clock = clock
        self.closed = False
        self.hub = greenlet.getcurrent()
        self._chance, self._switches, self._check = chance, switches, check
        self.test = SimpleNamespace(locks=0)  # the test's own thread
        self.me = self.test
        self.ready = []
        self.errors = []
        self.threads = []
        self._numbers = itertools.count()
        self._timeouts = []  # a heap: (instant, tie-break, thread, its number of waits)
        self._alone = False  # a thread is woken for nothing: no other runs
        self._active = True  # whether any thread ran that a condition keeps waiting

    # What the package calls

    def start(self, target, name, *args):
        """In place of `start_thread`."""
        thread = Thread(self, lambda: target(*args), name, next(self._numbers))
        self.threads.append(thread)
        self.ready.append(thread)
        return thread

    def threading(self, *, woken_for_nothing=True):
        """In place of the module."""
        return SimpleNamespace(
            Lock=lambda: Lock(self, reentrant=False),
            RLock=lambda: Lock(self, reentrant=True),
            Condition=lambda lock=None: Condition(self, lock, woken_for_nothing=woken_for_nothing),
            Thread=Thread,
            current_thread=lambda: self.me,
            get_ident=lambda: id(self.me),
            main_thread=threading.main_thread,
            TIMEOUT_MAX=threading.TIMEOUT_MAX,
        )

    # What threads do

    def give_way(self):
        """Maybe another thread runs now."""
        if self._may_block() and not self._alone and self._chance.random() < self._switches:
            self.ready.append(self.me)
            self.block()

    def block(self):
        """Until it is ready again."""
        assert self._may_block() or self.closed, "the test waits for a lock that a waiting thread has"
        if self.closed:
            raise _ClosedError
        self.hub.switch()

    def wait(self, condition, timeout):
        """For a notify, whose result it is, or a timeout."""
        assert self._may_block() or self.closed, "the test waits"
        me = self.me
        me.waits += 1
        me.condition, me.notified = condition, False
        me.until = math.inf if timeout is None else self.clock.monotonic() + max(0.0, timeout)
        if me.until < math.inf:
            heapq.heappush(self._timeouts, (me.until, next(self._numbers), me, me.waits))
        condition.waiting.append(me)
        try:
            self.block()
        finally:
            me.condition, me.until = None, math.inf
            if me in condition.waiting:
                condition.waiting.remove(me)
        return me.notified

    def sleep(self, seconds):
        """As in a request: whoever sleeps has no lock."""
        assert not self.me.locks, "no request under a lock"
        if seconds > 0:
            self.wait(Condition(self, woken_for_nothing=False), seconds)

    def wait_readable(self, fd):
        """As an event loop does."""
        me = self.me
        me.readable = fd
        try:
            self.block()
        finally:
            me.readable = None

    def _may_block(self):
        return self.me is not self.test

    # What the test does

    def advance(self, seconds):
        """Let so much time pass; what a thread raises is raised here."""
        until = self.clock.monotonic() + seconds
        while True:
            self._run_ready()
            if self._active:
                self._active = False
                self._check()
                self._wake_for_nothing()
            instants = [at for at, _, thread, waits in self._timeouts[:1]]
            if not instants or instants[0] > until:
                break
            self._turn_to(instants[0])
        self._turn_to(until)

    def _turn_to(self, instant):
        self.clock.advance(max(0.0, instant - self.clock.monotonic()))

    def kill(self, threads):
        """They run no more."""
        for thread in threads:
            if thread.alive:
                self.closed = True
                self.me = thread
                try:
                    if thread.greenlet:  # it has begun
                        thread.greenlet.throw(_ClosedError)
                finally:
                    self.me, self.closed = self.test, False
                thread.alive = False
                thread.condition = thread.readable = None
                thread.waits += 1
        self.threads = [thread for thread in self.threads if thread.alive]
        self.ready = [thread for thread in self.ready if thread.alive]

    def _run_ready(self):
        for _ in range(MOST_SWITCHES):
            while self._timeouts and self._timeouts[0][0] <= self.clock.monotonic() + MOMENT:
                at, _, thread, waits = heapq.heappop(self._timeouts)
                self._turn_to(at)
                if thread.condition is not None and thread.waits == waits and not thread.notified:
                    thread.condition.waiting.remove(thread)
                    thread.condition = None
                    self.ready.append(thread)
            if not self.ready or self._chance.random() < self._switches:
                self._look_at_descriptors()
            if not self.ready:
                return
            thread = self.ready.pop(self._chance.randrange(len(self.ready)))
            self._resume(thread)
        circle = ", ".join(f"{thread} in {_where(thread)}" for thread in self.threads if thread.notified)
        raise AssertionError(f"threads go round in circles: {thread}, {self.ready}, {circle}")

    def _look_at_descriptors(self):
        for thread in self.threads:
            if thread.readable is not None and select.select([thread.readable], [], [], 0)[0]:
                thread.readable = None
                self.ready.append(thread)

    def _resume(self, thread):
        if not thread.alive:
            return
        self.me = thread
        try:
            thread.greenlet.switch()
        finally:
            self.me = self.test
        self._active = True
        if not thread.alive:
            self.threads.remove(thread)
        if self.errors:
            raise self.errors.pop()

    def _wake_for_nothing(self):
        """Each thread that waits: it goes on waiting, no less long, and gives nobody anything to do."""
        for thread in [each for each in self.threads if each.condition is not None]:
            condition, until = thread.condition, thread.until
            if not condition.woken_for_nothing:
                continue
            place = condition.waiting.index(thread)
            where = _where(thread)
            condition.waiting.remove(thread)
            self._alone = True
            try:
                self._resume(thread)
            finally:
                self._alone = False
            waits = thread.condition is condition and thread.until >= until - MOMENT and not self.ready
            assert waits, f"nobody has notified {thread}, which need not wait at {where}"
            condition.waiting.remove(thread)
            condition.waiting.insert(place, thread)
        self._active = False


def _where(thread):
    """The caller of `threading` in a waiting thread."""
    frame = thread.greenlet.gr_frame
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return (
        "nowhere" if frame is None else f"{frame.f_code.co_name}, {frame.f_code.co_filename}:{frame.f_lineno}"
    )


@contextlib.contextmanager
def scheduled(scheduler, package, *, apart=()):
    """Inside, the modules of the package have the scheduler's threads; those `apart` are not checked."""
    found = [module for name, module in sys.modules.items() if name.startswith(package)]
    checked, unchecked = scheduler.threading(), scheduler.threading(woken_for_nothing=False)
    replaced = []
    for module in found:
        for name, value in (
            ("threading", unchecked if module.__name__ in apart else checked),
            ("start_thread", scheduler.start),
        ):
            if hasattr(module, name):
                replaced.append((module, name, getattr(module, name)))
                setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in replaced:
            setattr(module, name, value)

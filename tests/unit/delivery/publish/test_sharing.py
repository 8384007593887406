"""Concurrent publications: what shares a request, who hears of what, and who is never left waiting."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.processes import SOON

from celery_sqs_visibility.aws.fake import FakeObjectStore, FakeSQS
from celery_sqs_visibility.aws.port import BatchResult, OutgoingMessage
from celery_sqs_visibility.aws.queues import Queues
from celery_sqs_visibility.delivery.payloads.outgoing import OutgoingMessages, PayloadStore
from celery_sqs_visibility.delivery.publish import sharing
from celery_sqs_visibility.delivery.publish.sharing import (
    MIN_CALLERS,
    Gate,
    Publication,
    SharedRequests,
    Traffic,
)
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    AnswerLostError,
    MessageTooLargeError,
    RequestRefusedError,
    ThrottledError,
)
from celery_sqs_visibility.policy.quotas import BATCH_ENTRIES, MESSAGE_BYTES


class HeldSQS(FakeSQS):
    """Each request waits until the test lets it go; `answers` are those of the next batches."""

    def __init__(self):
        super().__init__()
        self.begun = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)
        self.answers = []
        self.meanwhile = None

    def send(self, queue_url, message):
        self._hold()
        return super().send(queue_url, message)

    def send_batch(self, queue_url, messages, *, urgent=False):
        assert urgent
        self._hold()
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, BaseException):
            raise answer
        result = super().send_batch(queue_url, messages)
        return BatchResult(answer) if answer else result

    def _hold(self):
        self.begun.release()
        assert self.gate.acquire(timeout=SOON)
        if self.meanwhile:
            self.meanwhile()


class World:
    """Callers in threads of their own."""

    def __init__(self, threads):
        self.sqs = HeldSQS()
        self.queue = Queues(self.sqs).find_or_create("q")
        self.shared = SharedRequests(OutgoingMessages())
        self._threads = threads

    def call(self, *bodies):
        """Each by a caller that has arrived when the next one comes."""
        return [self._call(body) for body in bodies]

    def _call(self, body):
        before = self._arrived()
        called = self._threads.submit(self.shared.send, self.queue, OutgoingMessage(body))
        for _ in range(int(SOON / 0.001)):
            if self._arrived() != before or called.done():
                return called
            threading.Event().wait(0.001)
        raise AssertionError(f"{body} did not arrive")

    def _arrived(self):
        with self.shared._lock:
            traffic = self.shared._traffic.get(self.queue)
            return traffic and (traffic.sending, len(traffic.waiting))

    def begin(self):
        assert self.sqs.begun.acquire(timeout=SOON)

    def answer(self, requests=1):
        self.sqs.gate.release(requests)

    def requests(self):
        sent = [arguments for action, arguments in self.sqs.calls if action.startswith("Send")]
        return [
            [message.body for message in arguments.get("messages", [arguments.get("message")])]
            for arguments in sent
        ]


@pytest.fixture
def world(monkeypatch):
    """One in which a caller is woken by an answer, and never waits until it leads by itself."""
    monkeypatch.setattr(sharing, "WAKE_SECONDS", SOON)
    monkeypatch.setattr(sharing, "GATHER_SECONDS", 0)
    with ThreadPoolExecutor(32) as threads:
        world = World(threads)
        yield world
        world.answer(100)


@pytest.fixture
def followers(world):
    """Three callers that wait for the first one's request, and share the next."""
    (first,) = world.call("first")
    called = world.call("a", "b", "c")
    world.answer()
    first.result(SOON)
    return called


def test_a_lone_caller_makes_the_request_that_it_made_and_leaves_nothing_behind(world):
    world.answer(2)
    for body in ("a", "b"):
        world.shared.send(world.queue, OutgoingMessage(body))
    assert [action for action, _ in world.sqs.calls if action.startswith("Send")] == ["SendMessage"] * 2
    assert not world.shared._traffic
    assert not world.shared._inside


def test_what_comes_while_a_request_is_under_way_goes_together_and_returns_when_it_is_stored(world):
    (first,) = world.call("first")
    others = world.call("a", "b", "c")
    world.answer()
    first.result(SOON)
    world.begin()
    world.begin()
    assert not any(each.done() for each in others)
    world.answer()
    assert [each.result(SOON) for each in others] == [None] * 3
    assert world.requests() == [["first"], ["a", "b", "c"]]
    assert not world.shared._traffic


def test_enough_callers_wait_for_no_other_request(world):
    called = world.call("first", *map(str, range(MIN_CALLERS)))
    world.begin()
    world.begin()
    world.answer(2)
    assert [each.result(SOON) for each in called] == [None] * (1 + MIN_CALLERS)
    assert sorted(map(len, world.requests())) == [1, MIN_CALLERS]


def test_queues_share_nothing(world):
    world.answer(2)
    (first,) = world.call("first")
    world.queue = Queues(world.sqs).find_or_create("another")
    world.call("a")[0].result(SOON)
    first.result(SOON)


def test_each_caller_has_its_own_error(world, followers):
    world.sqs.answers = [{1: ThrottledError("slow down", code="RequestThrottled", action="SendMessageBatch")}]
    world.answer()
    assert followers[0].exception(SOON) is followers[2].exception(SOON) is None
    error = followers[1].exception(SOON)
    assert isinstance(error, ThrottledError)
    assert (str(error), error.code, error.action) == ("slow down", "RequestThrottled", "SendMessageBatch")


@pytest.mark.parametrize("kind", [ThrottledError, AnswerLostError, AccessDeniedError])
def test_a_request_that_fails_as_a_whole_fails_for_each_by_an_exception_of_its_own(world, followers, kind):
    world.sqs.answers = [kind("no")]
    world.answer()
    errors = [each.exception(SOON) for each in followers]
    assert [type(error) for error in errors] == [kind] * 3
    assert len(set(map(id, errors))) == 3
    assert world.requests() == [["first"]]


def test_a_request_that_is_refused_as_a_whole_is_sent_one_by_one(world, followers):
    world.sqs.answers = [RequestRefusedError("one of them is wrong")]
    world.answer(4)
    assert [each.result(SOON) for each in followers] == [None] * 3
    assert sorted(world.requests()) == [["a"], ["b"], ["c"], ["first"]]


def test_what_is_too_large_is_refused_at_once_and_alone(world):
    (first,) = world.call("first")
    (large,) = world.call("x" * (MESSAGE_BYTES + 1))
    assert isinstance(large.exception(SOON), MessageTooLargeError)
    assert not first.done()


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit, MemoryError, ZeroDivisionError])
def test_a_leader_that_is_ended_leaves_nobody_waiting(world, followers, end):
    world.begin()
    world.begin()
    later = world.call("d", "e")
    world.sqs.answers = [end()]
    world.answer(2)
    assert isinstance(followers[0].exception(SOON), end)
    assert [type(each.exception(SOON)) for each in followers[1:]] == [AnswerLostError] * 2
    assert [each.result(SOON) for each in later] == [None] * 2
    assert world.requests() == [["first"], ["d", "e"]]
    assert not world.shared._traffic
    assert not world.shared._inside


@pytest.mark.parametrize("interrupted", ["a", "b"])
def test_a_caller_that_is_interrupted_while_it_waits_hands_the_lead_on(world, monkeypatch, interrupted):
    class Interrupted(Gate):
        def wait(self, seconds):
            super().wait(seconds)
            raise KeyboardInterrupt

    (first,) = world.call("first")
    called = {}
    for body in "abc":
        gates = {"woken": Interrupted()} if body == interrupted else {}
        monkeypatch.setattr(sharing, "Publication", partial(Publication, **gates))
        (called[body],) = world.call(body)
    with world.shared._lock:
        waiting = {each.message.body: each for each in world.shared._traffic[world.queue].waiting}
    waiting[interrupted].woken.open()
    world.answer(2)
    first.result(SOON)
    ended = called.pop(interrupted)
    assert isinstance(ended.exception(SOON), KeyboardInterrupt)
    assert [each.result(SOON) for each in called.values()] == [None] * 2
    assert not world.shared._traffic


def test_a_signal_handler_that_publishes_waits_for_nobody(world):
    def handle():
        world.sqs.meanwhile = None
        world.shared.send(world.queue, OutgoingMessage("of the handler"))

    world.sqs.meanwhile = handle
    world.answer(2)
    world.shared.send(world.queue, OutgoingMessage("interrupted"))
    assert world.requests() == [["of the handler"], ["interrupted"]]


def test_a_leader_that_vanished_is_waited_for_once(world, monkeypatch):
    monkeypatch.setattr(sharing, "WAKE_SECONDS", 0.01)
    world.shared._traffic[world.queue] = Traffic(sending=1)
    world.answer(2)
    world.shared.send(world.queue, OutgoingMessage("a"))
    assert not world.shared._traffic
    world.shared.send(world.queue, OutgoingMessage("b"))


@pytest.mark.parametrize(("callers", "batch"), [(6, 5), (10, 5), (16, 8), (20, 10), (50, 10)])
def test_half_of_the_callers_share_a_request_while_the_other_half_gathers(callers, batch):
    traffic = Traffic()
    returned = [Publication(OutgoingMessage(str(number)), 1) for number in range(callers)]
    under_way, sizes = [], []
    for _ in range(50 * callers):
        if not returned:
            done = under_way.pop(0)
            traffic.sending -= len(done)
            if (leader := traffic.choose_leader()) is not None:
                under_way.append(traffic.take(leader))
            returned += done
        publication = Publication(OutgoingMessage("m"), returned.pop(0).size)
        if traffic.arrive(publication):
            under_way.append(traffic.take(publication))
            sizes.append(len(under_way[-1]))
    assert set(sizes[-3:]) == {batch}


ARRIVE, TAKE, END = "arrive", "take", "end"


STEPS = st.lists(st.sampled_from([ARRIVE, ARRIVE, ARRIVE, TAKE, END]))


@given(STEPS, st.lists(st.integers(1, MESSAGE_BYTES)))
def test_each_is_taken_once_in_order_and_somebody_leads_whenever_nothing_is_under_way(steps, sizes):
    traffic, arrived, leaders, batches, under_way = Traffic(1), [], [], [], [1]
    for step in steps:
        if step == ARRIVE:
            size = sizes.pop() if sizes else 1
            arrived.append(Publication(OutgoingMessage(str(len(arrived))), size))
            if traffic.arrive(arrived[-1]):
                leaders.append(arrived[-1])
        elif step == TAKE and leaders:
            leader = leaders.pop(0)
            if not leader.taken:
                batches.append(traffic.take(leader))
                under_way.append(len(batches[-1]))
        elif step == END and under_way:
            traffic.sending -= under_way.pop(0)
            if (leader := traffic.choose_leader()) is not None:
                leaders.append(leader)
        assert traffic.sending or not traffic.waiting or any(not leader.taken for leader in leaders)
    taken = [publication for batch in batches for publication in batch]
    assert len(taken) == len(set(map(id, taken)))
    assert [each for each in arrived if not each.taken] == traffic.waiting
    for batch in batches:
        assert len(batch) <= BATCH_ENTRIES
        assert len(batch) == 1 or sum(each.size for each in batch) <= MESSAGE_BYTES
        assert batch[1:] == sorted(batch[1:], key=arrived.index)


def test_a_message_whose_payload_goes_to_s3_shares_no_request(world):
    world.shared = SharedRequests(OutgoingMessages(PayloadStore(FakeObjectStore(), threshold=100)))
    (first,) = world.call("first")
    world.begin()
    world.answer(2)
    world.shared.send(world.queue, OutgoingMessage("x" * 200))
    first.result(SOON)
    assert [len(bodies) for bodies in world.requests()] == [1, 1]


def test_no_message_waits_for_anothers_upload(world):
    class HeldStore(FakeObjectStore):
        def put(self, *arguments):
            uploading.set()
            assert uploaded.wait(SOON)
            super().put(*arguments)

    uploading, uploaded = threading.Event(), threading.Event()
    world.shared = SharedRequests(OutgoingMessages(PayloadStore(HeldStore(), threshold=100)))
    large = world._threads.submit(world.shared.send, world.queue, OutgoingMessage("x" * 200))
    assert uploading.wait(SOON)
    (small,) = world.call("small")
    assert world.sqs.begun.acquire(timeout=0), "it is sent, and gathers no others"
    uploaded.set()
    world.answer(2)
    for sent in (large, small):
        sent.result(SOON)


def test_who_has_waited_and_then_goes_alone_hears_that_sqs_refuses_the_message(world):
    (first,) = world.call("first")
    (second,) = world.call("second")
    world.begin()
    world.answer()
    first.result(SOON)
    world.begin()
    world.sqs.fail_next("SendMessage", RequestRefusedError("no"))
    world.answer()
    with pytest.raises(RequestRefusedError, match="no"):
        second.result(SOON)

"""Whatever SQS and the network do: no exit, no silence, nothing lost, back at work within three seconds."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections import Counter
from dataclasses import dataclass

import pytest
from support.app import behind, close_app, make_app
from support.faults import (
    Disconnected,
    black_hole,
    error,
    fail_entries,
    json_answer,
    latency,
    lose_response,
    reset_connection,
)
from support.processes import RECOVERY

BEGIN, END = "cannot receive from SQS: ", "can receive from SQS again"
RECEIVE, DELETE, CHANGE = "ReceiveMessage", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"


@dataclass
class Outcome:
    """What became of the tasks that were sent while a fault lasted."""

    keys: list
    lost: set
    more_than_once: set
    seconds_to_recover: float
    attempts: int

    @property
    def row(self):
        return {"keys": self.keys, "seconds": self.seconds_to_recover, "ended": "started"}


class Trial:
    """A worker that has proved to work, and a producer whose sends no fault can reach."""

    def __init__(self, site, emulator, **options):
        self.site = site
        self.app = make_app("producer", behind(emulator.url, site.config), set_as_current=False)
        self.worker = site.start(**{"pool": "threads", **options})
        self.keys = []
        self.send("warm-up")
        site.diary.wait_for("started", key="warm-up")
        site.proxy.wait_for_calls(DELETE)

    def send(self, key, task="quick", *args):
        self.keys.append(key)
        self.app.send_task(f"work.{task}", (key, *args))

    def endure(self, fault, seconds):
        """Send tasks while the fault lasts, and a fresh one when it is over; all of them are done."""
        site = self.site
        with fault:
            began = time.monotonic()
            for number in range(4):
                self.send(f"during {number}")
                time.sleep(seconds / 4)
        ended = time.monotonic()
        self.send("fresh")
        (fresh, *_) = site.diary.wait_for("started", key="fresh")
        for key in self.keys:
            site.diary.wait_for("started", key=key, timeout=60)
        site.proxy.wait_for(lambda _: site.counts() == (0, 0), timeout=60)
        runs = Counter(entry["key"] for entry in site.diary.entries("started"))
        return Outcome(
            keys=list(self.keys),
            lost={key for key in self.keys if not runs[key]},
            more_than_once={key for key in self.keys if runs[key] > 1},
            seconds_to_recover=fresh["monotonic"] - ended,
            attempts=sum(began <= call.started < ended for call in site.proxy.calls(RECEIVE)),
        )

    def lines(self, text):
        return sum(text in line for line in self.worker.log.splitlines())

    @property
    def late_answers(self):
        """Lines that may be the emulator's doing, where nothing else keeps it from answering."""
        return self.lines("gets no answer")


@pytest.fixture
def make_trial(make_site, emulator):
    trials = []

    def make(settings=None, *, worker=None, **options):
        trial = Trial(make_site(settings, **options), emulator, **(worker or {}))
        trials.append(trial)
        return trial

    yield make
    for trial in trials:
        close_app(trial.app)


@contextlib.contextmanager
def refused(site):
    site.proxy.refuse()
    yield
    site.proxy.accept()


@contextlib.contextmanager
def injected(site, fault, *actions, **how):
    with site.proxy.inject(fault, *actions, **how):
        yield


@contextlib.contextmanager
def answers_lost(site):
    """Lasts until the last answer is lost: a long poll under way takes what comes after."""
    with injected(site, lose_response()):
        yield
    ended = time.monotonic()
    site.proxy.wait_for(lambda _: all(call.started > ended for call in site.proxy.in_flight()))


def everywhere(fault, **how):
    return functools.partial(injected, fault=fault, **how)


def in_receives(fault, **how):
    def put(site):
        return injected(site, fault, RECEIVE, **how)

    return put


@contextlib.contextmanager
def deleted_queue(site):
    url = site.url
    site.sqs.delete_queue(QueueUrl=url)
    yield
    site.create_queue()


def errors(code, status=400, *, seconds=3, receives_only=False, message="injected by the test"):
    """A row of `FAULTS`: every request, or every receive, is refused."""
    put = in_receives if receives_only else everywhere
    shown = f"{status} `{code}`" if status == 429 or status >= 500 else f"`{code}`"
    asked = "receive" if receives_only else "request"
    return put(error(code, status, message)), seconds, f"{shown} to every {asked}"


SKEWED = "Signature expired: 20260101T000000Z is now earlier than ..."
#: How to put a fault in place, for how many seconds, and what docs/reliability.md says of it.
FAULTS = {
    "throttled": errors("RequestThrottled", seconds=4),
    "throttled by KMS": errors("KmsThrottled", receives_only=True),
    "429": errors("TooManyRequests", 429, receives_only=True),
    "over limit": errors("OverLimit", 403, receives_only=True),
    "500": errors("InternalFailure", 500, seconds=4),
    "503": errors("ServiceUnavailable", 503),
    "an error nobody knows": errors("SomethingNew", receives_only=True),
    "a malformed answer": (
        in_receives(lambda *_: json_answer(200, {"Messages": "none"})),
        3,
        "text where a list of messages should be",
    ),
    "unsigned": errors("MissingAuthenticationToken", 403),
    "invalid credentials": errors("InvalidClientTokenId", 403, seconds=6),
    "expired credentials": errors("ExpiredTokenException", 403),
    "clock skew": errors("InvalidSignatureException", 403, message=SKEWED),
    "no permission": errors("AccessDeniedException", 403, seconds=12),
    "no permission for the key": errors("KmsAccessDenied", 403, receives_only=True),
    "no such queue": errors("QueueDoesNotExist"),
    "refused": (refused, 6, "every connection refused"),
    "reset": (everywhere(reset_connection()), 4, "every connection reset before the request is read"),
    "answers lost": (answers_lost, 4, "every request carried out, its answer lost"),
    "black hole": (everywhere(black_hole()), 8, "no request answered"),
    "a minute's throttling": errors("RequestThrottled", seconds=60),
    "a long black hole": (everywhere(black_hole()), 40, "no request answered"),
}


@pytest.mark.parametrize("name", sorted(FAULTS, key=lambda name: -FAULTS[name][1]))
def test_a_fault_is_ridden_out(make_trial, name, reliability):
    put, seconds, told = FAULTS[name]
    trial = make_trial(visibility_timeout=5, wait_time_seconds=1)
    outcome = trial.endure(put(trial.site), seconds)
    trial.worker.wait_for_log(END)
    assert not outcome.lost
    assert outcome.seconds_to_recover < RECOVERY
    assert trial.worker.running
    late = 0 if "black hole" in name else trial.late_answers
    assert trial.lines(BEGIN) - late <= 1
    assert trial.lines(END) <= trial.lines(BEGIN)
    assert trial.lines("; trying again") - late <= 2, "of receiving, and of deleting what was under way"
    assert trial.lines("Traceback") == trial.lines("botocore") == trial.lines("urllib3") == 0
    assert outcome.attempts <= 12 + 2 * seconds, "it backs off"
    assert outcome.attempts or name == "refused"
    if name != "answers lost" and seconds < 10:
        assert len(outcome.more_than_once) <= 1, "but for what was under way, nothing runs twice"
    reliability(name, f"{told}, {seconds} s", **outcome.row)


@pytest.mark.parametrize("pool", ["prefork", "solo", "gevent", "eventlet"])
def test_a_black_hole_is_ridden_out_on_every_pool(make_trial, pool, reliability):
    concurrency = 1 if pool == "solo" else 2
    trial = make_trial(wait_time_seconds=1, worker={"pool": pool, "concurrency": concurrency})
    outcome = trial.endure(everywhere(black_hole())(trial.site), 5)
    trial.worker.wait_for_log(END)
    assert not outcome.lost
    assert outcome.seconds_to_recover < RECOVERY
    assert trial.worker.running
    assert trial.lines(BEGIN) == trial.lines(END) == 1
    reliability("black hole, on every pool", "no request answered, 5 s", **outcome.row)


@contextlib.contextmanager
def hole_that_keeps_what_fell_in(site, over):
    """Afterwards new requests are answered; those it took are not, and their connections stay open."""

    def fault(request, forward, removed):
        over.wait()
        raise Disconnected("a black hole")

    with site.proxy.inject(fault):
        yield


def test_what_fell_into_a_black_hole_is_not_waited_for(make_trial, reliability):
    trial = make_trial(wait_time_seconds=1)
    over = threading.Event()
    try:
        outcome = trial.endure(hole_that_keeps_what_fell_in(trial.site, over), 8)
        trial.worker.wait_for_log(END)
        time.sleep(3)  # the first poll of it gives up only now, and that is no news
        assert not outcome.lost
        assert outcome.seconds_to_recover < RECOVERY
        assert trial.lines(BEGIN) == trial.lines(END) == 1
        told = "what was asked within 8 s is never answered, its connections stay"
        reliability("black hole that keeps what fell in", told, **outcome.row)
    finally:
        over.set()


def test_a_black_hole_under_long_polls_is_ridden_out(make_trial, reliability):
    trial = make_trial(wait_time_seconds=20)
    outcome = trial.endure(everywhere(black_hole())(trial.site), 8)
    assert not outcome.lost
    assert outcome.seconds_to_recover < RECOVERY
    assert trial.worker.running
    reliability("black hole under long polls", "no request answered, 8 s; polls wait 20 s", **outcome.row)


def test_a_queue_that_was_deleted_is_polled_when_it_is_there_again(make_trial, reliability):
    trial = make_trial(wait_time_seconds=1)
    with deleted_queue(trial.site):
        trial.worker.wait_for_log(BEGIN)
        time.sleep(6)
    ended = time.monotonic()
    trial.send("fresh")
    (fresh,) = trial.site.diary.wait_for("started", key="fresh")
    seconds = fresh["monotonic"] - ended
    assert seconds < RECOVERY
    assert trial.lines(BEGIN) - trial.late_answers <= 1
    reliability("queue deleted", "and created again 6 s later", ["fresh"], seconds=seconds, ended="started")


def write_credentials(path, key):
    new = path.with_suffix(".new")
    new.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = hush\n")
    new.replace(path)


def expired(key):
    """Requests that are signed with that key are refused."""
    refuse = error("ExpiredTokenException", 403, "The security token included in the request is expired")

    def fault(request, forward, removed):
        signed_with = request.headers.get("authorization", "")
        return refuse(request, forward, removed) if key in signed_with else forward(request)

    return fault


def test_credentials_rotated_in_their_file_are_taken_up(make_trial, tmp_path, reliability):
    path = tmp_path / "credentials"
    write_credentials(path, "AKIAOLD")
    env = {"AWS_SHARED_CREDENTIALS_FILE": str(path), "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    trial = make_trial(wait_time_seconds=1, worker={"env": env})

    @contextlib.contextmanager
    def expire_and_rotate(site):
        site.proxy.inject(expired("AKIAOLD"))
        yield
        write_credentials(path, "AKIANEW")

    outcome = trial.endure(expire_and_rotate(trial.site), 5)
    trial.worker.wait_for_log(END)
    assert not outcome.lost
    assert outcome.seconds_to_recover < RECOVERY
    assert trial.lines(BEGIN) - trial.late_answers <= 1
    reliability("credentials expire", "new ones in their file 5 s later", **outcome.row)


def test_trouble_at_every_second_request_is_told_once(make_trial, reliability):
    trial = make_trial(wait_time_seconds=1)
    outcome = trial.endure(in_receives(error("RequestThrottled"), rate=0.5)(trial.site), 9)
    assert not outcome.lost
    assert not outcome.more_than_once
    assert outcome.seconds_to_recover < RECOVERY
    assert trial.lines(BEGIN) - trial.late_answers <= 2
    reliability("flapping", "`RequestThrottled` to every second receive, 9 s", **outcome.row)


def test_a_poll_whose_connection_died_is_replaced_by_another(make_trial, reliability):
    trial = make_trial(wait_time_seconds=2)
    site = trial.site
    injection = site.proxy.inject(black_hole(), RECEIVE, times=1)  # which stays, and the poll in it
    site.proxy.wait_for(lambda _: injection.hits)
    began = time.monotonic()
    trial.send("a")
    (start,) = site.diary.wait_for("started", key="a")
    seconds = start["monotonic"] - began
    assert seconds < 2 + RECOVERY, "its wait, and when its answer was late"
    assert trial.lines(BEGIN) == trial.lines(END) == 1
    reliability("one poll dies silently", "of 2 s, never answered", ["a"], seconds=seconds, ended="started")


def test_answers_that_are_late_are_still_taken(make_trial, reliability):
    trial = make_trial(wait_time_seconds=2)
    trial.site.proxy.inject(latency(6), RECEIVE, times=3)
    trial.send("a")
    trial.site.diary.wait_for("started", key="a")
    trial.site.proxy.wait_for(lambda _: trial.site.counts() == (0, 0))
    assert trial.site.diary.count("started", key="a") == 1
    assert trial.worker.running
    reliability("late answers", "those of three receives, by 6 s", trial.keys, ended="started")


SETTLING = {
    "throttled": error("RequestThrottled"),
    "500": error("InternalFailure", 500),
    "denied": error("AccessDeniedException", 403),
    "reset": reset_connection(),
    "black hole": black_hole(),
    "each entry fails": fail_entries("InternalError", sender_fault=False),
}


@pytest.mark.parametrize("name", SETTLING)
def test_deletes_that_fail_for_a_while_are_told_once_and_done_after(make_trial, name, reliability):
    trial = make_trial(visibility_timeout=30, wait_time_seconds=1)
    site = trial.site
    with site.proxy.inject(SETTLING[name], DELETE):
        for number in range(10):
            trial.send(f"during {number}")
            time.sleep(0.4)
    ended = time.monotonic()
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    seconds = time.monotonic() - ended
    runs = Counter(entry["key"] for entry in site.diary.entries("started"))
    lost = {key for key in trial.keys if not runs[key]}
    more_than_once = {key for key in trial.keys if runs[key] > 1}
    assert not lost | more_than_once
    assert seconds < RECOVERY
    trial.worker.wait_for_log("can delete messages again")
    assert trial.lines("cannot delete messages: ") == 1
    assert trial.lines("can delete messages again") == 1
    assert trial.lines("message lost") == 0
    reliability(f"deletes: {name}", "every delete, 4 s", trial.keys, seconds=seconds, ended="started")


def test_some_entries_of_a_batch_fail_and_the_others_do_not_suffer(make_trial, reliability):
    trial = make_trial(wait_time_seconds=1, worker={"concurrency": 10})
    site = trial.site
    with site.proxy.inject(fail_entries("InternalError", sender_fault=False, positions={0, 3}), DELETE):
        for number in range(20):
            trial.send(f"during {number}")
        site.diary.wait_for("started", 21)
        time.sleep(1)
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    lost, more_than_once = set(), {key for key in trial.keys if site.diary.count("started", key=key) > 1}
    assert not lost | more_than_once
    reliability("deletes: some entries fail", "two of each batch", trial.keys, ended="started")


def test_a_black_hole_for_extensions_does_not_lose_a_lease_of_ten_seconds(make_trial, reliability):
    trial = make_trial(visibility_timeout=10, wait_time_seconds=1)
    site = trial.site
    trial.send("long", "slow", 16)
    site.diary.wait_for("started", key="long")
    with site.proxy.inject(black_hole(), CHANGE) as injection:
        site.proxy.wait_for(lambda _: injection.hits)
        time.sleep(3)
    site.diary.wait_for("done", key="long")
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert site.diary.count("started", key="long") == 1
    assert trial.lines("cannot extend messages") <= 1
    reliability("extensions: black hole", "none answered, 3 s and more; a lease of 10 s", ["long"])


def test_without_permission_to_change_visibility_tasks_run_and_are_deleted(make_trial, reliability):
    trial = make_trial(visibility_timeout=6, wait_time_seconds=1)
    site = trial.site
    denied = error("AccessDeniedException", 403, "User is not authorized to perform this action")
    with site.proxy.inject(denied, CHANGE):
        trial.send("long", "slow", 5)
        trial.send("failing", "number")
        for number in range(5):
            trial.send(f"during {number}")
            time.sleep(1)
        site.diary.wait_for("done", key="long")
        # It could not be hidden, and is back when its visibility timeout has run out.
        site.diary.wait_for("done", key="failing")
        attempts = site.proxy.count(CHANGE)
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert {key for key in trial.keys if not site.diary.count("started", key=key)} == set()
    assert trial.worker.running
    assert trial.lines("cannot extend messages: ") == 1
    assert trial.lines("cannot hide or release messages: ") == 1
    assert trial.lines("(the permission is sqs:ChangeMessageVisibility)") >= 2
    assert attempts < 40, "nothing spins"
    reliability("no `sqs:ChangeMessageVisibility`", "a lease of 6 s", trial.keys, ended="started")


def test_the_lost_answer_to_a_receive_costs_a_visibility_timeout(make_trial, reliability):
    trial = make_trial(visibility_timeout=3, wait_time_seconds=1)
    site = trial.site
    taken = threading.Event()

    def lose_messages(request, forward, removed):
        answer = forward(request)
        if b"MessageId" in answer.body and not taken.is_set():
            taken.set()
            return lose_response()(request, lambda _: answer, removed)
        return answer

    injection = site.proxy.inject(lose_messages, RECEIVE)
    site.proxy.wait_for(lambda _: injection.hits)
    trial.send("a")
    site.diary.wait_for("started", key="a")
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert taken.is_set()
    assert site.diary.count("started", key="a") == 1
    reliability("the answer to a receive is lost", "the one that has the message", ["a"], ended="started")


@pytest.mark.parametrize("handle_is_gone", [False, True], ids=["as moto", "as a strict SQS"])
def test_the_lost_answer_to_a_delete_does_no_harm(make_trial, handle_is_gone, reliability):
    trial = make_trial(wait_time_seconds=1)
    site = trial.site
    faults = [lose_response()]
    if handle_is_gone:
        faults.append(fail_entries("ReceiptHandleIsInvalid"))

    def one_after_the_other(*call):
        return faults.pop(0)(*call)

    site.proxy.inject(one_after_the_other, DELETE, times=len(faults))
    trial.send("a")
    site.proxy.wait_for_calls(DELETE, 3)  # of the warm-up, the lost one, and the one after
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert site.diary.count("started", key="a") == 1
    assert trial.lines("message lost") == 0
    reliability("the answer to a delete is lost", "once", ["a"], ended="started")


def test_the_lost_answer_to_a_hide_does_no_harm(make_trial, reliability):
    trial = make_trial(wait_time_seconds=1)
    site = trial.site
    site.proxy.inject(lose_response(), CHANGE, times=1)
    trial.send("a", "number")  # fails once, hidden for two seconds
    site.diary.wait_for("done", key="a")
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert site.diary.count("started", key="a") == 2
    assert trial.lines("message lost") == 0
    reliability("the answer to a hide is lost", "once; the task fails once", ["a"])


def test_the_lost_answer_to_a_send_may_make_two_of_one(make_site, reliability):
    site = make_site(wait_time_seconds=1)
    site.start(pool="threads")
    site.proxy.inject(lose_response(), "SendMessage", times=1)
    site.send("quick", "a")
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert 1 <= site.diary.count("started", key="a") <= 2
    reliability("the answer to a send is lost", "the producer sends once more", ["a"], ended="started")

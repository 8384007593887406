"""Whatever SQS and the network do: no exit, no silence, nothing lost, back at work within three seconds."""

import contextlib
import functools
import threading
import time
from collections import Counter

import pytest
from support.app import CONSTANTS, behind, close_app, make_app
from support.faults import (
    Disconnected,
    black_hole,
    error,
    fail_entries,
    json_answer,
    latency,
    list_twice,
    lose_response,
    reset_connection,
)
from support.processes import RECOVERY

BEGIN, END = "cannot receive from SQS: ", "can receive from SQS again"
RECEIVE, DELETE, CHANGE = "ReceiveMessage", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"


class Trial:
    """A worker that has proved to work, and a producer whose sends no fault can reach."""

    def __init__(self, site, app, tell, **options):
        self.site = site
        self.app = app
        self._tell = tell
        self.worker = site.start(**{"pool": "threads", **options})
        self.keys = []
        self.send("warm-up")
        site.diary.wait_for("started", key="warm-up")
        site.proxy.wait_for_calls(DELETE)

    def send(self, key, task="quick", *args):
        self.keys.append(key)
        self.app.send_task(f"work.{task}", (key, *args))

    def endure(self, fault, seconds):
        """Send tasks while the fault lasts, and a fresh one when it is over; all are done, and that soon.

        Returns the seconds until the fresh one began, and how many receives were asked for meanwhile.
        """
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
        assert fresh["monotonic"] - ended < RECOVERY
        assert self.worker.running
        attempts = sum(began <= call.started < ended for call in site.proxy.calls(RECEIVE))
        return fresh["monotonic"] - ended, attempts

    def wait_done(self, key, runs=1):
        """Wait until all is done and deleted: that was run so often, and no message was lost."""
        self.site.diary.wait_for("started", runs, key=key)
        self.site.proxy.wait_for(lambda _: self.site.counts() == (0, 0))
        assert self.site.diary.count("started", key=key) == runs
        assert self.lines("message lost") == 0

    def tell(self, fault, done, keys=None, *, ended="started", **how):
        """A row of docs/reliability.md, of all the messages or some."""
        self._tell(fault, done, keys or self.keys, ended=ended, **how)

    @property
    def more_than_once(self):
        runs = Counter(entry["key"] for entry in self.site.diary.entries("started"))
        return {key for key in self.keys if runs[key] > 1}

    def lines(self, text):
        return sum(text in line for line in self.worker.log.splitlines())

    @property
    def late_answers(self):
        """Lines that may be the emulator's doing, where nothing else keeps it from answering."""
        return self.lines("gets no answer")


@pytest.fixture
def make_trial(make_site, emulator, reliability, request):
    def make(settings=None, *, worker=None, **options):
        site = make_site(settings, **{"wait_time_seconds": 1, **options})
        app = make_app("producer", behind(emulator.url, site.config), set_as_current=False)
        request.addfinalizer(functools.partial(close_app, app))
        return Trial(site, app, reliability, **(worker or {}))

    return make


def injected(fault, *actions, **how):
    return lambda site: site.proxy.inject(fault, *actions, **how)


@contextlib.contextmanager
def refused(site):
    site.proxy.refuse()
    yield
    site.proxy.accept()


@contextlib.contextmanager
def answers_lost(site):
    """Lasts until the last answer is lost: a long poll under way takes what comes after."""
    with site.proxy.inject(lose_response()):
        yield
    ended = time.monotonic()
    site.proxy.wait_for(lambda _: all(call.started > ended for call in site.proxy.in_flight()))


def errors(code, status=400, *actions, seconds=3, message="injected by the test"):
    """A row of `FAULTS`: every request, or every one of these actions, is refused."""
    shown = f"{status} `{code}`" if status == 429 or status >= 500 else f"`{code}`"
    told = f"{shown} to every {'receive' if actions else 'request'}"
    return injected(error(code, status, message), *actions), seconds, told


#: Attempts to receive before the pauses are at their longest, and some for chance: pauses are random.
FIRST_ATTEMPTS = 12

SKEWED = "Signature expired: 20260101T000000Z is now earlier than ..."
#: How to put a fault in place, for how many seconds, and what docs/reliability.md says of it.
FAULTS = {
    "throttled": errors("RequestThrottled", seconds=4),
    "throttled by KMS": errors("KmsThrottled", 400, RECEIVE),
    "429": errors("TooManyRequests", 429, RECEIVE),
    "over limit": errors("OverLimit", 403, RECEIVE),
    "500": errors("InternalFailure", 500, seconds=4),
    "503": errors("ServiceUnavailable", 503),
    "an error nobody knows": errors("SomethingNew", 400, RECEIVE),
    "a malformed answer": (
        injected(lambda *_: json_answer(200, {"Messages": "none"}), RECEIVE),
        3,
        "text where a list of messages should be",
    ),
    "unsigned": errors("MissingAuthenticationToken", 403),
    "invalid credentials": errors("InvalidClientTokenId", 403, seconds=6),
    "expired credentials": errors("ExpiredTokenException", 403),
    "clock skew": errors("InvalidSignatureException", 403, message=SKEWED),
    "no permission": errors("AccessDeniedException", 403, seconds=12),
    "no permission for the key": errors("KmsAccessDenied", 403, RECEIVE),
    "no such queue": errors("QueueDoesNotExist"),
    "refused": (refused, 6, "every connection refused"),
    "reset": (injected(reset_connection()), 4, "every connection reset before the request is read"),
    "answers lost": (answers_lost, 4, "every request carried out, its answer lost"),
    "black hole": (injected(black_hole()), 8, "no request answered"),
    "longer throttling": errors("RequestThrottled", seconds=20),
    "a long black hole": (injected(black_hole()), 40, "no request answered"),
}


@pytest.mark.parametrize("name", sorted(FAULTS, key=lambda name: -FAULTS[name][1]))
def test_a_fault_is_ridden_out(make_trial, name):
    put, lasts, told = FAULTS[name]
    trial = make_trial(visibility_timeout=5)
    seconds, attempts = trial.endure(put(trial.site), lasts)
    trial.worker.wait_for_log(END)
    late = 0 if "black hole" in name else trial.late_answers
    assert trial.lines(BEGIN) - late <= 1
    assert trial.lines(END) <= trial.lines(BEGIN)
    assert trial.lines("; trying again") - late <= 2, "of receiving, and of deleting what was under way"
    assert trial.lines("Traceback") == trial.lines("botocore") == trial.lines("urllib3") == 0
    # The longest pauses are a second on average, and botocore repeats each request that was refused.
    assert attempts <= 2 * (FIRST_ATTEMPTS + lasts), "it backs off"
    assert attempts or name == "refused"
    if name != "answers lost" and lasts < 10:
        assert len(trial.more_than_once) <= 1, "but for what was under way, nothing runs twice"
    trial.tell(name, f"{told}, {lasts} s", seconds=seconds)


@pytest.mark.parametrize("pool", ["prefork", "solo", "gevent", "eventlet"])
def test_a_black_hole_is_ridden_out_on_every_pool(make_trial, pool):
    trial = make_trial(worker={"pool": pool, "concurrency": 1 if pool == "solo" else 2})
    seconds, _ = trial.endure(trial.site.proxy.inject(black_hole()), 5)
    trial.worker.wait_for_log(END)
    # On a busy machine the emulator itself may answer late afterwards.
    assert trial.worker.log.partition(END)[0].count(BEGIN) == 1
    trial.tell("black hole, on every pool", "no request answered, 5 s", seconds=seconds)


def test_what_fell_into_a_black_hole_is_not_waited_for(make_trial):
    trial = make_trial()
    over = threading.Event()

    def keep_what_falls_in(*_):
        """Later requests are answered; those it took are not, and their connections stay open."""
        over.wait()
        raise Disconnected("a black hole")

    try:
        seconds, _ = trial.endure(trial.site.proxy.inject(keep_what_falls_in), 8)
        trial.worker.wait_for_log(END)
        time.sleep(3)  # the first poll of it gives up only now, and that is no news
        assert trial.lines(BEGIN) == trial.lines(END) == 1
        told = "what was asked within 8 s is never answered, its connections stay"
        trial.tell("black hole that keeps what fell in", told, seconds=seconds)
    finally:
        over.set()


def test_a_black_hole_under_long_polls_is_ridden_out(make_trial):
    trial = make_trial(wait_time_seconds=20)
    seconds, _ = trial.endure(trial.site.proxy.inject(black_hole()), 8)
    trial.tell("black hole under long polls", "no request answered, 8 s; polls wait 20 s", seconds=seconds)


def test_a_queue_that_was_deleted_is_polled_when_it_is_there_again(make_trial):
    trial = make_trial()
    trial.site.sqs.delete_queue(QueueUrl=trial.site.url)
    trial.worker.wait_for_log(BEGIN)
    time.sleep(6)
    trial.site.create_queue()
    ended = time.monotonic()
    trial.send("fresh")
    (fresh,) = trial.site.diary.wait_for("started", key="fresh")
    seconds = fresh["monotonic"] - ended
    assert seconds < RECOVERY
    assert trial.lines(BEGIN) - trial.late_answers <= 1
    trial.tell("queue deleted", "and created again 6 s later", ["fresh"], seconds=seconds)


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


def test_credentials_rotated_in_their_file_are_taken_up(make_trial, tmp_path):
    path = tmp_path / "credentials"
    write_credentials(path, "AKIAOLD")
    env = {"AWS_SHARED_CREDENTIALS_FILE": str(path), "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    trial = make_trial(worker={"env": env})
    trial.site.proxy.inject(expired("AKIAOLD"))
    rotation = contextlib.ExitStack()
    rotation.callback(write_credentials, path, "AKIANEW")
    seconds, _ = trial.endure(rotation, 5)
    trial.worker.wait_for_log(END)
    assert trial.lines(BEGIN) - trial.late_answers <= 1
    trial.tell("credentials expire", "new ones in their file 5 s later", seconds=seconds)


def test_trouble_at_every_second_request_is_told_once(make_trial):
    trial = make_trial()
    seconds, _ = trial.endure(trial.site.proxy.inject(error("RequestThrottled"), RECEIVE, rate=0.5), 9)
    assert not trial.more_than_once
    assert trial.lines(BEGIN) - trial.late_answers <= 2
    trial.tell("flapping", "`RequestThrottled` to every second receive, 9 s", seconds=seconds)


def test_a_poll_whose_connection_died_is_replaced_by_another(make_trial):
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
    trial.tell("one poll dies silently", "of 2 s, never answered", ["a"], seconds=seconds)


def test_answers_that_are_late_are_still_taken(make_trial):
    trial = make_trial(wait_time_seconds=2)
    trial.site.proxy.inject(latency(6), RECEIVE, times=3)
    trial.send("a")
    trial.wait_done("a")
    assert trial.worker.running
    trial.tell("late answers", "those of three receives, by 6 s")


SETTLING = {
    "throttled": error("RequestThrottled"),
    "500": error("InternalFailure", 500),
    "denied": error("AccessDeniedException", 403),
    "reset": reset_connection(),
    "black hole": black_hole(),
    "each entry fails": fail_entries("InternalError", sender_fault=False),
}


@pytest.mark.parametrize("name", SETTLING)
def test_deletes_that_fail_for_a_while_are_told_once_and_done_after(make_trial, name):
    trial = make_trial(visibility_timeout=30)
    with trial.site.proxy.inject(SETTLING[name], DELETE):
        for number in range(10):
            trial.send(f"during {number}")
            time.sleep(0.4)
    ended = time.monotonic()
    trial.wait_done("during 9")
    seconds = time.monotonic() - ended
    assert not trial.more_than_once
    assert seconds < RECOVERY
    trial.worker.wait_for_log("can delete messages again")
    assert trial.lines("cannot delete messages: ") == 1
    assert trial.lines("can delete messages again") == 1
    trial.tell(f"deletes: {name}", "every delete, 4 s", seconds=seconds)


def test_some_entries_of_a_batch_fail_and_the_others_do_not_suffer(make_trial):
    trial = make_trial(worker={"concurrency": 10})
    with trial.site.proxy.inject(fail_entries("InternalError", sender_fault=False, positions={0, 3}), DELETE):
        for number in range(20):
            trial.send(f"during {number}")
        trial.site.diary.wait_for("started", 21)
        time.sleep(1)
    trial.wait_done("during 19")
    assert not trial.more_than_once
    trial.tell("deletes: some entries fail", "two of each batch")


def test_a_black_hole_for_extensions_does_not_lose_a_lease_of_ten_seconds(make_trial):
    trial = make_trial(visibility_timeout=10)
    site = trial.site
    trial.send("long", "slow", 16)
    site.diary.wait_for("started", key="long")
    with site.proxy.inject(black_hole(), CHANGE, times=1) as injection:
        site.diary.wait_for("done", key="long")
        assert injection.hits
    trial.wait_done("long")
    assert trial.lines("cannot extend messages") == 1
    entries = [entry for call in site.proxy.calls(CHANGE) for entry in call.request["Entries"]]
    handles = {entry["ReceiptHandle"] for entry in entries}
    assert len(handles) == 1, "its message has not come back meanwhile, to this worker either"
    told = "one is never answered; a lease of 10 s"
    trial.tell("extensions: black hole", told, ["long"], ended="done")


def test_without_permission_to_change_visibility_tasks_run_and_are_deleted(make_trial):
    trial = make_trial(visibility_timeout=6)
    site = trial.site
    denied = error("AccessDeniedException", 403, "User is not authorized to perform this action")
    with site.proxy.inject(denied, CHANGE):
        trial.send("long", "slow", 5)
        trial.send("failing", "number")
        for number in range(5):
            trial.send(f"during {number}")
            time.sleep(1)
        # What fails could not be hidden, and is back when its visibility timeout has run out.
        for key in ("long", "failing"):
            site.diary.wait_for("done", key=key)
        attempts = site.proxy.count(CHANGE)
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert trial.worker.running
    assert trial.lines("cannot extend messages: ") == 1
    assert trial.lines("cannot hide or release messages: ") == 1
    assert trial.lines("(the permission is sqs:ChangeMessageVisibility)") >= 2
    assert attempts < 40, "nothing spins"
    trial.tell("no `sqs:ChangeMessageVisibility`", "a lease of 6 s")


def test_the_lost_answer_to_a_receive_costs_a_visibility_timeout(make_trial):
    trial = make_trial(visibility_timeout=3)
    taken = threading.Event()

    def lose_messages(request, forward, removed):
        answer = forward(request)
        if b"MessageId" in answer.body and not taken.is_set():
            taken.set()
            return lose_response()(request, lambda _: answer, removed)
        return answer

    injection = trial.site.proxy.inject(lose_messages, RECEIVE)
    trial.site.proxy.wait_for(lambda _: injection.hits)
    trial.send("a")
    trial.wait_done("a")
    assert taken.is_set()
    trial.tell("the answer to a receive is lost", "the one that has the message", ["a"])


def test_a_message_that_an_answer_lists_twice_runs_once_and_frees_its_slot(make_trial):
    constants = {"celery_sqs_visibility.transport.receiving.PREFETCH_SECONDS": 0}
    trial = make_trial({CONSTANTS: constants}, worker={"concurrency": 1})
    with trial.site.proxy.inject(list_twice(), RECEIVE):
        for number in range(6):
            trial.send(f"twice {number}")
            trial.wait_done(f"twice {number}")
    trial.send("after")
    trial.wait_done("after")
    trial.tell("an answer lists a message twice, with one receipt handle", "six answers, one slot")


@pytest.mark.parametrize("handle_is_gone", [False, True], ids=["as moto", "as a strict SQS"])
def test_the_lost_answer_to_a_delete_does_no_harm(make_trial, handle_is_gone):
    trial = make_trial()
    faults = [lose_response(), *[fail_entries("ReceiptHandleIsInvalid")] * handle_is_gone]

    def one_after_the_other(*call):
        return faults.pop(0)(*call)

    trial.site.proxy.inject(one_after_the_other, DELETE, times=len(faults))
    trial.send("a")
    trial.site.proxy.wait_for_calls(DELETE, 3)  # of the warm-up, the lost one, and the one after
    trial.wait_done("a")
    trial.tell("the answer to a delete is lost", "once", ["a"])


def test_the_lost_answer_to_a_hide_does_no_harm(make_trial):
    trial = make_trial()
    trial.site.proxy.inject(lose_response(), CHANGE, times=1)
    trial.send("a", "number")  # fails once, hidden for two seconds
    trial.site.diary.wait_for("done", key="a")
    trial.wait_done("a", runs=2)
    trial.tell("the answer to a hide is lost", "once; the task fails once", ["a"], ended="done")


def test_the_lost_answer_to_a_send_may_make_two_of_one(make_site, reliability):
    site = make_site(wait_time_seconds=1)
    site.start(pool="threads")
    site.proxy.inject(lose_response(), "SendMessage", times=1)
    site.send("quick", "a")
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert 1 <= site.diary.count("started", key="a") <= 2
    reliability("the answer to a send is lost", "the producer sends once more", ["a"], ended="started")

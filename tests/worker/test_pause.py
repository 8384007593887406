"""Queues are paused and resumed in real workers, by `celery -A proj sqs`, and the status shows it."""

import json
import socket
import time
import uuid

import pytest
from support.app import CONSTANTS
from support.commands import invoke
from support.processes import SOON, wait_until
from support.worker import WorkerProcess

from celery_sqs_visibility.operate.invocation import ask

FIRST = f"worker1@{socket.gethostname()}"
TO_FIRST = ("-d", FIRST, "-t", str(SOON))  # who waits for one answer waits no longer than for that
POLL_SECONDS = 1  # of a long poll, which nobody cuts off
PAUSE_SECONDS = 5
TASK_PAUSE_SECONDS = 15  # a busy machine does much more slowly what happens meanwhile
#: A task is short for a worker, and many run in the time that it fetches for, however slow the machine.
SHORT_TASKS = {
    "celery_sqs_visibility.policy.prefetch.LONG_TASK_SECONDS": 1000,
    "celery_sqs_visibility.transport.receiving.PREFETCH_SECONDS": 60,
}


@pytest.fixture
def site(make_control_site):
    return make_control_site(wait_time_seconds=POLL_SECONDS, visibility_timeout=300)


def start(site, node=FIRST, **options):
    """Start the next worker, which is that one; it may be ready before its queue for commands is."""
    worker = site.start(**options)
    wait_until(lambda: ask(site.app, "sqs_queues", SOON, [node]), SOON, "it to take commands")
    return worker


def sqs(site, *args):
    return invoke(site.app, *args)


def answers(site, *args):
    """The workers' answers to a command, by node."""
    result = sqs(site, *args, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["workers"]


def condition(site, node=FIRST):
    """The queue's, in that worker."""
    return ask(site.app, "sqs_queues", SOON, [node])[node]["queues"][site.queue]


def polls_of(site):
    return site.proxy.calls("ReceiveMessage", queue=site.queue)


@pytest.mark.own_pool
@pytest.mark.parametrize("pool", ["prefork", "solo", "gevent"])
def test_nothing_begins_from_a_pause_until_the_resume(site, pool):
    worker = start(site, pool=pool)
    paused = sqs(site, "pause", site.queue, *TO_FIRST)
    assert paused.exit_code == 0, paused.output + worker.log
    assert "paused until it is resumed; 0 running, 0 given back" in paused.output
    assert "start from now on are not paused" in paused.output
    site.send("quick", "a")
    until = time.monotonic() + POLL_SECONDS  # of the poll in flight, which may take it
    assert condition(site)["paused"]
    wait_until(lambda: time.monotonic() >= until and site.counts() == (1, 0), SOON, "it to stay there")
    assert "resumed" in sqs(site, "resume", site.queue, *TO_FIRST).output
    (started,) = site.diary.wait_for("started", key="a")
    assert started["sqs"]["receive_count"] <= 2


def test_what_runs_goes_on_what_waits_goes_back_and_a_pause_for_a_time_ends(make_control_site, tmp_path):
    site = make_control_site({CONSTANTS: SHORT_TASKS}, wait_time_seconds=POLL_SECONDS, visibility_timeout=300)
    start(site, concurrency=1, prefetch_multiplier=4)
    keys = [f"warm{number}" for number in range(20)]
    for key in keys:  # a worker with short tasks has more than its slots' number
        site.send("quick", key)
    for key in keys:
        site.diary.wait_for("started", key=key)
    site.send("held", "running", str(end := tmp_path / "end"))
    site.diary.wait_for("started", key="running")
    for key in "ab":
        site.send("quick", key)
    site.app.send_task("work.quick", ["later"], countdown=200, delay_seconds=0)
    wait_until(lambda: site.counts() == (0, 4), SOON, "one to run, two to wait for it, one for its ETA")
    told = {"held": 4, "hidden": 0, "running": 1}
    wait_until(lambda: condition(site).items() >= told.items(), SOON, "the main process to hear of all")
    (answer,) = answers(site, "pause", site.queue, "--for", f"{PAUSE_SECONDS}s", *TO_FIRST).values()
    assert 0 < answer["ok"].pop("seconds_left") <= PAUSE_SECONDS
    assert answer["ok"] == {"paused": True, "kept": False, "rests": False, **told}
    wait_until(lambda: site.counts() == (3, 1), PAUSE_SECONDS, lambda: str(site.counts()))
    end.touch()
    site.diary.wait_for("done", key="running")
    for key in "ab":
        site.diary.wait_for("started", key=key)
    assert not site.diary.entries("started", key="later")


def test_one_worker_of_two_is_paused_and_an_unknown_queue_has_a_nearest(site):
    second = FIRST.replace("1", "2", 1)
    start(site)
    start(site, second)
    unknown = sqs(site, "pause", f"{site.queue}x", *TO_FIRST)
    assert unknown.exit_code == 1
    assert f"The nearest is '{site.queue}'" in unknown.output
    assert set(answers(site, "pause", site.queue, *TO_FIRST)) == {FIRST}
    site.send("quick", "a")
    site.diary.wait_for("started", key="a")
    shown = ask(site.app, "sqs_queues", SOON, [FIRST, second])
    paused = {node: answer["queues"][site.queue]["paused"] for node, answer in shown.items()}
    assert paused == {FIRST: True, second: False}
    paused_queue = f"{site.queue}\n"  # at the end of a worker's row; the command waits for a second
    wait_until(lambda: paused_queue in sqs(site, "status").output, SOON, "the status to show the pause")


@pytest.mark.parametrize("end", [WorkerProcess.terminate, WorkerProcess.kill])
def test_a_worker_that_starts_under_a_kept_pause_polls_nothing(site, end):
    second = FIRST.replace("1", "2", 1)
    worker = start(site)
    kept = sqs(site, "pause", site.queue, "--keep")
    assert kept.exit_code == 0, kept.output + worker.log
    assert "start from now on are paused, too" in kept.output
    wait_until(lambda: condition(site)["kept"], SOON, lambda: worker.log)
    end(worker)
    worker.wait_exit()
    polls = len(polls_of(site))
    worker = start(site, second)
    worker.wait_for_log("is paused by its tag")
    told = {"paused": True, "seconds_left": None, "kept": True}
    assert condition(site, second).items() >= told.items()
    assert f"{site.queue} (kept)" in sqs(site, "status", "-t", "5").output
    site.send("quick", "a")
    until = time.monotonic() + POLL_SECONDS  # of a poll that would have begun
    wait_until(lambda: time.monotonic() >= until and site.counts() == (1, 0), SOON, "it to stay there")
    assert len(polls_of(site)) == polls
    resumed = sqs(site, "resume", site.queue)
    assert (resumed.exit_code, site.sqs.list_queue_tags(QueueUrl=site.url).get("Tags", {})) == (0, {})
    (started,) = site.diary.wait_for("started", key="a")
    assert started["sqs"]["receive_count"] == 1


def pause_task(site, *, seconds, task="work.quick"):
    """Returns the instant before which the pause does not end."""
    began = time.monotonic()
    answers(site, "pause", "--task", task, "--for", f"{seconds}s", *TO_FIRST)
    return began + seconds


@pytest.mark.own_pool
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_paused_task_waits_without_an_attempt_while_others_of_its_queue_run(site, pool):
    letters = site.create_queue_with_dead_letters(1)  # any second receive would make a dead letter
    start(site, pool=pool, concurrency=1)
    pause_task(site, seconds=TASK_PAUSE_SECONDS)
    for key in "ab":
        site.send("quick", key)
    site.send("stock", "other")
    site.diary.wait_for("started", key="other")
    until = pause_task(site, seconds=TASK_PAUSE_SECONDS + 5)  # so that each is looked at again
    assert "task work.quick (" in sqs(site, "status", "-t", "5").output
    for entry in site.diary.wait_for("started", 2, task="work.quick"):
        assert (entry["retries"], entry["sqs"]["receive_count"]) == (0, 1)
        assert entry["monotonic"] >= until
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert site.counts(letters) == (0, 0)
    assert site.diary.count("started") == 3


def test_a_paused_task_of_a_fifo_queue_is_held_with_its_group(make_fifo_site):
    prefix = f"{uuid.uuid4().hex[:8]}-"
    site = make_fifo_site(
        remote_control=True, control_prefix=prefix, wait_time_seconds=1, visibility_timeout=300
    )
    start(site, concurrency=2)
    until = pause_task(site, seconds=TASK_PAUSE_SECONDS)
    for group_id, task, key in [("a", "quick", "a1"), ("a", "stock", "a2"), ("b", "stock", "b1")]:
        site.app.send_task(f"work.{task}", [key], MessageGroupId=group_id)
    site.diary.wait_for("started", key="b1")
    wait_until(lambda: condition(site)["held"] == 1, SOON, "the paused one to be held")
    (waits,) = ask(site.app, "sqs_held", SOON, [FIRST])[FIRST]["held"]
    assert (waits["task"], waits["waits_for"]) == ("work.quick", "resume")
    site.diary.wait_for("started", key="a2")
    entries = site.diary.entries("started")
    assert [entry["key"] for entry in entries] == ["b1", "a1", "a2"]
    assert [entry["sqs"]["receive_count"] for entry in entries] == [1, 1, 1]
    assert entries[1]["monotonic"] >= until
    with site.app.connection_for_read() as connection:
        connection.transport.context.end_control()


def test_nobody_answers(site):
    result = sqs(site, "pause", site.queue)
    assert result.exit_code == 69
    assert "no worker answered within 1 s" in result.output

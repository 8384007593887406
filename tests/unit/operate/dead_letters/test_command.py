"""The commands, on a queue in memory: what they take, refuse, ask and print."""

import json
import threading

import pytest

from celery_sqs_visibility.aws.queues import HIDDEN, VISIBLE, counts
from celery_sqs_visibility.errors import UnavailableError
from celery_sqs_visibility.operate.dead_letters import command, session
from celery_sqs_visibility.operate.dead_letters.command import Followed, dead_letters, follow
from celery_sqs_visibility.operate.dead_letters.letter import Selection
from celery_sqs_visibility.operate.dead_letters.session import Session


@pytest.fixture
def run(run_on, site, monkeypatch):
    for module in (session, command):
        monkeypatch.setattr(module, "SYSTEM_CLOCK", site.clock)
    return lambda *args, **options: run_on(site.sqs, dead_letters, *args, **options)


@pytest.mark.parametrize(
    "chosen",
    [("--task", "proj.*"), ("--exception", "E*"), ("--older-than", "0s"), ("--newer-than", "1d")],
    ids=str,
)
def test_a_filter_is_enough_and_takes_the_letters_of_the_queue(site, run, chosen):
    for source in ("orders", "others"):
        site.add(exception="Error", source_queue=source)
    site.clock.advance(1)
    done = run("delete", "orders", *chosen, "--yes")
    assert done.stdout == "1 dead letter was deleted.\n"


@pytest.mark.parametrize("chosen", [[], ["--any-source"], ["b2a660b2", "--all"]], ids=str)
def test_what_is_meant_has_to_be_said(run, chosen):
    done = run("delete", "orders", *chosen, "--yes")
    assert done.exit_code == 2
    assert "by their IDs, or by a filter, or take all by --all" in " ".join(done.stderr.split())


def test_an_id_of_a_few_characters_is_refused(run):
    done = run("show", "orders", "b2a660b")
    assert (done.exit_code, "'b2a660b' is too short for an ID" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("chosen", "out"),
    [
        ("--all", "12 dead letters were deleted.\n"),
        ("--task=proj.add11", "No dead letters match, of those that SQS gives: none were deleted.\n"),
    ],
)
def test_no_match_is_claimed_of_letters_behind_others_only_where_they_were_reached(
    make_site, run_on, monkeypatch, chosen, out
):
    site = make_site(".fifo")
    monkeypatch.setattr(session, "SYSTEM_CLOCK", site.clock)
    for number in range(12):
        site.add(task=f"proj.add{number}", group="g")
    site.clock.advance(1)
    done = run_on(site.sqs, dead_letters, "delete", "orders.fifo", chosen, "--yes")
    assert done.stdout == out
    assert bool(done.stderr) is (chosen != "--all")


def moves(site):
    return [arguments for action, arguments in site.sqs.calls if action == "StartMessageMoveTask"]


def test_sqs_moves_all_letters_itself(site, run):
    site.add()
    too_slow = run("retry", "orders", "--all", "--native", "--rate", "0.5", "--yes")
    assert (too_slow.exit_code, "--rate is 0.5" in too_slow.stderr, moves(site)) == (1, True, [])
    done = run("retry", "orders", "--all", "--native", "--rate", "1.5", "--yes")
    assert (done.exit_code, done.stdout) == (0, "SQS moved 1 message to 'orders'.\n")
    assert [each["per_second"] for each in moves(site)] == [1]
    assert len(site.messages(site.queue)) == 1
    site.clock.advance(1)
    site.add()
    assert json.loads(run("retry", "orders", "--all", "--native", "--yes", "--json").stdout) == {
        "moved": 1,
        "to": "orders",
    }


@pytest.mark.parametrize(
    "chosen",
    [["b2a660b2"], ["--all", "--dry-run"], ["--all", "--limit", "3"], ["--task", "proj.*"]],
    ids=str,
)
def test_sqs_own_move_takes_no_choice(site, run, chosen):
    done = run("retry", "orders", "--native", *chosen)
    assert done.exit_code == 2
    assert "--native moves all messages" in done.stderr
    assert moves(site) == []


@pytest.mark.parametrize(("number", "is_told"), [(1, False), (2, True)])
def test_a_list_that_is_full_may_not_be_whole(site, run, number, is_told):
    for _ in range(number):
        site.add()
    site.clock.advance(1)
    listed = run("list", "orders", "--limit", "2").stdout
    assert ("There may be more than 2: see --limit." in listed) is is_told


@pytest.mark.parametrize(("suffix", "is_of_groups"), [("", False), (".fifo", True)], ids=["standard", "FIFO"])
def test_a_letter_that_is_not_there_is_told(make_site, run_on, monkeypatch, suffix, is_of_groups):
    site = make_site(suffix)
    monkeypatch.setattr(session, "SYSTEM_CLOCK", site.clock)
    done = run_on(site.sqs, dead_letters, "show", f"orders{suffix}", "b2a660b2")
    assert done.exit_code == 1
    assert f"there is no dead letter 'b2a660b2' in 'dead{suffix}'" in done.stderr
    assert ("only the first ten can be seen at a time" in done.stderr) is is_of_groups


@pytest.mark.parametrize(
    ("chosen", "which"),
    [
        (["b2a660b2"], "1 dead letter"),
        (["b2a660b2", "b2a660b3"], "2 dead letters"),
        (["--task", "proj.*"], "all dead letters that match"),
        (["--all"], "all dead letters (about 1)"),
    ],
    ids=str,
)
def test_before_letters_are_deleted_it_is_asked_which(site, run, chosen, which):
    site.add()
    done = run("delete", "orders", *chosen, typed="n\n")
    assert done.exit_code == 1
    assert f"Delete {which} of queue 'orders' from 'dead' for good?" in done.stderr
    assert len(site.messages(site.letters)) == 1


def test_it_is_asked_without_a_number_where_sqs_does_not_count(site, run, monkeypatch):
    attributes = site.sqs.queue_attributes

    def without_counts(url, names):
        if "ApproximateNumberOfMessages" in names:
            raise UnavailableError("gone")
        return attributes(url, names)

    monkeypatch.setattr(site.sqs, "queue_attributes", without_counts)
    asked = run("delete", "orders", "--all", typed="n\n").stderr
    assert "Delete all dead letters of queue 'orders'" in asked


def test_a_plan_says_of_each_letter_where_it_would_go(site, run):
    site.add()
    site.add(source_queue="gone")
    site.clock.advance(1)
    planned = run("retry", "orders", "--all", "--any-source", "--dry-run", "--json")
    assert {each["to"] for each in json.loads(planned.stdout)} == {"orders", "gone"}
    assert site.messages(site.queue) == []
    shown = run("retry", "orders", "--all", "--any-source", "--dry-run").stdout
    assert "2 dead letters would be sent back: 1 to 'orders', 1 to 'gone'." in shown
    shown = run("retry", "orders", "--all", "--dry-run").stdout
    assert "1 dead letter would be sent back to 'orders'." in shown
    shown = run("retry", "orders", "--task", "other", "--dry-run").stdout
    assert shown == "0 dead letters would be sent back.\n"


def test_a_dry_run_tells_of_letters_that_are_not_there(site, run):
    site.add()
    done = run("retry", "orders", "b2a660b2", "--dry-run")
    assert done.exit_code != 0
    assert "b2a660b2" in str(done.exception) + done.output


@pytest.mark.parametrize("options", [[], ["--native"], ["--task", "proj.*"]], ids=" ".join)
@pytest.mark.parametrize(("typed", "is_sent"), [("y\n", True), ("n\n", False), ("", False)])
def test_a_retry_of_all_is_asked_about_and_no_answer_means_no(site, run, options, typed, is_sent):
    site.add()
    site.clock.advance(1)
    done = run("retry", "orders", "--all", *options, typed=typed)
    assert "from 'dead'? [y/N]" in done.stderr
    assert (done.exit_code, len(site.messages(site.queue))) == ((0, 1) if is_sent else (1, 0))


def test_a_list_in_groups_takes_all_letters(site, run):
    for number in range(120):
        site.add(exception=f"proj.Down: {number}", task_id="t")
    site.clock.advance(60)
    (group,) = json.loads(run("list", "orders", "--by", "exception", "--json").stdout)
    assert (group["exception"], group["count"], group["oldest_seconds"]) == ("proj.Down", 120, 60)
    shown = run("list", "orders", "--by", "exception", "--limit", "20").stdout
    assert shown.splitlines()[1].split()[:4] == ["proj.Down", "20", "1m", "1m"]
    assert "There may be more than 20" in shown


def test_only_what_letters_have_in_common_groups_them(run):
    done = run("list", "orders", "--by", "exception,colour")
    assert done.exit_code == 2
    expected = (
        "expected some of exception, task, reason, source_queue, worker, separated by commas, got 'colour'"
    )
    assert expected in " ".join(done.stderr.split())


def test_a_retry_names_the_tasks_in_the_order_of_their_letters(site, run):
    ids = {site.add(task_id=f"task-{number}"): f"task-{number}" for number in range(3)}
    ids[site.add(body="no task")] = None
    site.clock.advance(1)
    told = json.loads(run("retry", "orders", "--all", "--yes", "--json").stdout)
    assert dict(zip(told["done"], told["task_ids"], strict=True)) == ids
    assert told["followed"] is None


@pytest.mark.parametrize("again", [0, 2])
def test_tasks_that_come_back_as_letters_are_counted(site, run, monkeypatch, again):
    for number in range(5):
        site.add(task_id=f"task-{number}")
    site.clock.advance(1)

    def fail_again(_seconds):
        for message in site.messages(site.queue):
            site.sqs.delete(site.queue, [message["ReceiptHandle"]])
        for number in range(again):
            site.add(task_id=f"task-{number}")

    monkeypatch.setattr(threading.Event, "wait", lambda _self, seconds: fail_again(seconds))
    done = run("retry", "orders", "--all", "--yes", "--follow", "60s")
    assert f"{again} of 5 tasks came back within 0s.\nAbout 0 messages wait in 'orders' or run" in done.stdout
    assert "Waiting 1m (Ctrl-C ends the wait), then looking for those that came back" in done.stderr
    assert done.exit_code == bool(again)
    assert ("2 tasks failed for good again: celery sqs dead-letters list orders --by" in done.stderr) is bool(
        again
    )
    assert len(site.messages(site.letters)) == again


def test_a_letter_without_a_task_s_id_is_not_followed(site, run):
    site.add(body="no task")
    site.clock.advance(1)
    done = run("retry", "orders", "--all", "--yes", "--follow", "0s")
    assert "0 of 0 tasks came back" in done.stdout
    assert "1 dead letter without a task's id could not be followed." in done.stdout


@pytest.mark.parametrize("options", [["--native"], ["--dry-run"]], ids=str)
def test_only_letters_that_this_command_sends_back_are_followed(site, run, options):
    site.add()
    assert run("retry", "orders", "--all", "--yes", "--follow", "0s", *options).exit_code == 2
    assert site.messages(site.queue) == []


def test_where_nothing_was_sent_back_nothing_is_followed(run):
    done = run("retry", "orders", "--all", "--yes", "--follow", "1h")
    assert (done.exit_code, done.stdout) == (0, "No dead letters match: none were sent back.\n")


@pytest.fixture
def sent_back(site, monkeypatch):
    """A session that has sent back `task-0` and `task-1`, and has looked at another letter."""
    monkeypatch.setattr(command, "SYSTEM_CLOCK", site.clock)
    for number in range(2):
        site.add(task_id=f"task-{number}")
    site.add(task_id="other")
    letters = site.receive()
    site.moves.send_back([letter for letter in letters if letter.task_id != "other"])
    return Session(site.place, Selection(), None, site.held, site.stop)


def meanwhile(site, happens, seconds=60):
    def wait(limit):
        assert limit == 60
        site.clock.advance(seconds)
        happens()

    site.stop.wait = wait


def test_a_task_that_failed_again_came_back_and_nothing_stays_hidden(site, sent_back):
    def happens():
        assert len(site.messages(site.letters)) == 1  # what was only looked at waits for nobody
        site.add(task_id="task-1")
        site.add(task_id="task-1")  # a duplicate
        site.add(task_id="another")

    meanwhile(site, happens)
    assert follow(sent_back, site.moves.outcome, 60) == Followed(60, ["task-1"], 2)
    assert len(site.messages(site.letters)) == 4


def test_a_letter_that_could_not_be_deleted_has_not_come_back(site, sent_back):
    site.add(task_id="task-0")
    (letter,) = site.receive()
    site.moves.outcome.add([letter])
    meanwhile(site, lambda: None)
    assert follow(sent_back, site.moves.outcome, 60).came_back == []


def test_a_signal_ends_the_wait_and_not_the_look(site, sent_back):
    def happens():
        site.add(task_id="task-0")
        site.stop.set()

    meanwhile(site, happens, seconds=7)
    assert follow(sent_back, site.moves.outcome, 60) == Followed(7, ["task-0"], 2)


def test_the_queue_may_not_be_counted(site, sent_back, monkeypatch):
    def refused(*_):
        raise UnavailableError("gone")

    meanwhile(site, lambda: monkeypatch.setattr(session, "count", refused))
    assert follow(sent_back, site.moves.outcome, 60) == Followed(60, [], None)


def test_an_error_of_the_look_gives_back_what_it_has(site, sent_back, monkeypatch):
    receive, answers = site.sqs.receive, iter([None, UnavailableError("gone")])

    def failing(*arguments):
        if error := next(answers):
            raise error
        return receive(*arguments)

    def happens():
        for _ in range(15):
            site.add(task_id="task-0")
        monkeypatch.setattr(site.sqs, "receive", failing)

    meanwhile(site, happens)
    with pytest.raises(UnavailableError):
        follow(sent_back, site.moves.outcome, 60)
    assert counts(site.place.letters, VISIBLE, HIDDEN) == [16, 0]

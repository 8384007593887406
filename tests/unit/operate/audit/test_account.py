"""Every message of a log is accounted for, and a broken rule is found."""

import json
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner

from celery_sqs_visibility.aws.cloudwatch import CloudWatchLogs
from celery_sqs_visibility.core.endings import CAUSES
from celery_sqs_visibility.operate.audit.account import UNEXPLAINED, Auditor
from celery_sqs_visibility.operate.commands import sqs as group

HIDDEN_FOR = 100
PARKED = "message parked until it may run"
COPIED = "message goes on waiting as a copy"
DEAD = "message moved to the dead-letter queue"
LOST = "message lost: another worker may run it too"
VANISHED = "nothing became of it, though its worker went on"


def line(at, message, receive=1, worker="w1", process=1, message_id="m", **fields):
    told = {
        "timestamp": datetime.fromtimestamp(1_000_000 + at, UTC).isoformat(),
        "node": worker,
        "process": process,
        "message": message,
        "queue": "q",
        "message_id": message_id,
        "receive_count": receive,
        "task_id": "id",
        **fields,
    }
    return json.dumps(told)


def received(at, receive=1, worker="w1", **fields):
    return line(at, "message received", receive, worker, seconds=HIDDEN_FOR, **fields)


def run(at, end, *, receive=1, worker="w1", how=("task finished", "message deleted"), **fields):
    """The lines of a run that ends `end` seconds after its receive."""
    return [
        received(at, receive, worker, **fields),
        line(at, "task started", receive, worker, **fields),
        *(line(at + end, message, receive, worker, seconds=10, **fields) for message in how),
    ]


FAILED = ("task failed", "message hidden")


def account_of(*lines):
    auditor = Auditor()
    auditor.read(lines)
    return auditor.account()


def idle(at, worker="w1", process=1, message="hello"):
    """A line that tells of no message: the worker goes on."""
    return json.dumps(
        {
            "timestamp": datetime.fromtimestamp(1_000_000 + at, UTC).isoformat(),
            "node": worker,
            "process": process,
            "message": message,
        }
    )


def test_a_success_is_done_and_other_lines_are_passed_over():
    account = account_of("Traceback", *run(0, 5), idle(500), '["list"]')
    assert account.messages == {"done": 1}
    assert (account.runs, account.more_runs.total(), account.passed_over_lines) == (1, 0, 3)
    assert account.is_well


@pytest.mark.parametrize(
    ("last", "where"),
    [
        (FAILED, "back in SQS"),
        ((PARKED,), "back in SQS"),
        (("message released",), "back in SQS"),
        ((COPIED, "message deleted"), "went on as a copy"),
        (("task failed", DEAD, "message deleted"), "dead letter"),
        ((), "held when the log ends"),
    ],
)
def test_a_message_is_where_its_last_event_left_it(last, where):
    account = account_of(*run(0, 5, how=last))
    assert account.messages == {where: 1}
    assert account.is_well


@pytest.mark.parametrize(
    ("first", "again", "reason"),
    [
        (run(0, 5, how=FAILED), {"at": 15, "worker": "w2"}, "retry"),
        (run(0, 5, how=("message released",)), {"at": 6, "worker": "w2"}, "given back"),
        (run(0, 500, how=(LOST, "message deleted")), {"at": 200, "worker": "w2"}, "lease lost"),
        (run(0, 0, how=()), {"at": 101, "worker": "w2"}, "worker gone"),
        (run(0, 0, how=()), {"at": 101, "process": 2}, "worker gone"),  # a restart
        (run(0, 50), {"at": 20, "worker": "w2"}, "delivered by SQS after its deletion"),
        (run(0, 0, how=()), {"at": 50, "worker": "w2"}, "delivered twice by SQS"),
    ],
)
def test_each_further_run_has_its_reason(first, again, reason):
    account = account_of(*first, *run(again.pop("at"), 5, receive=2, **again))
    assert account.more_runs == {reason: 1}
    assert account.runs == 2


@pytest.mark.parametrize("cause", [*CAUSES.values(), "one of tomorrow"])
@pytest.mark.parametrize(("message", "where"), [(PARKED, "back in SQS"), (COPIED, "went on as a copy")])
def test_a_message_may_wait_for_any_cause(cause, message, where):
    account = account_of(received(0), line(1, message, seconds=10, cause=cause), idle(900))
    assert account.messages == {where: 1}
    assert account.is_well


@pytest.mark.parametrize("how", [(LOST,), ()])
def test_a_worker_that_runs_a_message_once_more_has_two_runs(how):
    account = account_of(*run(0, 101, how=how), *run(150, 5, receive=2))
    assert account.runs == 2
    assert account.more_runs == {"lease lost" if how else UNEXPLAINED: 1}


@pytest.mark.parametrize("start", [30, 500])
def test_a_container_that_starts_anew_has_the_same_process_id_and_explains_a_run(start):
    cut_off, again = run(0, 0, how=()), run(110, 5, receive=2, worker="w3")
    assert account_of(*cut_off, idle(start, message="worker starts"), *again, idle(900)).is_well
    other = account_of(*cut_off, idle(start, "w2", message="worker starts"), *again, idle(900))
    assert other.more_runs == {UNEXPLAINED: 1}
    assert [each.rule for each in other.findings] == [VANISHED]
    went_on = account_of(*cut_off, idle(400), idle(500, message="worker starts"), *again)
    assert not went_on.is_well


def test_a_holding_without_a_run_between_two_runs_hides_no_reason():
    given_back = [received(20, 2), line(21, "message released", 2)]
    account = account_of(*run(0, 5, how=FAILED), *given_back, *run(25, 5, receive=3))
    assert account.more_runs == {"retry": 1}
    assert account.is_well


def test_receives_without_a_line_are_counted_and_explain_a_run():
    account = account_of(*run(0, 0, how=()), idle(500), *run(300, 5, receive=4, worker="w2"))
    assert account.unlogged_receives == 2
    assert account.more_runs == {"after a receive that is in no log": 1}
    assert account_of(*run(0, 5, receive=3)).unlogged_receives == 2


def test_a_message_that_comes_back_while_it_is_held_goes_on_under_its_newer_receipt():
    lines = [
        received(0),
        line(0, "task started"),
        received(110, 2),
        line(110, "message came back while held here, and is not run twice", 2),
        line(150, "task failed", 2),
        line(150, "message hidden", 2, seconds=10),
    ]
    account = account_of(*lines)
    assert (account.runs, account.messages, account.findings) == (1, {"back in SQS": 1}, [])


def test_a_receive_that_comes_after_a_newer_one_or_twice_is_no_holding():
    account = account_of(
        received(0, 2), received(0, 2), received(1), line(2, "message deleted", 2), idle(900)
    )
    assert (account.messages, account.findings, account.unlogged_receives) == ({"done": 1}, [], 0)


RULES = {
    "an extension after the end": (
        "extended after its end",
        [*run(0, 5), line(7, "message extended", seconds=100)],
    ),
    "a change after the deadline": (
        "changed after its deadline",
        [received(0), line(1, "task started"), line(102, "message hidden", seconds=10)],
    ),
    "a change after an extended deadline": (
        "changed after its deadline",
        [received(0), line(90, "message extended", seconds=100), line(192, "message released")],
    ),
    "two starts": (
        "started twice under one receipt",
        [received(0), line(1, "task started"), line(2, "task started")],
    ),
    "an overlap that nobody noticed": (
        "two runs overlap, and none was told that it had lost the message",
        [*run(0, 150), *run(120, 5, receive=2, worker="w2")],
    ),
    "a message of which nothing became": (VANISHED, [received(0), idle(161)]),
}


@pytest.mark.parametrize("broken", RULES)
def test_a_broken_rule_is_found(broken):
    rule, lines = RULES[broken]
    account = account_of(*lines)
    assert [each.rule for each in account.findings] == [rule]
    assert account.findings[0].message_id == "m"
    assert not account.is_well


@pytest.mark.parametrize(
    "lines",
    [
        [received(0), line(1, "task started"), line(101, "message hidden", seconds=10)],  # within a second
        [received(0), line(50, "message extended", seconds=100), line(149, "message hidden", seconds=10)],
        [received(0), line(101, LOST), line(150, "message hidden", seconds=10)],
        [*run(0, 50), *run(20, 5, receive=2, worker="w2")],  # SQS delivered it twice
        [*run(0, 150, how=(LOST, "message deleted")), *run(120, 5, receive=2, worker="w2")],
        [received(0), idle(160)],
        [*run(0, 5), line(6, "message extended", seconds=100)],  # it was in flight
        [received(0), line(101, LOST), idle(500)],
        [line(0, "message received"), line(500, "message hidden", seconds=1)],  # an older log
    ],
)
def test_what_is_allowed_breaks_no_rule(lines):
    assert account_of(*lines).findings == []


def test_with_more_tolerance_late_lines_and_clocks_that_differ_break_no_rule():
    for lines in (RULES["a change after the deadline"][1], RULES["an overlap that nobody noticed"][1]):
        auditor = Auditor(tolerance=40)
        auditor.read(lines)
        assert auditor.account().findings == []


def audit(*args):
    return CliRunner().invoke(group, ["audit", *args])


def test_the_command_tells_counts_and_findings_and_its_status_says_whether_all_is_well(tmp_path):
    log, other = tmp_path / "one", tmp_path / "two"
    log.write_text("\n".join([*run(0, 5, how=FAILED), *run(15, 5, receive=2), "noise"]))
    result = audit(str(log))
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "1 message: 1 done.",
        "2 runs, 1 of them not the first (1 retry).",
        "No rule is broken.",
        "1 line passed over, which tell of no message.",
    ]
    other.write_text("\n".join(RULES["two starts"][1]).replace('"m"', '"other"'))
    result = audit(str(log), str(other))
    assert result.exit_code == 1
    assert "Broken rules: 1 started twice under one receipt." in result.output
    assert "  other (task id): started twice under one receipt; w1 (1)" in result.output


def test_many_findings_are_counted_and_a_summary_names_nobody(tmp_path):
    log = tmp_path / "log"
    twice = RULES["two starts"][1]
    log.write_text("\n".join(text.replace('"m"', f'"m{n}"') for n in range(25) for text in twice))
    assert "  and 5 more: --json has all" in audit(str(log)).output
    summary = json.loads(audit(str(log), "--summary").stdout)
    assert summary["broken_rules"] == {"started twice under one receipt": 25}
    assert summary["messages"] == {"held when the log ends": 25}
    assert '"id"' not in audit(str(log), "--summary").output
    assert len(json.loads(audit(str(log), "--json").stdout)["findings"]) == 25


def test_a_log_without_messages_is_an_error_that_says_how_to_get_one(tmp_path):
    log = tmp_path / "log"
    log.write_text("celery@host ready.\n")
    result = audit(str(log))
    assert result.exit_code == 1
    assert "no line tells of a message, of 1 line: workers write such lines after" in result.output


def test_a_log_group_is_a_log_too(monkeypatch):
    lines = run(0, 5)
    monkeypatch.setattr(CloudWatchLogs, "lines_of_messages", lambda *_: reversed(lines))
    assert audit("--log-group", "workers").output.startswith("1 message: 1 done.")


def test_a_log_group_that_cannot_be_read_and_no_log_at_all_are_errors(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_CLOUDWATCH_LOGS", "http://127.0.0.1:9")
    result = audit("--log-group", "workers")
    assert result.exit_code == 69
    assert "no answer from CloudWatch Logs" in result.output
    assert audit().exit_code == 2

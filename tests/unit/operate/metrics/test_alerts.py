"""Each alert of `examples/prometheus` fires for what it is for, and not for a healthy series; and a rule."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from support.programs import program

from celery_sqs_visibility.aws import error_codes
from celery_sqs_visibility.errors import AccessDeniedError, CredentialsRefusedError

PROMETHEUS = Path(__file__).resolve().parents[4] / "examples/prometheus"
ALERTS, SCALING = PROMETHEUS / "alerts.yml", PROMETHEUS / "scaling.yml"

Q, TASK, RETRY = 'queue="q"', 'task="t",queue="q"', 'queue="q",kind="retry"'
LAST, AGE = (
    f'celery_sqs_last_receive_timestamp_seconds{{instance="a",{Q}}}',
    "celery_sqs_polling_interval_max_seconds",
)
SLOTS = {'celery_sqs_slots{instance="a"}': "4x240", 'celery_sqs_slots_busy{instance="a"}': "0x240"}
TIMES, ENDS = "celery_sqs_start_lateness_seconds", "celery_sqs_tasks_total"
LAG, SETTLE = "celery_sqs_heartbeat_lag_seconds_bucket", "celery_sqs_settle_seconds_bucket"
DELETES = 'celery_sqs_request_seconds_count{action="DeleteMessageBatch",outcome="%s"}'
GONE = "4x180 _x60"


def sleeping(seconds):
    """A worker whose last receive was at the start, and whose sleep has that bound."""
    return {LAST: "0x240", f'{AGE}{{instance="a",{Q}}}': f"{seconds}x240", **SLOTS}


def buckets(name, slow):
    """A hundred values a minute, in the first or in the last bucket."""
    return {f'{name}{{{Q},le="1.0"}}': f"0+{0 if slow else 100}x240", f'{name}{{{Q},le="+Inf"}}': "0+100x240"}


#: By alert: series that make it fire after four hours, and series that do not.
SERIES = {
    "NoWorkers": ({"celery_sqs_slots": GONE}, {"celery_sqs_slots": "4x240"}),
    "QueueHasNoWorker": ({LAST: "0+60x180 _x60"}, {LAST: "0+60x240"}),
    "WorkerGone": (
        {'up{instance="b",job="j"}': "1x180 0x60", 'celery_sqs_slots{instance="b",job="j"}': GONE},
        {'up{instance="b",job="j"}': "1x180 _x60", 'celery_sqs_slots{instance="b",job="j"}': GONE},
    ),
    "QueueHasDeadLetters": (
        {f"celery_sqs_queue_dead_letters{{{Q}}}": "2x240"},
        {f"celery_sqs_queue_dead_letters{{{Q}}}": "0x240"},
    ),
    "DeadLettersGrow": (
        {f"celery_sqs_dead_lettered_total{{{TASK}}}": "0x235 1x5"},
        {f"celery_sqs_dead_lettered_total{{{TASK}}}": "0x100 1x140"},
    ),
    "DeadLettersGrow, which SQS has moved": (
        {f"celery_sqs_queue_dead_letters{{{Q}}}": "1x235 2x5"},
        {f"celery_sqs_queue_dead_letters{{{Q}}}": "2x240"},
    ),
    "WaitIsLong": (
        {f"{TIMES}_count{{{RETRY}}}": "0+1x240", f'{TIMES}_bucket{{{RETRY},le="3600.0"}}': "0x240"},
        {
            f"{TIMES}_count{{{RETRY}}}": "0+1x240",
            f'{TIMES}_bucket{{{RETRY},le="3600.0"}}': "0+1x240",
            f"celery_sqs_queue_oldest_age_seconds{{{Q}}}": "0+60x240",
        },
    ),
    "NothingStarts": (
        {
            f'celery_sqs_queue_messages{{{Q},state="visible"}}': "5x240",
            f"celery_sqs_attempts_total{{{TASK}}}": "7x240",
        },
        {
            f'celery_sqs_queue_messages{{{Q},state="visible"}}': "5x240",
            f"celery_sqs_attempts_total{{{TASK}}}": "0+1x240",
        },
    ),
    "TaskKeepsFailing": (
        {f'{ENDS}{{{TASK},outcome="retried"}}': "0+1x240"},
        {
            f'{ENDS}{{{TASK},outcome="retried"}}': "0+1x240",
            f'{ENDS}{{{TASK},outcome="succeeded"}}': "0+1x240",
        },
    ),
    "NoSuccessfulReceive": (sleeping(0), sleeping(14_400)),
    "MessagesLost": (
        {f"celery_sqs_messages_lost_total{{{Q}}}": "0x235 1x5"},
        {f"celery_sqs_messages_lost_total{{{Q}}}": "1x240"},
    ),
    "HeartbeatIsLate": (
        {**buckets(LAG, slow=True), f'{LAG}{{{Q},le="60.0"}}': "0+100x240"},
        {**buckets(LAG, slow=False), f'{LAG}{{{Q},le="60.0"}}': "0+100x240"},
    ),
    "SettlingIsSlow": (
        {**buckets(SETTLE, slow=True), f'{SETTLE}{{{Q},le="60.0"}}': "0+100x240"},
        {**buckets(SETTLE, slow=False), f'{SETTLE}{{{Q},le="60.0"}}': "0+100x240"},
    ),
    "RetriesPileUp": (
        {f'celery_sqs_messages_hidden{{{Q},cause="retry"}}': "0+1x240"},
        {
            f'celery_sqs_messages_hidden{{{Q},cause="retry"}}': "200x240",
            f'celery_sqs_messages_hidden{{{Q},cause="eta"}}': "0+1x240",
        },
    ),
    "QueuePausedForHours": (
        {f"celery_sqs_queue_paused{{{Q}}}": "1x240"},
        {f"celery_sqs_queue_paused{{{Q}}}": "0x120 1x120"},
    ),
    "BrakeIsOn": (
        {'celery_sqs_brake_on{brake="bank"}': "0 1 1 0 1 1 " * 40},  # now and then a call is answered
        {'celery_sqs_brake_on{brake="bank"}': "0x235 1x5"},
    ),
    "CredentialsRefused": (
        {DELETES % "ExpiredTokenException": "0+1x240"},
        {DELETES % "AccessDenied": "0+1x240", DELETES % "ExpiredToken": "0x100 1x140"},  # of one rotation
    ),
    "InFlightQuota": (
        {f'celery_sqs_queue_messages{{{Q},state="in_flight"}}': "119500x240"},
        {f'celery_sqs_queue_messages{{{Q},state="in_flight"}}': "95000x240"},
    ),
    "RequestsFail": (
        {DELETES % "ok": "0+9x240", DELETES % "Throttled": "0+1x240"},
        {DELETES % "ok": "0+99x240", DELETES % "Throttled": "0+1x240"},
    ),
}


def test_every_alert_has_its_series():
    alerts = {
        rule["alert"] for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
    }
    assert {name.partition(",")[0] for name in SERIES} == alerts


@pytest.fixture(scope="module")
def promtool():
    return program("promtool")


@pytest.mark.parametrize("name", SERIES)
def test_an_alert_fires_for_what_it_is_for_and_for_nothing_else(promtool, tmp_path, name):
    alert = name.partition(",")[0]
    firing = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)'
    for given, fires in zip(SERIES[name], (1, 0), strict=True):
        check(promtool, tmp_path, ALERTS, given, firing, [("{}", fires)])


WORK = "queue:celery_sqs_work_seconds_per_slot"
WAITING = f'celery_sqs_queue_messages{{{Q},state="visible"}}'
#: Two workers of four slots, one of which is the queue's; the queue's runs take 30 seconds.
FLEET = {
    f'celery_sqs_queue_paused{{instance="a",job="j",{Q}}}': "0x240",
    **{f'celery_sqs_slots{{instance="{each}",job="j"}}': "4x240" for each in "ab"},
}
RUNS = {
    f'celery_sqs_run_seconds_count{{{TASK},outcome="succeeded"}}': "0+2x240",
    f'celery_sqs_run_seconds_sum{{{TASK},outcome="succeeded"}}': "0+60x240",
}


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ({WAITING: "80x240", **FLEET, **RUNS}, 600),
        ({WAITING: "0x240", **FLEET}, 0),
        ({WAITING: "80x240", **FLEET}, None),  # how long a run takes is not known yet
        ({WAITING: "80x240", **RUNS}, None),
    ],
)
def test_work_is_what_each_slot_of_the_queues_workers_would_do(promtool, tmp_path, given, value):
    expected = [] if value is None else [(f"{WORK}{{{Q}}}", value)]
    check(promtool, tmp_path, SCALING, given, WORK, expected)


def check(promtool, tmp_path, rules, given, query, samples):
    """After four hours of these series, the query under these rules has these samples."""
    expected = [{"labels": labels, "value": value} for labels, value in samples]
    test = {
        "interval": "1m",
        "input_series": [{"series": series, "values": _spelt(values)} for series, values in given.items()],
        "promql_expr_test": [{"expr": query, "eval_time": "4h", "exp_samples": expected}],
    }
    path = tmp_path / "tests.yml"
    path.write_text(
        yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [test]})
    )
    ran = subprocess.run([promtool, "test", "rules", path], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def _spelt(values):
    """promtool's notation: `4x240` stays at 4."""
    return " ".join(
        part if "+" in part or part.startswith("_") else part.replace("x", "+0x") for part in values.split()
    )


def test_the_alert_knows_every_code_of_refused_credentials():
    (rule,) = [
        rule
        for group in yaml.safe_load(ALERTS.read_text())["groups"]
        for rule in group["rules"]
        if rule["alert"] == "CredentialsRefused"
    ]
    (outcomes,) = re.findall(r'outcome=~"([^"]*)"', rule["expr"])
    tables = error_codes._CODES, error_codes._EXCEPTIONS
    codes = [code for table in tables for code in table[CredentialsRefusedError].split()]
    assert [code for code in codes if not re.fullmatch(outcomes, code)] == []
    others = error_codes._CODES[AccessDeniedError].split()
    assert [code for code in others if re.fullmatch(outcomes, code)] == []

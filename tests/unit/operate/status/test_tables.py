"""Tables and sentences of a status."""

from celery_sqs_visibility.operate.app_queues import QueueDepth
from celery_sqs_visibility.operate.status.report import QueueStatus, QueueWork, Status
from celery_sqs_visibility.operate.status.tables import (
    brake_sentences,
    queue_tables,
    sentences,
    worker_table,
)

WORK = QueueWork(workers=2, slots=8, free=0, running=8, held=9, waited=64.2)


def row(change=-2.0, work=WORK):
    depth = QueueDepth("orders", 1204, 16, 3, 250.0, 2)
    return QueueStatus(depth, 118_400, 0.0474, work=work, sent=1.25, deleted=3.25, change=change)


def test_a_wide_terminal_has_one_table_and_a_narrow_one_two():
    taken = Status([row()])
    (whole,) = queue_tables(taken, 200)
    messages, pace = queue_tables(taken, 80)
    assert whole.columns == [*messages.columns, *pace.columns[1:]]
    assert messages.rows == [["orders", 1204, 16, 8, 9, 7, 3, "4m10s", 2]]
    assert pace.rows == [["orders", 2, "0/8", "1m4s", 1.25, 3.25, "10m12s", 118_400, 0.0474]]
    assert max(messages.width, pace.width) <= 80


def test_what_only_workers_know_is_left_out_where_none_was_asked():
    (table,) = queue_tables(Status([row(work=None)]), 200)
    assert {"running", "held", "hidden", "workers", "free slots", "waited"}.isdisjoint(table.columns)


def test_a_queue_that_does_not_drain_says_how_it_changes():
    cells = [
        dict(zip(table.columns, table.rows[0], strict=True))["empty in"]
        for change in (1.0, 0.0, None)
        for table in queue_tables(Status([row(change)]), 200)
    ]
    assert cells == ["grows", "stands", None]
    (table,) = queue_tables(Status([QueueStatus(QueueDepth("q", 0, 0, 0))]), 200)
    assert "empty" in table.rows[0]


def test_silent_workers_come_last():
    taken = Status([], {"a@h": {"error": "KeyError('sqs_queues')"}}, silent={"b@h": 40.2})
    assert [line[0] for line in worker_table(taken).rows] == ["a@h", "b@h"]
    assert worker_table(taken).rows[1][-1] == "silent for 40s"


def test_sentences_begin_with_why_messages_wait():
    said = list(sentences(Status([row()], notes=("a note",))))
    assert said == ["queue 'orders': 1,204 wait: all slots are taken (8 of 8 by its own tasks).", "a note"]


def brake(**facts):
    known = {"brake": "bank", "stage": "on", "seconds": 12.0, "tries": 3, "waiting": 20, "error": "Down()"}
    return {**known, "tasks": ["pay", "refund"], **facts}


def test_a_brake_is_told_for_all_workers_together():
    workers = {
        "a@h": {"error": "KeyError('sqs_queues')"},
        "b@h": {"brakes": [brake(error=""), brake(brake="mail", stage="easing", tasks=["send"])]},
        "c@h": {"brakes": [brake(stage="easing", seconds=80.0, waiting=4)]},
    }
    error = "runs tried; the latest error is Down()."
    assert list(brake_sentences(workers)) == [
        f"brake 'bank' of pay, refund is on in 2 of 3 workers, for 12s: 24 messages held, 6 {error}",
        f"brake 'mail' of send is easing in 1 of 3 workers, for 12s: 20 messages held, 3 {error}",
    ]
    one = {"b@h": {"brakes": [brake(error="", waiting=1, tries=1)]}}
    assert next(iter(sentences(Status([], one)))).endswith(
        "on in 1 of 1 worker, for 12s: 1 message held, 1 run tried; the latest error is unknown."
    )

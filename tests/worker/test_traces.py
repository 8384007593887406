"""The trace goes from publisher to task in every pool, retries included, and spans know their message."""

import pytest

TRACE, PUBLISHER = 0xABC123, 0xDEF456
#: As OpenTelemetry's and Sentry's publishers write them.
HEADERS = {
    "traceparent": f"00-{TRACE:032x}-{PUBLISHER:016x}-01",
    "headers": {"sentry-trace": f"{TRACE:032x}-{PUBLISHER:016x}-1"},
}
OURS = "messaging.aws_sqs.message"

POOLS = ["prefork", "threads", "gevent"]


@pytest.fixture
def traced(make_site):
    """`traced(pool, (task, *arguments), ..., runs=n)`: runs tasks that are traced; their diary."""

    def run(pool, *tasks, runs):
        site = make_site({"traced": pool}, wait_time_seconds=1)
        site.start("traced", pool=pool)
        for task, *args in tasks:
            site.app.send_task(f"traced.{task}", args, task_id=args[0], headers=HEADERS)
        site.diary.wait_for("sentry", runs, kind="transaction")
        return site.diary

    return run


def runs_of(diary, key):
    """The spans of a task's runs, in order."""
    return diary.entries("span", name="run/traced.flaky", argument=key)


@pytest.mark.parametrize("pool", POOLS)
def test_each_attempt_is_a_span_below_the_publishers(traced, pool):
    diary = traced(pool, ("flaky", "recovers", 1), ("flaky", "fails", 9), runs=4)
    for key in ("recovers", "fails"):
        spans = runs_of(diary, key)
        assert [(span["trace"], span["parent"]) for span in spans] == [(TRACE, PUBLISHER)] * 2
        told = [span["attributes"] for span in spans]
        assert [each[f"{OURS}.receive_count"] for each in told] == [1, 2]
        assert told[0][f"{OURS}.id"] == told[1][f"{OURS}.id"]
        assert told[0]["messaging.system"] == "aws_sqs"
        assert told[0]["aws.sqs.queue.url"].endswith(told[0]["messaging.destination.name"])
        assert told[0]["celery.retry.reason"] == f"Retry in 1 s: ValueError({key!r})"
    ends = [(span["status"], span["exceptions"]) for span in runs_of(diary, "fails")]
    assert ends == [("UNSET", []), ("ERROR", ["ValueError"])]


def test_sentry_has_one_transaction_a_run_and_one_error_with_its_message(traced):
    diary = traced("threads", ("flaky", "fails", 9), runs=2)
    first, second = diary.entries("sentry", kind="transaction")
    assert first["trace"] == second["trace"] == f"{TRACE:032x}"
    told = [data for each in (first, second) for _, data in each["spans"]]
    assert [(each["messaging.system"], each[f"{OURS}.receive_count"]) for each in told] == [
        ("aws_sqs", 1),
        ("aws_sqs", 2),
    ]
    assert told[0]["messaging.message.id"] == "fails"  # Sentry's own, by which it finds the publisher
    (error,) = diary.entries("sentry", kind="event")
    assert (error["trace"], error["sqs"]) == (f"{TRACE:032x}", second["sqs"])
    assert error["sqs"][f"{OURS}.receive_count"] == 2


def test_what_a_task_publishes_is_of_its_trace_alone_in_batches_and_in_chains(traced):
    diary = traced("prefork", ("parent", "p"), runs=5)
    spans = {span["span"]: span for span in diary.entries("span")}
    above = {}
    for key in ("p-child", "p-batched", "p-first", "p-second"):
        (run,) = runs_of(diary, key)
        publication = spans[run["parent"]]
        assert publication["name"] == "apply_async/traced.flaky"
        above[key] = spans[publication["parent"]]["argument"]
    assert above == {"p-child": "p", "p-batched": "p", "p-first": "p", "p-second": "p-first"}
    assert {span["trace"] for span in spans.values()} == {TRACE}
    assert {each["trace"] for each in diary.entries("sentry")} == {f"{TRACE:032x}"}

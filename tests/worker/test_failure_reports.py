"""What a failing task says, and to whom: the log at INFO, Celery's signals, an error tracker."""

import re

import pytest

OURS = "celery_sqs_visibility.task.failure_log"


def seen(site, event, result):
    return site.diary.entries(event, id=result.id)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_an_error_tracker_sees_the_run_that_failed_for_good_once(make_site, pool):
    site = make_site()
    site.start("tracked", pool=pool)
    recovers, fails = (site.app.send_task("tracked.failing", [times]) for times in (2, 9))
    site.diary.wait_for("done", id=recovers.id)
    site.diary.wait_for("task_failure", id=fails.id)
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert [each["told"] for each in seen(site, "task_retry", recovers)] == [True, True]
    assert [each["told"] for each in seen(site, "task_retry", fails)] == [True, True]
    assert not seen(site, "task_failure", recovers)
    assert [each["told"] for each in seen(site, "task_failure", fails)] == [True]
    (event,) = site.diary.entries("sentry")
    assert (event["id"], event["errors"]) == (fails.id, ["Trouble"])


def test_it_sees_every_attempt_if_it_is_told_to_take_warnings(make_site):
    site = make_site()
    site.start("tracked", env={"SENTRY_LEVEL": "WARNING"})
    recovers = site.app.send_task("tracked.failing", [2])
    site.diary.wait_for("done", id=recovers.id)
    events = [(e["level"], e["errors"], e["logger"]) for e in seen(site, "sentry", recovers)]
    assert events == [("warning", ["Trouble"], OURS)] * 2


@pytest.mark.parametrize("loglevel", ["INFO", "DEBUG"])
def test_the_log_has_one_line_and_the_traceback_for_a_failed_attempt(make_site, loglevel):
    site = make_site(wait_time_seconds=1)
    dead_url = site.create_queue_with_dead_letters(receives=3)
    worker = site.start(loglevel=loglevel)
    result = site.send("hopeless", "a")
    site.proxy.wait_for(lambda _: site.counts(dead_url) == (1, 0))
    worker.terminate()
    worker.wait_exit()
    lines = [line.split("] ", 1) for line in worker.log.splitlines() if re.match(r"\[\d{4}-", line)]
    told = [(prefix.split()[2], text) for prefix, text in lines if "DEBUG/" not in prefix]
    told = [(level.split("/")[0], text) for level, text in told if result.id in text]
    task = f"Task work.hopeless[{result.id}]"
    received = ("INFO", f"{task} received")
    again = "and comes back in 1 s: Trouble('a')"
    assert told[:-1] == [
        *(received, ("WARNING", f"{task} failed at attempt 1 of 3 {again}")),
        *(received, ("WARNING", f"{task} failed at attempt 2 of 3 {again}")),
        *(received, ("ERROR", f"{task} raised unexpected: Trouble('a')")),
    ]
    level, text = told[-1]
    assert (level, text.split(" (")[0]) == ("WARNING", "message moved to the dead-letter queue")
    assert worker.log.count("\nwork.Trouble: a\n") == 3
    for nobody_asked in ("Found credentials", "Found endpoint", "Event before-", "Making request", "urllib3"):
        assert nobody_asked not in worker.log


@pytest.mark.parametrize(
    ("pool", "killed_at", "errors"),
    [
        ("prefork", 0, ["WorkerLostError", "Trouble", "Trouble"]),
        ("prefork", 1, ["Trouble", "WorkerLostError", "Trouble"]),
        ("prefork", 2, ["Trouble", "Trouble", "WorkerLostError"]),
        ("threads", None, ["Trouble", "Trouble", "Trouble"]),
    ],
)
def test_handlers_that_raise_cost_no_line_no_signal_and_no_second_call(make_site, pool, killed_at, errors):
    site = make_site()
    worker = site.start("ends", pool=pool)
    result = site.app.send_task("ends.measured", (), {"killed_at": killed_at})
    site.diary.wait_for("task_failure", id=result.id)
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert [each["exc"] for each in seen(site, "on_retry", result)] == errors[:2]
    assert len(seen(site, "task_retry", result)) == 2
    for_good = [] if killed_at == 2 else ["Trouble"]  # Celery's main process calls no `on_failure`
    assert [each["exc"] for each in seen(site, "on_failure", result)] == for_good
    assert len(seen(site, "after_return", result)) == len(for_good)
    failed = rf"Task ends.measured\[{result.id}\] failed at attempt (\d) of 3 and comes back in 1 s: (\w+)"
    assert re.findall(failed, worker.log) == [("1", errors[0]), ("2", errors[1])]
    assert worker.log.count("on_retry of task ends.measured failed; the outcome stays as stored") == 2
    assert "Celery could not record" not in worker.log

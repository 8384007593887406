"""A worker's metrics, as Prometheus, OpenTelemetry and CloudWatch get them."""

import json
import time
import urllib.request

from prometheus_client.parser import text_string_to_metric_families
from support.app import CONSTANTS
from support.processes import SOON, free_port, wait_until

LABELS = ("task", "queue", "outcome", "kind", "cause", "state")


def scraped(port):
    """Values by the series' name and its labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=SOON) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {
            (sample.name, *(sample.labels[label] for label in LABELS if label in sample.labels)): sample.value
            for family in families
            for sample in family.samples
            if sample.name.startswith("celery_sqs_")
        }


#: Queues are sampled every ten seconds.
OFTEN = {CONSTANTS: {"celery_sqs_visibility.policy.options.SAMPLE_ALONE_SECONDS": 10}}


def test_every_end_of_a_task_is_counted_for_everybody_who_asks(make_site, tmp_path):
    port = free_port()
    exports = tmp_path / "metrics.jsonl"
    site = make_site(
        OFTEN,
        http_address=f":{port}",
        metrics=["prometheus", "opentelemetry", "emf"],
        wait_time_seconds=1,
    )
    site.create_queue_with_dead_letters(9)
    for task in ("quick", "quick", "number", "hopeless", "stock", "stock_retrying"):
        site.send(task, task)
    worker = site.start(module="measured", env={"METRICS_FILE": str(exports)})
    queue, slots = site.queue, 1 if worker.pool == "solo" else 2
    expected = {
        ("celery_sqs_tasks_total", "work.quick", queue, "succeeded"): 2,
        ("celery_sqs_tasks_total", "work.number", queue, "retried"): 1,
        ("celery_sqs_tasks_total", "work.number", queue, "succeeded"): 1,
        ("celery_sqs_tasks_total", "work.hopeless", queue, "retried"): 2,
        ("celery_sqs_tasks_total", "work.hopeless", queue, "failed"): 1,
        ("celery_sqs_tasks_total", "work.stock", queue, "succeeded"): 1,
        ("celery_sqs_tasks_total", "work.stock_retrying", queue, "retried"): 1,
        ("celery_sqs_tasks_total", "work.stock_retrying", queue, "succeeded"): 1,
        ("celery_sqs_dead_lettered_total", "work.hopeless", queue): 1,
        ("celery_sqs_attempts_total", "work.hopeless", queue): 3,
        ("celery_sqs_messages_received_total", queue): 10,
        ("celery_sqs_run_seconds_count", "work.quick", queue, "succeeded"): 2,
        ("celery_sqs_start_lateness_seconds_count", queue, "first"): 6,
        ("celery_sqs_start_lateness_seconds_count", queue, "retry"): 4,
        ("celery_sqs_settle_seconds_count", queue): 10,
        ("celery_sqs_messages_hidden", queue, "retry"): 0,
        ("celery_sqs_slots",): slots,
        ("celery_sqs_slots_busy",): 0,
        ("celery_sqs_messages_held",): 0,
        ("celery_sqs_queue_messages", queue, "visible"): 0,
        ("celery_sqs_queue_messages", queue, "in_flight"): 0,
        ("celery_sqs_queue_dead_letters", queue): 1,
    }
    wait_until(lambda: not missing(expected, port), SOON, lambda: missing(expected, port))
    assert scraped(port)["celery_sqs_cost_usd_total", queue] > 0
    line = wait_until(lambda: idle_line(worker), SOON, "a line with no backlog and no busy slot")
    worker.terminate()
    assert worker.wait_exit() == 0
    assert (line["Queue"], line["Workers"], line["Slots"], line["Work"]) == (queue, 1, slots, 0)
    found = points(exports, worker.pid)
    assert found["messaging.client.consumed.messages"] == 10
    assert found["messaging.process.duration"] == 10


def test_a_run_after_an_eta_and_a_retry_are_as_late_as_they_began(make_site, tmp_path):
    port, end = free_port(), tmp_path / "end"
    site = make_site(http_address=f":{port}", wait_time_seconds=1)
    late, hidden = "celery_sqs_start_lateness_seconds", ("celery_sqs_messages_hidden", site.queue, "retry")
    site.send("later", "later")
    site.send("held", "held", path=str(end))
    site.start(concurrency=1, pool="threads")
    site.diary.wait_for("failing")
    wait_until(lambda: scraped(port).get(hidden) == 1, SOON, "a hidden message")
    site.diary.wait_for("started", 2)  # the one slot is held
    site.send("quick", "quick", countdown=1)
    due = time.time() + 4  # no later: of either
    wait_until(lambda: time.time() > due + 1, SOON, "a second after both were due")
    assert scraped(port)[hidden] == 0
    ended = time.time()
    end.touch()
    for kind in ("eta", "retry"):
        count = (f"{late}_count", site.queue, kind)
        wait_until(lambda count=count: scraped(port).get(count) == 1, SOON, f"a late start: {kind}")
        assert scraped(port)[f"{late}_sum", site.queue, kind] >= ended - due


def idle_line(worker):
    """CloudWatch's first line of a time without work."""
    lines = [json.loads(line) for line in worker.log.splitlines() if '"Backlog":0,' in line]
    return next((line for line in lines if line["SlotsBusy"] == 0), None)


def missing(expected, port):
    """What is not as expected."""
    found = scraped(port)
    wrong = [key for key, value in expected.items() if found.get(key) != value]
    return ", ".join(f"{key}: {found.get(key)}, not {expected[key]}" for key in wrong)


def points(exports, pid):
    """The sums and counts of the last export, in which children have no part."""
    found = {}
    for line in exports.read_text().splitlines():
        export = json.loads(line)
        for resource in export["resource_metrics"]:
            for scope in resource["scope_metrics"]:
                if scope["scope"]["name"] == "celery_sqs_visibility":
                    assert export["pid"] == pid
                    for metric in scope["metrics"]:
                        values = [p.get("count", p.get("value")) for p in metric["data"]["data_points"]]
                        found[metric["name"]] = sum(values)
    return found

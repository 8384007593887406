"""The benchmarks' tables, plots and counts; what they measure is never asserted."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from support.faults import Request, json_answer

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def asking(action, parameters):
    headers = {"x-amz-target": f"AmazonSQS.{action}", "content-type": "application/x-amz-json-1.0"}
    return Request("POST", "/", headers, json.dumps(parameters).encode())


def test_a_table_has_medians_and_the_json_all_repeats(benchmark_module):
    results = benchmark_module("results")
    result = results.Result("consume", "10 ms", "ours", load=0.5)
    for rate in (501.2, 480, 1530):
        result.add(tasks_per_s=rate, requests_per_task=0.22)
    assert results.table([result]).splitlines()[-1] == "| 10 ms | ours | 501 | 0.22 |"
    assert (
        results.table([result], ["requests/task", "load"]).splitlines()[-1] == "| 10 ms | ours | 0.22 | - |"
    )
    assert result.as_plain()["runs"]["tasks/s"] == [501.2, 480, 1530]
    assert result.as_plain()["medians"] == {"tasks/s": 501.2, "requests/task": 0.22}


def test_a_page_gets_the_run_between_its_markers_and_its_plots(benchmark_module, tmp_path):
    results, report = benchmark_module("results"), benchmark_module("report")
    page = tmp_path / "page.md"
    names = ("run", "publish")
    page.write_text(
        "before\n"
        + "".join(f"<!-- make bench: {name} -->\nan old run\n<!-- end of {name} -->\n" for name in names)
        + "after\n"
    )
    publish = results.Result("publish", "60 s", "<ours>", load=0.5)
    publish.add(tasks_per_s=3)
    run = {"date": "today", "commit": "c0ffee", "cores": 2, "python": "3.11", "emulator": "ministack"}
    run |= {"load": [0.1], "versions": {"celery": "5.7"}, "arguments": {"tasks": 9, "repeats": 1}}
    report.write(page, run, [publish])
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "an old run" not in text
    assert "Run of today, commit `c0ffee`" in text
    assert "| 60 s | <ours> | 3 |" in text
    assert "(page/publish-rate.svg)" in text
    assert "&lt;ours&gt;" in (tmp_path / "page" / "publish-rate.svg").read_text()


def test_a_meter_counts_requests_from_the_first_message_to_the_last_deletion(benchmark_module):
    meter = benchmark_module("meter").Meter(tasks=3)

    def ask(action, body, answer):
        meter(asking(action, body), lambda _: json_answer(200, answer), threading.Event())

    messages = [{"ReceiptHandle": str(number)} for number in range(3)]
    ask("GetQueueUrl", {}, {})
    ask("ReceiveMessage", {}, {})
    ask("ReceiveMessage", {}, {"Messages": messages})
    ask("DeleteMessageBatch", {"Entries": messages[:2]}, {})
    assert not meter.done.is_set()
    ask("DeleteMessage", messages[2], {})
    assert meter.done.is_set()
    assert (meter.received, meter.deleted, meter.last.requests - meter.first.requests) == (3, 3, 3)


def test_a_played_queue_hands_out_each_message_once_and_takes_deletions(benchmark_module):
    queue = benchmark_module("playing").PlayedQueue(map(str, range(12)))
    ended = threading.Event()
    ended.set()

    def ask(action, **parameters):
        passed_on = json_answer(200, {"Passed": action})
        return json.loads(queue(asking(action, parameters), lambda _request: passed_on, ended).body)

    received = [
        [message["Body"] for message in ask("ReceiveMessage", MaxNumberOfMessages=10).get("Messages", [])]
        for _ in range(3)
    ]
    assert received == [list(map(str, range(10))), ["10", "11"], []]
    assert ask("DeleteMessageBatch", Entries=[{"Id": "0"}]) == {"Successful": [{"Id": "0"}], "Failed": []}
    assert ask("GetQueueUrl") == {"Passed": "GetQueueUrl"}

"""The log as JSON lines, and the documented queries on that of a worker to which everything happens."""

import json
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from support.programs import program
from support.redis_server import RedisServer

PAGE = Path(__file__).resolve().parents[2] / "docs/logs-and-events.md"
#: Commands, functions and operators of CloudWatch Logs Insights.
INSIGHTS = {
    *("filter", "stats", "fields", "display", "by", "as", "and", "or", "not", "in", "like", "sort", "asc"),
    *("count", "latest", "max", "sum", "ispresent", "strcontains", "fromMillis"),
}
IDS = {"task", "task_id", "message_id", "queue", "attempt"}


def queries():
    """The jq programs of the page, in order."""
    return re.findall(
        r"^```console\n\$ jq -nR '(.*?)' worker\.log\n```", PAGE.read_text(), re.DOTALL | re.MULTILINE
    )


def insights_fields():
    """The names that the page's queries of CloudWatch Logs Insights take for fields of a line."""
    text = "\n".join(re.findall(r"^```text\n(filter .*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE))
    words = set(re.findall(r"[A-Za-z_]+", re.sub(r'"[^"]*"|@\w+', "", text)))
    return words - INSIGHTS - set(re.findall(r" as (\w+)", text))


def jq(query, worker):
    shown = subprocess.run(
        [program("jq"), "-nR", "-c", query, worker.log_path],
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in shown.stdout.splitlines()]


def lines_of(worker):
    return [json.loads(line) for line in worker.log.splitlines() if line.startswith("{")]


@pytest.fixture
def site(make_site, tmp_path):
    with RedisServer(tmp_path) as redis:
        yield make_site(coordination_store=redis.url, wait_time_seconds=1)


def send(site, task, key, **options):
    site.app.send_task(f"logged.{task}", [key], task_id=options.pop("task_id", key), **options)


def test_the_queries_of_the_page_tell_what_became_of_whom(site):
    worker = site.start("logged", concurrency=1)
    send(site, "works", "works")
    send(site, "works", "parked", countdown=3000, delay_seconds=0)
    send(site, "once", "key")
    site.diary.wait_for("done", key="key")
    send(site, "once", "key", task_id="again")
    send(site, "works", "expired", expires=-60)
    send(site, "fails", "fails")
    site.proxy.wait_for(lambda _: worker.log.count('"task failed"') == 2)
    site.proxy.wait_for(lambda _: site.counts()[0] == 0 and '"skipped"' in worker.log)
    send(site, "kills_worker", "dies")
    worker.wait_exit()
    lines = lines_of(worker)
    told = {line["task_id"]: line for line in lines if line["message"] == "message received"}

    assert {"message", "outcome", "seconds"} <= insights_fields() <= {name for line in lines for name in line}
    unfinished, skipped, failing = (jq(query, worker) for query in queries())
    assert [(each["task_id"], each["message_id"]) for each in unfinished] == [
        ("dies", told["dies"]["message_id"])
    ]
    assert {(each["task"], each["task_id"], each["key"]) for each in skipped} == {
        ("logged.once", "again", "logged.once:key"),
        ("logged.works", "expired", None),
    }
    assert len(skipped) == 2
    (failure,) = failing
    assert (failure["task_id"], failure["failures"], failure["error"]) == ("fails", 2, "ValueError('fails')")
    assert failure["comes_back"] > max(line["timestamp"] for line in lines)[:19]
    assert "message parked until it may run" in {
        line["message"] for line in lines if line.get("task_id") == "parked"
    }


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_every_line_of_a_task_has_its_ids_and_celerys_are_not_doubled(site, pool):
    worker = site.start("logged", pool=pool, concurrency=1)
    send(site, "works", "a")
    send(site, "fails", "b")
    site.proxy.wait_for(lambda _: '"task failed"' in worker.log and "message deleted" in worker.log)
    lines = lines_of(worker)
    for message in ("sold a", "told", "printed"):
        (line,) = (line for line in lines if line["message"] == message)
        assert line.keys() >= IDS
        assert (line["task"], line["task_id"], line["attempt"]) == ("logged.works", "a", 1)
    assert next(line for line in lines if line["message"] == "sold a")["price"] == 7
    about_messages = [line for line in lines if line.get("task_id")]
    assert all(line.keys() >= IDS for line in about_messages)
    ours = ["message received", "task started", "task finished", "message deleted"]
    # The process that runs a task does not wait until another has written that it started.
    told = sorted(line["message"] for line in about_messages if line["task_id"] == "a")
    assert told == sorted([*ours, "sold a", "told", "printed"])
    (failed,) = (line for line in lines if "failed at attempt 1 of 6" in line["message"])
    assert failed["exception_type"] == "ValueError"
    assert failed["traceback"].endswith("ValueError: b")


@pytest.mark.parametrize("life_cycle", [True, False])
def test_celerys_own_lines_about_a_message_have_its_ids(site, life_cycle):
    worker = site.start("logged", concurrency=1, env={"LIFE_CYCLE": "1" if life_cycle else ""})
    send(site, "works", "expired", expires=-60)
    send(site, "fails_for_good", "bad")
    send(site, "exits", "gone")
    worker.wait_for_log("exited with")
    site.proxy.wait_for(lambda _: site.kept == 0)
    lines = lines_of(worker)
    celerys = [line for line in lines if re.search(r"Task .*\]|Discarding", line["message"])]
    assert not [line for line in celerys if not line.keys() >= IDS]
    told = Counter(re.search(r"Disc|rec|raised|$", line["message"])[0] for line in celerys)
    assert told == Counter(Disc=1, raised=1, rec=0 if life_cycle else 3)
    assert [line["logger"] for line in lines if "exited with" in line["message"]] == ["multiprocessing"]

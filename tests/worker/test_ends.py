"""However a run ends: the message, the state, the errbacks and the signals are what the table says."""

from __future__ import annotations

import pytest
from support.ends import ROWS, Fate

from celery_sqs_visibility.delivery.settle.dead_letters import described

POOLS = ["prefork", "threads", "solo", "gevent", "eventlet"]


@pytest.fixture
def ends_site(make_site, tmp_path):
    """A site whose dead letters can be told from what was deleted."""
    results = tmp_path / "results"
    site = make_site({"result_backend": f"support.failing_backend:FailingBackend+file://{results}"})
    site.config["broker_transport_options"]["dead_letter_queue"] = f"{site.queue}-dead"
    return site


def send(site, row):
    options = {**row.options, "link_error": site.app.signature("ends.errback")}
    return site.app.send_task(f"ends.{row.task}", (), row.kwargs, **options)


def dead_letters(site):
    """Task ids of the dead letters."""
    url = site.sqs.get_queue_url(QueueName=f"{site.queue}-dead")["QueueUrl"]
    found = []
    while messages := site.sqs.receive_message(
        QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"]
    ).get("Messages"):
        found += [described(message["MessageAttributes"])["task_id"] for message in messages]
    return found


def what_happened(site, result, letters):
    events = {"runs": "run", "retries": "task_retry", "errbacks": "errback", "failures": "task_failure"}
    return {
        **{name: site.diary.count(event, id=result.id) for name, event in events.items()},
        "state": result.state,
        "dead letters": letters.count(result.id),
    }


def what_should(row):
    fates = [run.fate for run in row.runs]
    told = [run for run in row.runs if run.fate is Fate.COME_BACK and run.told]
    # Celery's own retry tells, too, where it can be stored.
    published = row.task in {"retrying_with_arguments", "continuing"} and row.runs[0].told
    return {
        "runs": len(row.runs) + row.more,
        "retries": len(told) + published,
        "errbacks": int(row.state == "FAILURE"),
        "failures": int(row.state == "FAILURE"),
        "state": row.state,
        "dead letters": fates.count(Fate.GIVE_UP),
    }


@pytest.mark.parametrize("pool", POOLS)
def test_every_end_is_as_the_table_says(ends_site, pool):
    site = ends_site
    rows = [row for row in ROWS if pool == "prefork" or not row.needs]
    site.start("ends", pool=pool, concurrency=4 if pool != "solo" else 1)
    results = {row.name: (row, send(site, row)) for row in rows}
    assert len(results) == len(rows)
    site.proxy.wait_for(lambda _: all_over(site, results.values()), timeout=90)
    site.proxy.wait_for(lambda _: site.counts() == (0, 0), timeout=60)
    letters = dead_letters(site)
    happened = {name: what_happened(site, result, letters) for name, (_, result) in results.items()}
    assert happened == {row.name: what_should(row) for row in rows}


def all_over(site, sent):
    """Whether every message had its runs, and all states are final."""
    return all(
        site.diary.count("run", id=result.id) >= len(row.runs) + row.more and result.state == row.state
        for row, result in sent
    )

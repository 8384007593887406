"""However a run ends: all that follows is as a table says, nothing is lost, and nothing runs for ever."""

import pytest
from support.ends import ROWS, Fate
from support.faults import error

from celery_sqs_visibility.delivery.settle.dead_letters import described

POOLS = ["prefork", "threads", "solo", "gevent", "eventlet"]


@pytest.fixture
def ends_site(make_site, tmp_path):
    """A site whose dead letters can be told from what was deleted."""
    results = tmp_path / "results"
    site = make_site({"result_backend": f"support.result_backends:FailingBackend+file://{results}"})
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
    published = row.task in {"retrying_with_arguments", "continuing"}  # Celery's own retry tells, too
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
    site.proxy.wait_for(lambda _: all_over(site, results.values()))
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    letters = dead_letters(site)
    happened = {name: what_happened(site, result, letters) for name, (_, result) in results.items()}
    assert happened == {row.name: what_should(row) for row in rows}


def all_over(site, sent):
    """Whether every message had its runs, and all states are final."""
    return all(
        site.diary.count("run", id=result.id) >= len(row.runs) + row.more and result.state == row.state
        for row, result in sent
    )


LOST = pytest.mark.prefork_only("only a process can be lost")


@pytest.mark.parametrize(
    ("task", "limits", "attempts", "messages"),
    [
        # One message more has told that limit.
        pytest.param("retrying", {"max_retries": 5}, 6, 2, id="that all retries say"),
        pytest.param(
            "retrying_and_killed", {"limit": 4, "killed_at": 2}, 5, 2, id="before a child is lost", marks=LOST
        ),
        pytest.param(
            "retrying_anew_and_killed",
            {"limit": 5, "killed_at": 4},
            6,
            5,
            id="of a retry published for other reasons",
            marks=LOST,
        ),
    ],
)
def test_a_limit_above_the_tasks_own_counts_on_every_worker(make_site, task, limits, attempts, messages):
    site = make_site(error_visibility_timeout=1)
    for _ in range(2):
        site.start("ends")
    result = site.app.send_task(f"ends.{task}", (), limits)
    site.proxy.wait_for(lambda _: result.state == "FAILURE")
    assert [entry["retries"] for entry in site.diary.entries("run", id=result.id)] == list(range(attempts))
    assert site.proxy.count("SendMessage", queue=site.queue) == messages
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))


def test_a_failure_after_an_extension_comes_back_after_the_visibility_timeout(make_site):
    site = make_site(visibility_timeout=6, heartbeat_interval=1)
    site.start("ends")
    result = site.app.send_task("ends.extending_and_failing")
    site.proxy.wait_for(lambda _: result.state == "SUCCESS")
    assert site.changes() == [600, 6]


def test_a_stock_task_that_is_not_acknowledged_on_failure_comes_back(make_site, reliability):
    site = make_site(visibility_timeout=3)
    site.start()
    site.send("stock_failing", "a")
    site.diary.wait_for("done", key="a")
    assert site.diary.count("started", key="a") == 2
    reliability("`acks_on_failure_or_timeout=False`", "a stock task fails once", ["a"], runs=2)


def test_what_failed_for_good_is_kept_where_the_redrive_policy_cannot_be_read(make_site, reliability):
    site = make_site(visibility_timeout=3)
    site.proxy.inject(error("AccessDenied", 403), "GetQueueAttributes")
    worker = site.start()
    errback = site.app.signature("work.on_error")
    result = site.send("hopeless", "a", link_error=errback)
    site.diary.wait_for("errback")
    # It comes back, as SQS's own redrive policy wants it to; but it is neither run nor failed again.
    site.proxy.wait_for(lambda _: len(site.brought()) >= 5)
    assert result.state == "FAILURE"
    assert site.diary.count("started", key="a") == 3
    assert site.diary.count("errback") == 1
    assert sum(site.counts()) == 1
    assert worker.log.count("allow sqs:GetQueueAttributes") == 1
    reliability("no `sqs:GetQueueAttributes`", "a task fails for good", ["a"], kept=site.kept)


@pytest.mark.own_pool
def test_a_task_that_kills_every_worker_ends_as_a_failure(make_site):
    site = make_site(visibility_timeout=5, heartbeat_interval=4, wait_time_seconds=1)
    result = site.send("hopeless_killer", "a")
    # max_retries=0; three more receives are forgiven, because they might have been releases.
    for attempt in range(4):
        worker = site.start(pool="solo")
        site.diary.wait_for("started", attempt + 1, key="a")
        worker.wait_exit()
    site.start(pool="solo")
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert result.state == "FAILURE"
    assert site.diary.count("started", key="a") == 4


@pytest.mark.parametrize(("deploys", "count"), [("two", 2), ("eight", 8)])
def test_what_was_only_released_runs_even_if_it_may_not_be_retried(make_site, deploys, count, reliability):
    site = make_site(visibility_timeout=60)
    site.create_queue()
    result = site.send("once", "a")
    for _ in range(count):
        site.give_back()
    site.start()
    (entry,) = site.diary.wait_for("started", key="a")
    assert entry["retries"] == count
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert result.state == "SUCCESS"
    reliability(f"{deploys} deploys give a message back", "`max_retries=0`", ["a"], ended="started")


@pytest.mark.parametrize("pool", ["threads", "solo", "gevent"])
def test_an_exit_in_a_stock_task_ends_no_worker_that_has_no_children(make_site, pool):
    site = make_site()
    worker = site.start(pool=pool, concurrency=1, prefetch_multiplier=1)
    site.send("stock_exiting", "stock")
    site.diary.wait_for("started", key="stock")
    site.begin("after")
    assert worker.running


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_what_celery_leaves_unacknowledged_comes_back(make_site, pool, reliability):
    site = make_site(visibility_timeout=3)
    worker = site.start(pool=pool)
    site.send("stock_out_of_memory", "a")
    site.diary.wait_for("done", key="a")
    assert worker.running
    assert "comes back: it ran out of memory" in worker.log
    reliability("a stock task is out of memory", "once", ["a"], runs=2)


@pytest.mark.own_pool
def test_a_consumer_in_a_task_leaves_the_workers_alone(make_site):
    site = make_site(wait_time_seconds=1)
    worker = site.start(pool="threads")
    site.send("with_a_queue_of_its_own", "a", f"{site.queue}-own")
    site.diary.wait_for("done", key="a")
    site.begin("after")
    assert worker.running

"""One run of a key at a time, none after it succeeded: across workers, duplicates, crashes and failures."""

import re
import uuid

import pytest
from redis import Redis
from support.exclusive_stores import create_table
from support.faults import error, latency
from support.processes import SOON, wait_until
from support.redis_server import RedisServer

from celery_sqs_visibility.policy.quotas import MESSAGE_BYTES
from celery_sqs_visibility.stores.redis import PREFIX

LOST = "No attempts left: the runs before were lost"
POOLS = ["prefork", "threads", "solo", "gevent", "eventlet"]


@pytest.fixture(scope="module")
def redis(tmp_path_factory):
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def dynamodb(emulator, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", emulator.url)
    return f"dynamodb://{create_table()}"


@pytest.fixture
def exclusive_site(make_site, redis):
    def make(store=redis.url, **options):
        return make_site(coordination_store=store, wait_time_seconds=1, **options)

    return make


def send(site, task, *args, **options):
    return site.app.send_task(f"exclusive.{task}", args, **options)


def start(site, **options):
    return site.start("exclusive", **options)


def logged(workers, sentence):
    return sum(worker.log.count(sentence) for worker in workers)


def delayed(site):
    name = "ApproximateNumberOfMessagesDelayed"
    answer = site.sqs.get_queue_attributes(QueueUrl=site.url, AttributeNames=[name])
    return int(answer["Attributes"][name])


def wait_until_empty(site):
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))


@pytest.mark.parametrize("store", ["redis", "dynamodb"])
def test_a_key_that_was_processed_is_skipped_and_its_result_stays(exclusive_site, request, store):
    found = request.getfixturevalue(store)
    site = exclusive_site(found if store == "dynamodb" else found.url)
    result = send(site, "once", "a", task_id=f"{store}-id")
    worker = start(site)
    assert result.get(timeout=SOON) == result.id
    before = site.app.backend.get_task_meta(result.id)
    send(site, "once", "b", task_id=result.id)
    worker.wait_for_log(f"Task exclusive.once[{result.id}] skipped: its key 'exclusive.once:{result.id}'", 20)
    wait_until_empty(site)
    assert site.diary.count("started") == 1
    assert site.app.backend.get_task_meta(result.id) == before


@pytest.mark.own_pool
def test_of_ten_workers_in_all_pools_that_race_for_a_key_one_runs(exclusive_site):
    site = exclusive_site(visibility_timeout=5, heartbeat_interval=4)
    workers = [start(site, pool=pool, concurrency=1, ready=False) for pool in POOLS * 2]
    for worker in workers:
        worker.wait_ready()
    results = [send(site, "keyed", "raced", 6) for _ in range(20)]
    for pool in POOLS:  # so that several pools have runs, which last for longer than a lease
        results += [send(site, "keyed", pool, 6) for _ in range(3)]
    wait_until_empty(site)
    assert sorted(entry["key"] for entry in site.diary.entries("started")) == sorted([*POOLS, "raced"])
    assert logged(workers, "and was not run: its key") >= 1
    assert sorted(result.state for result in results) == ["PENDING"] * 29 + ["SUCCESS"] * 6
    # A message that is lost while the machine stalls is skipped twice, or has its run's own skipped.
    skipped = {name for worker in workers for name in re.findall(r"\[(\S+)\] skipped: its key", worker.log)}
    assert skipped >= {result.id for result in results if result.state == "PENDING"}


@pytest.mark.parametrize(
    "way",
    [
        "a message that is lost",
        "a message whose extensions fail for a while",
        "a large message that is published twice",
    ],
)
def test_a_run_that_goes_on_is_not_failed_by_a_message_that_waits_for_it(exclusive_site, s3, tmp_path, way):
    options, sent, payload = {}, 1, ""
    if way.startswith("a large message"):
        s3.create_bucket(Bucket=f"bucket-{(name := uuid.uuid4().hex)}")
        options, sent, payload = (
            {"payload_store": f"s3://bucket-{name}"},
            2,
            "x" * MESSAGE_BYTES,
        )
    tracked = {"task_track_started": True}
    site = exclusive_site(settings=tracked, visibility_timeout=5, heartbeat_interval=4, **options)
    site.create_queue()  # without a redrive policy, which would end the waits
    workers = [start(site, concurrency=1, ready=False) for _ in range(2)]
    for worker in workers:
        worker.wait_ready()
    refusals = error("AccessDenied", 403)
    denied = site.proxy.inject(refusals, "ChangeMessageVisibilityBatch") if sent == 1 else None
    told = tmp_path / "there"
    for _ in range(sent):
        result = send(site, "until_there", str(told), payload, task_id=f"{site.queue}-task")
    site.diary.wait_for("started")
    waits = "and was not run: its key"
    if denied and "for a while" in way:
        wait_until(lambda: logged(workers, waits), SOON, "a second worker that has it")
        denied.remove()
    wait_until(lambda: logged(workers, waits) >= 7 or logged(workers, LOST), SOON, "seven waits")
    told.touch()
    assert result.get(timeout=SOON) == "done"
    wait_until_empty(site)
    assert logged(workers, LOST) == 0
    assert site.diary.count("started") == 1


@pytest.mark.parametrize("then", ["its message comes again", "another message has its key", "it ends"])
def test_a_run_whose_record_redis_loses_has_its_key_again(exclusive_site, redis, tmp_path, then):
    extensions = {} if then == "it ends" else {"visibility_timeout": 4, "heartbeat_interval": 3}
    site = exclusive_site(**extensions)
    workers = [start(site, concurrency=1, ready=False) for _ in range(2)]
    for worker in workers:
        worker.wait_ready()
    told, key = tmp_path / "there", f"exclusive.until_there:{site.queue}"
    result = send(site, "until_there", str(told), task_id=site.queue)
    site.diary.wait_for("started")
    with Redis(port=redis.port) as client:
        client.flushall()
        if then != "it ends":
            wait_until(lambda: client.exists(f"{PREFIX}{key}"), SOON, "a renewal")
            if then == "its message comes again":
                site.proxy.inject(error("AccessDenied", 403), "ChangeMessageVisibilityBatch")
            else:
                send(site, "until_there", str(told), task_id=result.id)
            wait_until(lambda: logged(workers, "and was not run: its key"), SOON, "a wait")
            site.proxy.clear_faults()
    told.touch()
    assert result.get(timeout=SOON) == "done"
    send(site, "until_there", str(told), task_id=result.id)
    wait_until(lambda: logged(workers, f"skipped: its key {key!r} was processed before"), SOON, "a skip")
    wait_until_empty(site)
    assert site.diary.count("started") == site.diary.count("done") == 1
    assert logged(workers, f"the key {key!r} was lost") == 0


def test_a_killed_worker_frees_the_key_when_its_message_is_visible_again(exclusive_site):
    site = exclusive_site(visibility_timeout=5, heartbeat_interval=3)
    workers = [start(site, concurrency=1, ready=False) for _ in range(2)]
    for worker in workers:
        worker.wait_ready()
    send(site, "killed_once", "killed")
    site.diary.wait_for("done")
    assert [worker.running for worker in workers].count(False) == 1
    (began, again) = site.diary.entries("started")
    assert again["checkpoint"] == "reached"
    assert again["monotonic"] - began["monotonic"] > 4
    assert again["retries"] == 1


def test_an_idle_worker_runs_what_continues_a_task_at_once_with_its_checkpoint(exclusive_site):
    site = exclusive_site(visibility_timeout=60)
    workers = [start(site, concurrency=2) for _ in range(2)]
    send(site, "in_parts", "parts")
    site.diary.wait_for("started", 3)
    wait_until_empty(site)
    assert [entry["checkpoint"] for entry in site.diary.entries("started")] == [None, 1, 2]
    assert logged(workers, "and was not run: its key") == 0


@pytest.mark.prefork_only("only there a hard time limit ends a run")
def test_a_run_is_killed_at_its_time_limit_before_its_key_is_free_or_a_handler_hears(exclusive_site):
    site = exclusive_site()
    start(site)
    send(site, "limited", "limited")
    site.diary.wait_for("done")
    (heard,) = site.diary.entries("heard")
    assert site.diary.entries("alive")[-1]["monotonic"] < heard["monotonic"]


@pytest.mark.prefork_only("elsewhere a run ends a moment after its message is released")
def test_a_shutdown_ends_a_run_before_another_worker_has_its_key(exclusive_site):
    site = exclusive_site(shutdown_timeout=1)
    ending = start(site, concurrency=1)
    send(site, "endless", site.queue)
    site.diary.wait_for("started")
    start(site, concurrency=1)
    site.proxy.inject(latency(1), "ChangeMessageVisibilityBatch")
    ending.terminate()
    site.diary.wait_for("done")
    again = site.diary.entries("started")[1]
    assert site.diary.entries("alive")[-1]["monotonic"] < again["monotonic"]
    assert ending.wait_exit() == 0
    assert "shutdown: orphaned" in ending.log


def other_queue(site):
    name = f"{site.queue}-plain"
    site.sqs.create_queue(QueueName=name)
    return name


def asked(store):
    """How often a run of `keyed` asked for its key, as a proxy saw it."""
    calls = [*store.way.calls("UpdateItem"), *store.way.in_flight("UpdateItem")]
    return len([call for call in calls if "exclusive.keyed:" in str(call.request["Key"])])


@pytest.mark.own_pool
@pytest.mark.parametrize(
    ("pool", "options"),
    [("prefork", []), ("prefork", ["--max-tasks-per-child=1"]), ("threads", []), ("solo", [])],
)
def test_while_the_store_hangs_one_run_waits_for_it_and_plain_tasks_for_none(
    exclusive_site, hanging_store, reliability, pool, options
):
    site = exclusive_site(hanging_store.url)
    site.create_queue()
    plain = other_queue(site)
    with hanging_store.hang():
        for number in range(6):
            send(site, "keyed", number)
        for number in range(4):
            send(site, "plain", f"plain {number}", queue=plain)
        worker = start(site, pool=pool, concurrency=1, queues=[site.queue, plain], extra_args=options)
        # Celery may replace a child that has ended only 5 s later (asynpool's `maintain_pool`).
        site.diary.wait_for("started", 4)
        site.proxy.wait_for(lambda _: (delayed(site), site.kept) == (6, 0))
        assert logged([worker], "was not run, and comes back in 30 s: its key cannot be acquired") == 6
        # The main process, by its own question at the start, and at the most one child that has waited, too.
        assert logged([worker], "does not answer, and is left alone") <= 2
        if hanging_store.url.startswith("dynamodb"):
            assert asked(hanging_store) <= 1
    worker.wait_for_log("INFO/MainProcess] the store of exclusive keys answers again")
    result = send(site, "keyed", "after")
    assert result.get(timeout=SOON) == result.id, "it does not come back in 30 s as the others"
    keys = ["after", *range(6), *(f"plain {number}" for number in range(4))]
    reliability("the store of exclusive keys hangs", "one slot; 6 messages wait for it", keys, kept=6)

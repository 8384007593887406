"""Messages that become several, or wait as another: nothing grows, and no part is sent twice."""

import json
from collections import Counter

import pytest
from support.aws_events import s3_notification, s3_record
from support.faults import error, latency
from support.processes import SOON, wait_until
from support.redis_server import RedisServer

SENDS = ("SendMessage", "SendMessageBatch")

DENIED = error("AccessDeniedException", 403, "no identity-based policy allows the action")


def put_event(site, records):
    site.sqs.create_queue(QueueName=site.queue)
    body = json.dumps(s3_notification(*[s3_record(key=f"k{number}") for number in range(records)]))
    site.sqs.send_message(QueueUrl=site.url, MessageBody=body)
    return body


def requests(site):
    """The requests that put messages into the queue."""
    return [call for action in SENDS for call in site.proxy.calls(action, queue=site.queue)]


def entries(site):
    """The messages that they have put there."""
    return [entry for call in requests(site) for entry in call.request.get("Entries", [call.request])]


def goes_on(entry):
    """Whether it stands for the records of an event that were left."""
    return "continues" in (entry.get("MessageAttributes") or {})


def sent(site):
    """How many messages they have put there."""
    return len(entries(site))


def runs(site):
    return Counter(entry["key"] for entry in site.diary.entries("done"))


def wait_until_done(site, timeout=120):
    wait_until(lambda: site.counts() == (0, 0), timeout, lambda: (site.counts(), sent(site), len(runs(site))))


def test_an_event_of_700_records_takes_70_requests_and_runs_each_once(make_site):
    site = make_site(visibility_timeout=5)
    put_event(site, 700)
    site.proxy.inject(latency(0.04))
    site.start("importing", pool="threads", concurrency=8)
    wait_until_done(site)
    assert set(runs(site).values()) == {1}
    assert len(runs(site)) == 700
    assert sent(site) == 700
    assert len(requests(site)) <= 72


def test_an_event_whose_records_all_run_is_no_dead_letter(make_site):
    site = make_site(visibility_timeout=10)
    dead_url = site.create_queue_with_dead_letters(receives=3)
    put_event(site, 300)
    site.proxy.inject(latency(0.05))
    site.start("importing", pool="threads", concurrency=8)
    wait_until_done(site)
    assert sum(runs(site).values()) == 300
    assert site.counts(dead_url) == (0, 0)


@pytest.mark.parametrize("how", ["SIGTERM", "its visibility timeout cannot be extended"])
def test_an_interrupted_event_goes_on_where_it_stopped(make_site, reliability, how):
    # Nothing is extended then: the records, too, must run and be deleted in that time, on a slow machine.
    site = make_site(visibility_timeout=4 if how == "SIGTERM" else 12)
    put_event(site, 300)
    slow = site.proxy.inject(latency(0.6), *SENDS)
    if how != "SIGTERM":
        site.proxy.inject(DENIED, "ChangeMessageVisibilityBatch")
    worker = site.start("importing", pool="threads", concurrency=8)
    if how == "SIGTERM":
        site.proxy.wait_for(lambda _: sent(site) >= 20)
        worker.terminate()
        assert worker.wait_exit(60) == 0
        assert sent(site) < 300
        slow.remove()
        site.start("importing", pool="threads", concurrency=8)
    wait_until_done(site)
    assert len(runs(site)) == 300
    assert set(runs(site).values()) == {1}
    assert len([entry for entry in entries(site) if not goes_on(entry)]) == 300, "no record is sent twice"
    keys = [f"k{number}" for number in range(300)]
    reliability("an event of 300 records is interrupted while they are sent", "the rest goes on", keys)


def test_a_worker_that_is_killed_repeats_what_it_had_sent_with_the_same_task_ids(make_site, reliability):
    site = make_site(visibility_timeout=4)
    put_event(site, 300)
    slow = site.proxy.inject(latency(0.6), *SENDS)
    worker = site.start("importing", pool="threads", concurrency=8)
    site.proxy.wait_for(lambda _: sent(site) >= 20)
    worker.kill()
    worker.wait_exit(60)
    last = (*SENDS, "DeleteMessage", "DeleteMessageBatch")
    wait_until(lambda: not any(map(site.proxy.in_flight, last)), SOON, "its last requests have ended")
    repeated = sent(site)
    assert repeated < 300
    deleted = 1 + repeated - site.kept
    unsettled = sum(runs(site).values()) - deleted
    slow.remove()
    site.start("importing", pool="threads", concurrency=8)
    wait_until_done(site)
    ids = {(entry["key"], entry["id"]) for entry in site.diary.entries("started")}
    assert len(ids) == len(runs(site)) == 300
    assert sum(runs(site).values()) <= 300 + repeated + unsettled
    keys = [f"k{number}" for number in range(300)]
    reliability("SIGKILL while an event's records are sent", "they are sent anew", keys)


def test_without_the_permission_to_delete_waits_for_a_key_copy_nothing(make_site, redis):
    site = make_site(coordination_store=redis.url, wait_time_seconds=1, visibility_timeout=6)
    site.create_queue()
    site.proxy.inject(DENIED, "DeleteMessage", "DeleteMessageBatch", queue=site.queue)
    workers = [site.start("exclusive", pool="threads", concurrency=4) for _ in range(2)]
    for _ in range(3):
        site.app.send_task("exclusive.keyed", ["held", 14])
    site.diary.wait_for("done", key="held", timeout=60)
    waits = sum(worker.log.count("waits for") for worker in workers)
    assert waits >= 6
    assert site.kept == 3
    assert any("allow sqs:DeleteMessage" in worker.log for worker in workers)


@pytest.mark.parametrize(
    "action",
    ["SendMessage", "DeleteMessage", "ChangeMessageVisibility", "GetQueueAttributes"],
)
def test_without_any_one_permission_a_queue_has_twice_what_was_published_at_the_most(
    make_site, redis, action
):
    site = make_site(coordination_store=redis.url, wait_time_seconds=1, visibility_timeout=3)
    site.create_queue()
    # Keys that no other test has: all share a Redis, and none runs after a success.
    for _ in range(3):
        site.app.send_task("exclusive.keyed", [action, 8])
    for _ in range(3):
        site.app.send_task("exclusive.keyed", [f"{action} later"], countdown=3600)
    records = [s3_record(key=f"k{number}") for number in range(30)]
    site.sqs.send_message(QueueUrl=site.url, MessageBody=json.dumps(s3_notification(*records)))
    site.proxy.inject(DENIED, action, f"{action}Batch", queue=site.queue)
    workers = [site.start("exclusive", pool="threads", concurrency=4) for _ in range(2)]
    most = 0

    def seen(_):
        nonlocal most
        most = max(most, site.kept)
        return len(site.brought()) >= 10 or site.diary.entries("done", key=action)

    site.proxy.wait_for(seen, timeout=60)
    most = max(most, site.kept)
    assert most <= 2 * (3 + 3 + 30)
    assert all(worker.running for worker in workers)


def test_an_event_that_waited_for_its_key_is_a_dead_letter_as_it_was(make_site, redis):
    site = make_site(coordination_store=redis.url, wait_time_seconds=1, visibility_timeout=5)
    dead_url = site.create_queue_with_dead_letters(receives=10)
    worker = site.start("exclusive", pool="threads", concurrency=2)
    site.sqs.send_message(QueueUrl=site.url, MessageBody=json.dumps(s3_notification(s3_record(key="slow"))))
    site.diary.wait_for("arrived", key="slow")
    body = json.dumps(s3_notification(s3_record(key="bad")))
    site.sqs.send_message(QueueUrl=site.url, MessageBody=body)
    wait_until(lambda: sum(site.counts(dead_url)) == 2, 60, lambda: worker.log)
    letters = site.sqs.receive_message(QueueUrl=dead_url, MaxNumberOfMessages=10)["Messages"]
    assert "was not run: its key" in worker.log
    assert sent(site) >= 1, "it waited as a copy"
    assert body in [letter["Body"] for letter in letters]


@pytest.fixture(scope="module")
def redis(tmp_path_factory):
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server

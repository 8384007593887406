"""What failed for good is moved to the dead letters with all there is to know, or kept; never run again."""

import json
from datetime import UTC, datetime

import pytest
from support.faults import decode, error, json_answer, lose_response

from celery_sqs_visibility.delivery.settle.dead_letters import described

POOLS = pytest.mark.parametrize("pool", ["prefork", "threads"])


class DeadLetterQueue:
    """A dead-letter queue as the test sees it."""

    def __init__(self, sqs, name, **attributes):
        self.sqs = sqs
        self.name = name
        self.url = sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]

    def policy(self, max_receive_count):
        attributes = self.sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=["QueueArn"])
        arn = attributes["Attributes"]["QueueArn"]
        return json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": max_receive_count})

    def letters(self, count, proxy):
        """The letters in their order, once there are so many."""
        found = []

        def read(_):
            found.extend(
                self.sqs.receive_message(
                    QueueUrl=self.url,
                    MaxNumberOfMessages=10,
                    VisibilityTimeout=300,
                    MessageAttributeNames=["All"],
                    MessageSystemAttributeNames=["All"],
                ).get("Messages", [])
            )
            return len(found) >= count

        proxy.wait_for(read)
        assert len(found) == count
        return found


@pytest.fixture
def dead(sqs, queue):
    return DeadLetterQueue(sqs, f"{queue}-dead")


@pytest.fixture
def make_letters_site(make_site, dead):
    """A site with a worker; its queue has a redrive policy of so many receives, `None`: no such policy.

    With `refused=True` nobody may send to the dead letters; `site.denied` says how often one tried.
    """

    def make(receives=10, *, refused=False, worker=None, **options):
        site = make_site(**options)
        site.create_queue(**{} if receives is None else {"RedrivePolicy": dead.policy(receives)})
        if refused:
            site.denied = site.proxy.inject(error("AccessDenied", 403), "SendMessage", queue=dead.name)
        site.worker = site.start("letters", **(worker or {}))
        return site

    return make


def send(site, task, *args, **options):
    return site.app.send_task(f"letters.{task}", args, **options)


def texts(letter):
    return described(letter.get("MessageAttributes", {}))


def comes_back(site):
    """Have the hidden message come back now, as its time would."""
    received = [m for call in site.proxy.calls("ReceiveMessage") for m in call.response.get("Messages", [])]
    site.sqs.change_message_visibility(
        QueueUrl=site.url, ReceiptHandle=received[-1]["ReceiptHandle"], VisibilityTimeout=0
    )


def comes_back_twice_and_is_kept(site):
    for times in (2, 3):
        comes_back(site)
        site.proxy.wait_for(lambda _, times=times: site.changes() == [1, *[3600] * times])
    assert site.counts() == (0, 1)


@POOLS
def test_a_dead_letter_tells_all_there_is_to_know(make_letters_site, dead, pool, reliability):
    site = make_letters_site(worker={"pool": pool})
    before = datetime.now(UTC)
    result = send(site, "twice", "a")
    (letter,) = dead.letters(1, site.proxy)
    told = texts(letter)
    assert told.pop("traceback").splitlines()[-1] == "letters.Trouble: in vain"
    first, last = (datetime.fromisoformat(told.pop(f"{which}_received")) for which in ("first", "last"))
    assert before.timestamp() - 1 <= first.timestamp() < last.timestamp() - 0.9
    assert last <= datetime.now(UTC)
    assert told.pop("worker").startswith("worker1@")
    assert told.pop("message_id")
    assert told == {
        "reason": "failed at its last attempt",
        "receive_count": "2",
        "exception": "letters.Trouble: in vain",
        "attempts": "2",
        "task": "letters.twice",
        "task_id": result.id,
        "source_queue": site.queue,
    }
    assert result.state == "FAILURE"
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    (copied,) = site.proxy.calls("SendMessage", queue=dead.name)
    # Before the copy SQS is asked whether the original may be deleted.
    asked, deleted = site.proxy.wait_for_calls("DeleteMessageBatch", 2, queue=site.queue)
    assert asked.finished <= copied.started
    assert copied.finished <= deleted.started
    reliability("a task fails for good", "at its second attempt", ["a"], kept=1, runs=2)


def test_a_dead_letter_keeps_its_senders_attributes_and_group_and_can_be_sent_back_and_run(
    make_letters_site, dead
):
    site = make_letters_site()
    trace = {"DataType": "String", "StringValue": "Root=1-5759e988"}
    send(site, "twice", "a", message_attributes={"trace": trace}, MessageGroupId="tenant-7")
    (letter,) = dead.letters(1, site.proxy)
    assert letter["MessageAttributes"]["trace"] == trace
    assert letter["Attributes"]["MessageGroupId"] == "tenant-7"
    site.sqs.send_message(QueueUrl=site.url, MessageBody=letter["Body"])
    dead.letters(1, site.proxy)
    # The FAILURE that the result backend has of it is the old one.
    assert [entry["retries"] for entry in site.diary.entries("started", key="a")] == [0, 1, 0, 1]


def test_a_lost_answer_makes_a_second_copy_and_never_none(make_letters_site, dead, reliability):
    site = make_letters_site()
    site.proxy.inject(lose_response(), "SendMessage", queue=dead.name, times=1)
    send(site, "twice", "a")
    site.proxy.wait_for(lambda _: site.counts() == (0, 0) and site.proxy.count("DeleteMessageBatch"))
    assert {texts(letter)["task"] for letter in dead.letters(2, site.proxy)} == {"letters.twice"}
    reliability("the answer to a dead letter is lost", "so there are two", ["a"], kept=2, runs=2)


@POOLS
@pytest.mark.parametrize(("task", "runs"), [("twice", 2), ("once", 1), ("rejecting", 1)])
def test_where_nobody_may_send_there_sqs_moves_it_and_it_is_not_run_again(
    make_letters_site, dead, pool, task, runs, reliability
):
    site = make_letters_site(6, refused=True, worker={"pool": pool})
    result = send(site, task, "a", link_error=site.app.signature("letters.on_error"))
    (letter,) = dead.letters(1, site.proxy)
    assert texts(letter) == {}
    assert site.diary.count("started", key="a") == runs
    assert site.denied.hits == 7 - runs
    if task != "rejecting":  # which is a failure to Celery since 5.7 only
        assert site.diary.count("errback") == 1
        assert result.state == "FAILURE"
    assert site.worker.log.count("cannot send to the dead-letter queue") == 1
    reliability("no `sqs:SendMessage` to dead letters", "SQS moves it itself", ["a"], kept=1, runs=runs)


def test_another_worker_does_not_run_what_could_not_be_moved(make_letters_site, dead):
    one_at_a_time = {"concurrency": 1, "prefetch_multiplier": 1}
    site = make_letters_site(6, refused=True, worker=one_at_a_time)
    site.start("letters", **one_at_a_time)
    send(site, "once", "a", link_error=site.app.signature("letters.on_error"))
    dead.letters(1, site.proxy)
    assert site.denied.hits == 6
    assert site.diary.count("started", key="a") == 1
    assert site.diary.count("errback") == 1


@POOLS
def test_a_queue_without_a_policy_has_the_one_of_the_options_which_is_created(
    make_letters_site, sqs, queue, pool
):
    site = make_letters_site(None, worker={"pool": pool}, dead_letter_queue=f"{queue}.plain")
    assert sqs.get_queue_url(QueueName=f"{queue}-plain")
    dead = DeadLetterQueue(sqs, f"{queue}-plain")
    send(site, "twice", "a")
    send(site, "rejecting", "b")
    site.sqs.send_message(QueueUrl=site.url, MessageBody='{"foreign": true}')
    told = {texts(letter)["reason"]: texts(letter) for letter in dead.letters(3, site.proxy)}
    assert told["failed at its last attempt"].keys() >= {"exception", "traceback", "attempts"}
    assert told["rejected by the task"]["task"] == "letters.rejecting"
    foreign = told["its body is JSON, but not kombu's: it has no 'properties'"]
    received = {"worker", "first_received", "last_received", "source_queue", "message_id", "receive_count"}
    assert foreign.keys() == {"reason", *received}
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))


def test_it_serves_where_the_redrive_policy_cannot_be_read(make_site, dead, reliability):
    site = make_site(dead_letter_queue=dead.name)
    site.create_queue()
    site.proxy.inject(error("AccessDenied", 403), "GetQueueAttributes")
    site.start("letters")
    send(site, "twice", "a")
    dead.letters(1, site.proxy)
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    reliability("no `sqs:GetQueueAttributes`", "with `dead_letter_queue`", ["a"], kept=1, runs=2)


@POOLS
def test_what_the_plain_queue_refuses_is_kept(make_letters_site, dead, pool, reliability):
    site = make_letters_site(None, refused=True, worker={"pool": pool}, dead_letter_queue=dead.name)
    send(site, "once", "a")
    site.proxy.wait_for(lambda _: site.changes() == [3600])
    site.denied.remove()
    comes_back(site)
    told = texts(dead.letters(1, site.proxy)[0])
    assert told["reason"] == "was given up before"
    assert told["exception"] == "letters.Trouble: a"
    assert "raise Trouble(key)" in told["traceback"]
    assert site.diary.count("started", key="a") == 1
    reliability("`dead_letter_queue` refuses", "an hour's wait cut short", ["a"], kept=1)


@pytest.mark.parametrize(
    ("pool", "task", "options"),
    [
        ("prefork", "twice", {"when_exhausted": "keep"}),
        ("threads", "twice", {"when_exhausted": "keep"}),
        ("prefork", "precious", {}),
    ],
    ids=["prefork", "threads", "of a task, where others are deleted"],
)
def test_what_is_to_be_kept_is_kept_and_not_run_again(make_site, pool, task, options):
    site = make_site(**options)
    site.create_queue()
    site.start("letters", pool=pool)
    result = send(site, task, "a", link_error=site.app.signature("letters.on_error"))
    site.proxy.wait_for(lambda _: site.changes() == [1, 3600])
    assert result.state == "FAILURE"
    comes_back_twice_and_is_kept(site)
    assert site.diary.count("started", key="a") == 2
    assert site.diary.count("errback") == 1


@pytest.mark.parametrize(("backend", "runs"), [(True, 2), (False, 3)])
def test_it_is_kept_across_a_restart(make_site, backend, runs, reliability):
    # Without a result backend the next worker cannot know: what was only released must not fail unrun.
    site = make_site({} if backend else {"result_backend": None}, when_exhausted="keep", wait_time_seconds=1)
    site.create_queue()
    worker = site.start("letters")
    send(site, "twice", "a")
    site.proxy.wait_for(lambda _: site.changes() == [1, 3600])
    worker.terminate()
    worker.wait_exit()
    site.start("letters")
    comes_back_twice_and_is_kept(site)
    assert site.diary.count("started", key="a") == runs
    assert site.proxy.count("DeleteMessageBatch") == 0
    known = "with a result backend" if backend else "without a result backend: run once more"
    reliability("`when_exhausted='keep'` and a restart", known, ["a"], kept=site.kept, runs=2)


def test_a_worker_of_a_dead_letter_queue_gives_what_sqs_has_moved_all_its_attempts(make_site, diary):
    """SQS goes on counting receives, and tells the queue that they were in; the emulator does not."""
    site = make_site(wait_time_seconds=1)
    site.create_queue_with_dead_letters(2)
    arn = site.sqs.get_queue_attributes(QueueUrl=site.url, AttributeNames=["QueueArn"])
    site.send("number", "a", 9)
    for _ in range(2):
        site.give_back()
    assert not site.sqs.receive_message(QueueUrl=site.url).get("Messages"), "it is moved"

    def told_by_sqs(request, forward, removed):
        answer = forward(request)
        listed = decode(answer.body, "json")
        for message in listed.get("Messages", []):
            message["Attributes"]["DeadLetterQueueSourceArn"] = arn["Attributes"]["QueueArn"]
        return json_answer(answer.status, listed)

    site.config["task_default_queue"] = f"{site.queue}-dead"
    site.proxy.inject(told_by_sqs, "ReceiveMessage", queue=f"{site.queue}-dead")
    site.start()
    entries = diary.wait_for("started", 4)
    assert [entry["retries"] for entry in entries] == [0, 1, 2, 3]
    assert entries[0]["sqs"]["receive_count"] > 1

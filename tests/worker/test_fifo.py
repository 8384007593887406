"""A FIFO queue: one message of a group at a time, in order, whatever fails; other groups go on."""

import itertools

import pytest
from support.faults import lose_response


def send(site, group, task, *args):
    site.app.send_task(f"work.{task}", args, MessageGroupId=group)


def test_a_groups_next_task_waits_for_the_retry_of_the_one_before(make_fifo_site):
    site = make_fifo_site(visibility_timeout=600)
    send(site, "a", "slow_then_failing", "a1", 0)
    for key in ("a2", "a3"):
        send(site, "a", "quick", key)
    site.start(concurrency=4)
    site.diary.wait_for("failing", key="a1")
    for key in ("b1", "b2", "b3"):
        send(site, "b", "quick", key)
    site.diary.wait_for("started", key="a3")
    site.diary.wait_for("started", key="b3")
    started = site.diary.entries("started")
    assert [entry["key"] for entry in started if entry["key"][0] == "a"] == ["a1", "a1", "a2", "a3"]
    assert [entry["key"] for entry in started if entry["key"][0] == "b"] == ["b1", "b2", "b3"]
    assert [entry["retries"] for entry in started if entry["key"] != "a1"] == [0] * 5
    (gap,) = site.gaps("a1")
    assert gap >= 1
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))


def test_several_groups_run_side_by_side_and_each_in_order(make_fifo_site):
    site = make_fifo_site(visibility_timeout=60)
    for number, group in itertools.product(range(3), "abcd"):
        send(site, group, "slow", f"{group}{number}", 1)
    site.start(concurrency=4)
    site.diary.wait_for("done", 12)
    running = [{"started": 1, "done": -1}.get(entry["event"], 0) for entry in site.diary.entries()]
    assert max(itertools.accumulate(running)) > 1, "they run side by side"
    for group in "abcd":
        events = [
            (entry["event"], entry["key"])
            for entry in site.diary.entries()
            if entry["event"] in {"started", "done"} and entry["key"][0] == group
        ]
        assert events == [(event, f"{group}{n}") for n in range(3) for event in ("started", "done")]


@pytest.mark.relies_on("fifo.attempt-brings-the-same")
def test_an_answer_that_was_lost_closes_no_group(make_fifo_site):
    site = make_fifo_site(visibility_timeout=120)
    send(site, "a", "quick", "a")
    site.proxy.inject(lose_response(), "ReceiveMessage", times=1)
    site.start(concurrency=2)
    site.diary.wait_for("started", key="a")
    lost, again = site.proxy.calls("ReceiveMessage", queue=site.queue)[:2]
    assert lost.answer is None
    assert again.request["ReceiveRequestAttemptId"] == lost.request["ReceiveRequestAttemptId"]
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    ids = [call.request["ReceiveRequestAttemptId"] for call in site.proxy.calls("ReceiveMessage")]
    assert len(set(ids)) == len(ids) - 1, "every other receive has one of its own"


def test_what_is_no_task_closes_its_group_for_a_while_and_is_given_up(make_fifo_site, sqs):
    site = make_fifo_site(visibility_timeout=30, error_visibility_timeout=1)
    sqs.send_message(
        QueueUrl=site.url, MessageBody="nobody can read it", MessageGroupId="a", MessageDeduplicationId="1"
    )
    send(site, "a", "quick", "behind it")
    send(site, "b", "quick", "of another group")
    worker = site.start(concurrency=2)
    site.diary.wait_for("started", key="of another group")
    (entry,) = site.diary.wait_for("started", key="behind it")
    assert entry["retries"] == 0
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert worker.log.count("its FIFO group waits behind it") == 1

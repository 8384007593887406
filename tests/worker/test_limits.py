"""How often a message is run: what a run said of its own limit counts, and nothing fails unrun on a guess."""

from __future__ import annotations

import pytest


def runs(site, result):
    return [entry["retries"] for entry in site.diary.entries("run", id=result.id)]


def send(site, name, **kwargs):
    return site.app.send_task(f"ends.{name}", (), kwargs)


def test_a_limit_above_the_tasks_own_counts_on_every_worker(make_site):
    site = make_site()
    for _ in range(2):
        site.start("ends")
    result = send(site, "retrying", max_retries=10)
    site.proxy.wait_for(lambda _: result.state == "FAILURE", timeout=90)
    assert runs(site, result) == list(range(11))
    assert site.proxy.count("SendMessage") == 2  # one message more has told that limit
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))


@pytest.mark.prefork_only("only a process can be lost")
def test_a_child_lost_beyond_the_tasks_own_limit_comes_back_if_a_run_said_so(make_site):
    site = make_site()
    site.start("ends")
    result = send(site, "retrying_and_killed", limit=4, killed_at=2)
    site.proxy.wait_for(lambda _: result.state == "FAILURE", timeout=90)
    assert runs(site, result) == [0, 1, 2, 3, 4]


@pytest.mark.prefork_only("only a process can be lost")
def test_a_limit_travels_with_a_retry_that_is_published_for_other_reasons(make_site):
    site = make_site(error_visibility_timeout=1)
    site.start("ends")
    result = send(site, "retrying_anew_and_killed", limit=5, killed_at=4)
    site.proxy.wait_for(lambda _: result.state == "FAILURE", timeout=90)
    assert runs(site, result) == [0, 1, 2, 3, 4, 5]


def test_what_was_received_often_and_never_run_is_run(make_site):
    site = make_site()
    url = site.create_queue(VisibilityTimeout="30")
    result = send(site, "returning")
    for _ in range(8):  # eight deploys, each of which gave it back; the task's own limit is one retry
        (message,) = site.sqs.receive_message(QueueUrl=url)["Messages"]
        site.sqs.change_message_visibility(
            QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0
        )
    site.start("ends")
    site.proxy.wait_for(lambda _: result.state == "SUCCESS")
    assert runs(site, result) == [8]


def test_a_failure_after_an_extension_comes_back_after_the_visibility_timeout(make_site):
    site = make_site(visibility_timeout=6, heartbeat_interval=1)
    site.start("ends")
    result = send(site, "extending_and_failing")
    site.proxy.wait_for(lambda _: result.state == "SUCCESS", timeout=90)
    assert site.changes() == [600, 6]

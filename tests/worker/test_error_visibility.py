"""A failed task's message is hidden for a chosen delay, and comes back by itself."""

from __future__ import annotations

import pytest

SLACK = 12  # the machine is shared; without a delay it would be the visibility timeout's 30 seconds


def test_sqsd_case_1_success_deletes_the_message(make_site):
    site = make_site()
    site.start()
    site.send("quick", "a")
    site.diary.wait_for("started", key="a")
    site.proxy.wait_for_calls("DeleteMessageBatch", 1)
    assert site.proxy.count("ChangeMessageVisibilityBatch") == 0
    assert site.counts() == (0, 0)


def test_sqsd_case_2_an_error_without_error_visibility_timeout_costs_no_call(make_site):
    site = make_site(visibility_timeout=6, heartbeat_interval=1)
    site.start()
    site.send("plain", "a")
    site.diary.wait_for("done", key="a")
    first, second = site.diary.entries("started", key="a")
    assert 6 <= second["time"] - first["sqs"]["first_receive_time"] < 6 + SLACK
    assert site.changes() == []


def test_sqsd_case_3_an_error_with_error_visibility_timeout_hides_it_that_long(make_site):
    site = make_site()
    site.start()
    site.send("number", "a")
    site.diary.wait_for("done", key="a")
    (gap,) = site.gaps("a")
    assert 2 <= gap < 2 + SLACK
    assert site.changes() == [2]


@pytest.mark.prefork_only("Celery has both time limits only where there are processes")
def test_sqsd_case_4_no_end_in_time_is_treated_as_an_error(make_site):
    site = make_site()
    site.start()
    site.send("limited", "hard")
    site.send("softly_limited", "soft")
    site.diary.wait_for("done", key="hard")
    site.diary.wait_for("done", key="soft")
    assert [entry["retries"] for entry in site.diary.entries("started", key="hard")] == [0, 1]
    assert [entry["retries"] for entry in site.diary.entries("started", key="soft")] == [0, 1]
    assert sorted(site.changes()) == [1, 1]


@pytest.mark.parametrize(
    ("task", "delays"),
    [("listed", [1, 3]), ("computed", [1, 2]), ("by_method", [2, 1]), ("backing_off", [2, 4])],
)
def test_laravels_backoff_as_list_callable_method_and_celerys_own(make_site, task, delays):
    site = make_site()
    site.start()
    site.send(task, "a")
    site.diary.wait_for("done", key="a")
    assert site.changes() == delays
    for gap, delay in zip(site.gaps("a"), delays, strict=True):
        assert delay <= gap < delay + SLACK


def test_laravels_release_is_a_retry_with_countdown(make_site):
    site = make_site()
    site.start()
    site.app.send_task("work.retrying", ("a",), {"countdown": 1})
    site.diary.wait_for("done", key="a")
    assert site.changes() == [1]
    assert site.proxy.count("SendMessage") == 1


def test_an_exception_may_say_itself_when_to_come_back(make_site):
    site = make_site()
    site.start()
    site.send("says_later", "a")
    site.diary.wait_for("done", key="a")
    assert site.changes() == [2]


def test_an_exception_that_cannot_be_pickled_comes_back_too(make_site):
    site = make_site()
    site.start()
    site.send("unpicklable", "a")
    site.diary.wait_for("done", key="a")
    assert site.changes() == [1]


def test_the_options_delay_is_for_tasks_that_set_none(make_site):
    site = make_site(error_visibility_timeout=[1, 2])
    site.start()
    site.send("plain", "a", 2)
    site.diary.wait_for("done", key="a")
    assert site.changes() == [1, 2]


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent", "eventlet"])
def test_the_task_knows_which_delivery_it_runs(make_site, pool):
    site = make_site()
    site.start(pool=pool)
    result = site.send("number", "a")
    site.diary.wait_for("done", key="a")
    first, second = site.diary.entries("started", key="a")
    assert (first["retries"], first["redelivered"], first["sqs"]["receive_count"]) == (0, False, 1)
    assert (second["retries"], second["redelivered"], second["sqs"]["receive_count"]) == (1, True, 2)
    assert first["sqs"]["message_id"] == second["sqs"]["message_id"]
    assert first["sqs"]["queue"] == site.queue
    assert first["sqs"]["first_receive_time"] == second["sqs"]["first_receive_time"] <= first["time"]
    assert first["id"] == second["id"] == result.id
    assert not first["headers"]
    assert site.changes() == [2]


def test_only_the_last_attempt_fails(make_site):
    site = make_site()
    site.start()
    errback = site.app.signature("work.on_error")
    result = site.send("hopeless", "a", link_error=errback)
    site.diary.wait_for("started", 2, key="a")
    assert result.state in ("PENDING", "RETRY") or site.diary.count("started", key="a") == 3
    site.diary.wait_for("errback")
    assert result.state == "FAILURE"
    assert [entry["retries"] for entry in site.diary.entries("started", key="a")] == [0, 1, 2]
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert site.diary.count("errback") == 1
    assert site.changes() == [1, 1]


@pytest.mark.prefork_only("only a process can be lost")
def test_a_lost_child_is_an_error_like_any_other(make_site):
    site = make_site()
    site.start()
    result = site.send("killed", "once")
    hopeless = site.send("killed", "always", 1000)
    site.diary.wait_for("done", key="once")
    site.diary.wait_for("started", 3, timeout=60, key="always")
    site.proxy.wait_for(lambda _: hopeless.state == "FAILURE", timeout=30)
    assert result.get(timeout=30) is None
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert site.diary.count("started", key="always") == 3


def test_what_is_not_to_be_retried_fails_at_once(make_site):
    site = make_site()
    site.start()
    results = [
        site.send("not_for_trouble", "excluded"),
        site.send("only_for_os_errors", "narrowed", os_error=False),
    ]
    comes_back = site.send("only_for_os_errors", "included", os_error=True)
    site.diary.wait_for("done", key="included")
    site.proxy.wait_for(lambda _: comes_back.state == "SUCCESS")
    site.proxy.wait_for(lambda _: [result.state for result in results] == ["FAILURE", "FAILURE"])
    assert site.diary.count("started", key="excluded") == 1
    assert site.diary.count("started", key="narrowed") == 1
    assert site.changes() == [1]


def test_ignore_reject_revoked_and_expired_keep_celerys_meaning(make_site):
    site = make_site()
    site.send("slow", "expired", 0, expires=-1)
    site.send("ignoring", "ignored")
    site.send("rejecting", "rejected")
    site.send("rejecting", "requeued", requeue=True)
    site.start()
    site.diary.wait_for("started", 2, key="requeued")
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert site.diary.count("started", key="expired") == 0
    assert site.diary.count("started", key="ignored") == 1
    assert site.diary.count("started", key="rejected") == 1
    site.proxy.wait_for(lambda _: site.changes() == [0])


@pytest.mark.parametrize(
    "changes",
    [{"args": ["b"]}, {"countdown": 13 * 60 * 60}],
    ids=["other arguments", "longer than 12 hours"],
)
def test_a_retry_that_sqs_cannot_express_is_published_as_celery_does(make_site, changes):
    site = make_site()
    site.start()
    site.app.send_task("work.retrying", ("a",), changes)
    site.proxy.wait_for_calls("SendMessage", 2)
    site.proxy.wait_for_calls("DeleteMessageBatch", 1)
    if "args" in changes:
        site.diary.wait_for("done", key="b")


def test_a_retry_to_another_queue_goes_there(make_site):
    site = make_site()
    other = f"{site.queue}-other"
    site.start(queues=[site.queue, other])
    site.app.send_task("work.retrying", ("a",), {"queue": other})
    site.diary.wait_for("done", key="a")
    assert [entry["sqs"]["queue"] for entry in site.diary.entries("started", key="a")] == [site.queue, other]


def test_a_limit_given_to_retry_is_kept(make_site):
    site = make_site()
    site.start()
    result = site.send("retrying_twice_at_most", "a")
    site.proxy.wait_for(lambda _: result.state == "FAILURE")
    assert [entry["retries"] for entry in site.diary.entries("started", key="a")] == [0, 1, 2]


def test_a_failure_before_the_run_and_a_call_of_the_users_own_come_back_too(make_site):
    site = make_site()
    site.start()
    site.send("prepared", "a")
    site.diary.wait_for("done", key="a")
    assert site.diary.count("preparing") == 3
    assert site.diary.count("calling") == 1
    assert site.changes() == [1, 1]


@pytest.mark.prefork_only("only a process can be lost")
def test_the_last_lost_run_fails_whatever_the_task_says_of_lost_workers(make_site):
    site = make_site()
    site.start()
    result = site.send("hopeless_child", "a")
    site.proxy.wait_for(lambda _: result.state == "FAILURE")
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert site.diary.count("started", key="a") == 1


def test_a_callable_that_raises_leaves_the_delay_to_the_transport_option(make_site):
    site = make_site(error_visibility_timeout=2)
    site.send("miscomputed", "a")
    worker = site.start()
    site.diary.wait_for("done", key="a")
    assert site.changes() == [2]
    assert "error_visibility_timeout of task work.miscomputed failed" in worker.log
    assert "ZeroDivisionError" in worker.log

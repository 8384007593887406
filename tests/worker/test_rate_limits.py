"""Rate-limited tasks that wait for their turn keep no slot from others, and lose no attempt."""

import itertools

import pytest


def limited_to(rate):
    return {"task_annotations": {"work.quick": {"rate_limit": rate}}}


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_what_waits_for_its_rate_leaves_the_slots_to_others(make_site, pool):
    site = make_site(limited_to("1/m"), visibility_timeout=120, wait_time_seconds=1)
    for key in range(12):
        site.send("quick", f"limited {key}")
    site.start(pool=pool)
    site.diary.wait_for("started")
    site.send("plain", "other", 0)
    site.diary.wait_for("done", key="other")
    assert site.diary.count("started", key="limited 0") == 1
    assert site.diary.count("started") == 2


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_what_waits_long_for_its_rate_waits_in_sqs_and_loses_no_attempt(make_site, pool):
    site = make_site(limited_to("5/m"), visibility_timeout=4, wait_time_seconds=1)
    ids = {site.send("quick", key).id for key in range(3)}
    site.start(pool=pool)
    entries = site.diary.wait_for("started", 3)
    assert {entry["id"] for entry in entries} == ids
    assert [entry["retries"] for entry in entries] == [0, 0, 0]
    times = [entry["monotonic"] for entry in entries]
    assert all(later - earlier > 10 for earlier, later in itertools.pairwise(times))
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    batches = site.proxy.calls("SendMessageBatch")
    sent = len(site.proxy.calls("SendMessage")) + sum(len(each.request["Entries"]) for each in batches)
    assert sent > 3, "copies wait in SQS"
    assert site.diary.count("started") == 3


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_tasks_start_at_their_rate_however_many_wait(make_site, pool):
    site = make_site(limited_to("10/s"))
    for key in range(50):
        site.send("quick", key)
    site.start(pool=pool)
    times = [entry["monotonic"] for entry in site.diary.wait_for("started", 50)]
    assert times[-1] - times[0] < 20, "with a timer for each Celery starts one in a second"

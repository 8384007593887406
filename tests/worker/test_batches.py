"""Tasks that collect messages in the worker and run many at once, as those of celery-batches."""

import pytest

from celery_sqs_visibility import publish_batch

pytestmark = pytest.mark.own_pool


def send(site, task, count, *args):
    with publish_batch(site.app):
        for key in range(count):
            site.app.send_task(f"batched.{task}", [key, *map(str, args)])


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_batch_is_as_large_as_celerys_prefetch_count_allows(make_site, pool):
    site = make_site({"task_acks_late": False})
    site.start("batched", pool=pool, concurrency=2, prefetch_multiplier=50)
    send(site, "collect", 200)
    batches = site.diary.wait_for("batch", 4)
    assert sorted(key for batch in batches for key in batch["keys"]) == list(range(200))


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_batch_that_runs_when_the_worker_is_told_to_end_runs_once(make_site, tmp_path, pool):
    site = make_site(shutdown_timeout=60, wait_time_seconds=1)
    worker = site.start("batched", pool=pool, concurrency=1, prefetch_multiplier=10)
    send(site, "late", 6, tmp_path / "go on")
    site.diary.wait_for("started")
    site.proxy.wait_for(lambda _: site.counts() == (0, 6))
    worker.terminate()
    worker.wait_for_log("given back that had not begun")
    (tmp_path / "go on").touch()
    assert worker.wait_exit() == 0
    assert "shutdown: 2 messages given back that had not begun" in worker.log
    assert site.diary.count("done") == 1
    assert site.kept == 2


@pytest.mark.parametrize("pool", ["prefork"])
def test_a_batch_whose_process_is_killed_comes_back(make_site, pool):
    site = make_site(visibility_timeout=5)
    site.start("batched", pool=pool, concurrency=1, prefetch_multiplier=10)
    send(site, "killed", 2)
    first, again = site.diary.wait_for("started", 2)
    assert sorted(first["keys"]) == sorted(again["keys"]) == [0, 1]
    site.proxy.wait_for(lambda _: site.kept == 0)

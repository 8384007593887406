"""Tasks that a worker registers after its start, by `pool_restart(modules=[...])` or an import."""

import functools
import uuid

import pytest
from support.processes import SOON, wait_until
from support.redis_server import RedisServer

pytestmark = pytest.mark.own_pool


@pytest.fixture
def make_late_site(make_control_site):
    """A site whose worker restarts its pool when it is told to."""
    return functools.partial(make_control_site, {"worker_pool_restarts": True}, wait_time_seconds=1)


def import_late(site, worker):
    """Have the only worker import `tests/tasks/arriving.py`, once it takes commands."""
    control, before = site.app.control, set(worker.children())
    wait_until(lambda: control.ping(limit=1), SOON, "the worker to take commands")
    arguments = {"modules": ["arriving"]}
    (answer,) = control.broadcast("pool_restart", arguments, reply=True, limit=1, timeout=SOON)
    assert list(answer.values()) == [{"ok": "reload started"}]

    def restarted():
        site.begin(uuid.uuid4().hex)  # a process that has ended a task makes room for a new one
        return before.isdisjoint(worker.children())

    wait_until(restarted, SOON, "the pool to restart")


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize("task", ["stock", "visible"])
def test_what_runs_when_the_worker_is_told_to_end_runs_once(make_late_site, tmp_path, pool, task):
    site = make_late_site(shutdown_timeout=60)
    worker = site.start(pool=pool)
    import_late(site, worker)
    site.app.send_task(f"arriving.{task}", ["late", str(tmp_path / "go on")])
    site.diary.wait_for("started", key="late")
    worker.terminate()
    worker.wait_for_log("given back that had not begun")
    (tmp_path / "go on").touch()
    assert worker.wait_exit() == 0
    assert "0 messages given back that had not begun" in worker.log
    assert site.kept == 0, "it ran, and is done"
    assert site.diary.count("done", key="late") == 1


@pytest.mark.parametrize("pool", ["prefork"])
def test_one_that_is_exclusive_has_its_key(make_late_site, tmp_path, pool):
    (tmp_path / "redis").mkdir()
    with RedisServer(tmp_path / "redis") as redis:
        site = make_late_site(coordination_store=redis.url)
        worker = site.start(pool=pool)
        import_late(site, worker)
        for _ in range(2):
            site.app.send_task("arriving.exclusive", ["key", str(tmp_path / "go on")])
        worker.wait_for_log("its key 'arriving.exclusive:key' is processed elsewhere")
        assert site.diary.count("started", key="key") == 1


@pytest.mark.parametrize("pool", ["prefork"])
def test_a_process_that_does_not_know_it_yet_gives_it_back(make_site, tmp_path, pool):
    site = make_site()
    worker = site.start("importing_late", pool=pool)
    site.app.send_task("arriving.stock", ["late", str(tmp_path / "go on")])
    worker.wait_for_log("comes back: its process was forked before the task was registered")
    site.begin("others are run")
    wait_until(lambda: site.kept == 1, SOON, "only that message to be left")

"""Chains, links and chords outlast lost children, killed workers, and a broker that takes nothing."""

from __future__ import annotations

import time

import pytest
from celery import chain, chord
from support.faults import error
from support.redis_server import RedisServer

SERVER_ERROR = error("InternalError", 500)

# Celery before 5.7 calls what redis-py now calls deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory):
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server.url


@pytest.fixture
def redis_site(make_site, redis_url):
    """A site with Redis for its results; `killed` in a task's arguments kills its process. Short claims."""

    def make(**options):
        settings = {
            "result_backend": f"support.killing_backend:KillingBackend+{redis_url}",
            "broker_connection_timeout": 1,
            "result_chord_join_timeout": 1,
        }
        sites.append(make_site(settings, **options))
        return sites[-1]

    sites = []
    yield make
    for site in sites:
        site.app.backend.result_consumer.stop()
        site.app.backend.result_consumer._pubsub = None  # or a result that is collected later connects anew
        site.app.backend.client.connection_pool.disconnect()


def signature(site, name, *args, **kwargs):
    return site.app.signature(f"ends.{name}", args, kwargs)


def start(site, **options):
    return site.start("ends", queues=[site.queue, f"{site.queue}-elsewhere"], **options)


@pytest.mark.parametrize("way", ["link", "chain", "chord's body"])
def test_what_follows_a_run_survives_a_while_in_which_nothing_can_be_sent(redis_site, way):
    site = redis_site()
    elsewhere = f"{site.queue}-elsewhere"
    start(site)
    first, last = signature(site, "number", 1, seconds=5), signature(site, "following").set(queue=elsewhere)
    if way == "link":
        first.apply_async(link=last)
    elif way == "chain":
        chain(first, last)()
    else:
        chord([first, signature(site, "number", 2)], last)()
    site.diary.wait_for("run", key="number")
    outage = site.proxy.inject(SERVER_ERROR, "SendMessage", queue=elsewhere)
    site.proxy.wait_for(lambda _: failed_sends(site, elsewhere), timeout=60)
    time.sleep(1.5)  # the outage
    outage.remove()
    site.diary.wait_for("run", key="following", timeout=60)
    assert site.diary.count("task_failure") == 0


def failed_sends(site, queue):
    return [call for call in site.proxy.calls("SendMessage", queue=queue) if call.status != 200]


@pytest.mark.prefork_only("only a process can be killed")
@pytest.mark.parametrize("moment", ["stored", "publishing"])
def test_a_chord_outlasts_the_killed_child_of_a_member(redis_site, moment):
    site = redis_site()
    start(site)
    chord([signature(site, "number", 1), signature(site, "number", 2, seconds=3, killed=moment)])(
        signature(site, "adding")
    )
    assert [entry["sum"] for entry in site.diary.wait_for("sum", timeout=90)] == [3]
    site.proxy.wait_for(lambda _: site.counts() == (0, 0), timeout=60)


@pytest.mark.prefork_only("only a process can be killed")
def test_a_chord_outlasts_a_worker_killed_while_it_published_the_body(redis_site):
    site = redis_site(visibility_timeout=4, heartbeat_interval=3, wait_time_seconds=1)
    doomed = start(site)
    chord([signature(site, "number", 1), signature(site, "number", 2, seconds=3, killed="publishing")])(
        signature(site, "adding")
    )
    site.diary.wait_for("run", 2, key="number")
    # Its child dies by itself; before Celery notices, all of it is gone.
    site.proxy.wait_for(lambda _: len(doomed.children()) < 2 or site.diary.count("sum"), timeout=60)
    doomed.kill()
    start(site)
    assert [entry["sum"] for entry in site.diary.wait_for("sum", timeout=90)] == [3]
    site.proxy.wait_for(lambda _: site.counts() == (0, 0), timeout=60)


def test_a_chord_that_is_polled_for_is_no_dead_letter(make_site):
    site = make_site()  # its results are files
    dead = site.create_queue_with_dead_letters(receives=3)
    start(site, concurrency=3)
    chord([signature(site, "number", 1), signature(site, "number", 2, seconds=8)])(signature(site, "adding"))
    assert [entry["sum"] for entry in site.diary.wait_for("sum", timeout=60)] == [3]
    assert site.counts(dead) == (0, 0)

"""Chains, links, chords and results outlast lost children, killed workers, and a broker that is away."""

import json
import subprocess
import sys
import time
import uuid
from base64 import b64decode
from urllib.parse import urlsplit

import pytest
from celery import chain, chord
from support.faults import black_hole, error, lose_response
from support.processes import SOON, wait_until
from support.redis_server import RedisServer
from support.worker import environment

SERVER_ERROR = error("InternalError", 500)


def backends(tmp_path):
    return {
        "files": f"file://{tmp_path / 'results'}",
        "SQL": f"db+sqlite:///{tmp_path / 'results.db'}",
        "rpc": "rpc://",
    }


@pytest.mark.parametrize("backend", ["files", "SQL", "rpc"])
def test_an_id_that_failed_once_and_is_published_again_runs_on_another_worker(make_site, tmp_path, backend):
    site = make_site({"result_backend": backends(tmp_path)[backend]}, wait_time_seconds=1)
    send = {"name": "ends.excluded", "kwargs": {}, "task_id": f"{site.queue}-again"}
    worker = site.start("ends")
    site.app.send_task(**send)
    site.diary.wait_for("task_failure")
    site.proxy.wait_for_calls("DeleteMessageBatch", 1)
    worker.terminate()
    worker.wait_exit()
    site.app.send_task(**send)
    site.give_back()  # its next receive is a redelivery, about which the backend is asked
    site.start("ends")
    assert [entry["retries"] for entry in site.diary.wait_for("run", 2)] == [0, 1]


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_a_stock_task_whose_retry_cannot_be_published_comes_back(make_site, pool):
    site = make_site(error_visibility_timeout=1)
    elsewhere = f"{site.queue}-elsewhere"
    site.start("ends", pool=pool)
    outage = site.proxy.inject(SERVER_ERROR, "SendMessage", queue=elsewhere)
    result = site.app.send_task("ends.stock_retrying", (), {"queue": elsewhere})
    site.diary.wait_for("run", 2, id=result.id)
    assert site.kept == 1
    outage.remove()
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    url = site.sqs.get_queue_url(QueueName=elsewhere)["QueueUrl"]
    assert sum(site.counts(url)) == 1


@pytest.mark.parametrize(
    ("task", "runs"), [("stock_retrying_with_what_cannot_be_sent", 2), ("stock_rejecting", 1)]
)
def test_a_stock_task_whose_retry_can_never_be_published_ends_and_so_does_one_that_rejects(
    make_site, task, runs
):
    site = make_site(error_visibility_timeout=1)
    site.start("ends")
    result = site.app.send_task(f"ends.{task}")
    site.diary.wait_for("run", runs, id=result.id)
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert site.diary.count("run", id=result.id) == runs


def test_a_client_of_rpc_that_exits_leaves_no_queue(make_site):
    site = make_site({"result_backend": "rpc://"})
    site.create_queue()
    site.start()
    script = "from work import quick; print(quick.delay('asked').get(timeout=60))"
    command = [sys.executable, "-c", script]
    client = subprocess.run(command, env=environment(site.config), capture_output=True, text=True, check=True)
    assert client.stdout.strip() == "asked"
    created = {call.request["QueueName"] for call in site.proxy.calls("CreateQueue")} - {site.queue}
    deleted = {call.request["QueueUrl"].rpartition("/")[2] for call in site.proxy.calls("DeleteQueue")}
    assert len(created) == 1
    assert deleted == created


#: What a worker says of a message that waits for the key of an exclusive task.
WAITED = "and was not run: its key"

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
            "result_backend": f"support.result_backends:KillingBackend+{redis_url}",
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
    site.proxy.wait_for(lambda _: failed_sends(site, elsewhere))
    time.sleep(1.5)  # the outage
    outage.remove()
    site.diary.wait_for("run", key="following")
    assert site.diary.count("task_failure") == 0


def is_of(call, task_id):
    """Whether a task of that id was sent."""
    return json.loads(b64decode(call.request["MessageBody"]))["headers"]["id"] == task_id


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
    assert [entry["sum"] for entry in site.diary.wait_for("sum")] == [3]
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))


@pytest.mark.prefork_only("only there a hard time limit ends a run")
def test_a_chord_outlasts_the_time_limit_of_a_member_whose_publication_of_the_body_hangs(redis_site):
    site = redis_site()
    elsewhere = f"{site.queue}-elsewhere"
    start(site)
    hanging = site.proxy.inject(black_hole(), "SendMessage", queue=elsewhere)
    last = signature(site, "number", 2, seconds=3).set(time_limit=5)
    chord([signature(site, "number", 1), last])(signature(site, "adding").set(queue=elsewhere))
    site.proxy.wait_for(lambda _: site.proxy.in_flight("SendMessage", queue=elsewhere))
    site.diary.wait_for("task_retry")
    hanging.remove()
    assert [entry["sum"] for entry in site.diary.wait_for("sum")] == [3]
    assert site.diary.count("task_failure") == 0


@pytest.mark.prefork_only("only a process can be killed")
def test_a_chord_outlasts_a_worker_killed_while_it_published_the_body(redis_site):
    site = redis_site(visibility_timeout=4, heartbeat_interval=3, wait_time_seconds=1)
    doomed = start(site)
    chord([signature(site, "number", 1), signature(site, "number", 2, seconds=3, killed="publishing")])(
        signature(site, "adding")
    )
    site.diary.wait_for("run", 2, key="number")
    # Its child dies by itself; before Celery notices, all of it is gone.
    site.proxy.wait_for(lambda _: len(doomed.children()) < 2 or site.diary.count("sum"))
    doomed.kill()
    start(site)
    assert [entry["sum"] for entry in site.diary.wait_for("sum")] == [3]
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))


def test_a_chord_whose_members_message_was_sent_twice_has_its_body_once(redis_site, redis_url, tmp_path):
    """The answer to the first was lost. The second waits for the key of the first, and fails nobody."""
    site = redis_site(
        visibility_timeout=5, heartbeat_interval=4, wait_time_seconds=1, coordination_store=redis_url
    )
    workers = [site.start("exclusive", concurrency=1, ready=False) for _ in range(2)]
    for worker in workers:
        worker.wait_ready()
    site.proxy.inject(lose_response(), "SendMessage", times=1)
    sign = site.app.signature
    members = sign("exclusive.until_there", [str(tmp_path / "there")]), sign("exclusive.plain", ["other"])
    chord(members)(sign("exclusive.plain"))
    wait_until(lambda: sum(worker.log.count(WAITED) for worker in workers) >= 6, SOON, "six waits")
    (tmp_path / "there").touch()
    site.diary.wait_for("started", key=["done", None])
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert site.diary.count("started") == 3
    assert not any("No attempts left" in worker.log for worker in workers)


@pytest.fixture
def result_backend(request, redis_url, emulator, tmp_path):
    """The URL of a result backend of that kind."""
    table = f"results-{uuid.uuid4().hex[:8]}"
    return {
        "redis": redis_url,
        "file": f"file://{tmp_path / 'results'}",
        "database": f"db+sqlite:///{tmp_path / 'results.db'}",
        "dynamodb": f"dynamodb://key:secret@{urlsplit(emulator.url).netloc}/{table}",
    }[request.param]


@pytest.mark.parametrize("result_backend", ["redis", "file", "database", "dynamodb"], indirect=True)
def test_a_member_of_a_chord_that_is_delivered_again_counts_once(make_site, result_backend, tmp_path):
    site = make_site({"result_backend": result_backend})
    worker = start(site, concurrency=3)
    ran, there = tmp_path / "ran", tmp_path / "there"
    again, last = signature(site, "one", str(ran)), signature(site, "number_when", 2, str(there))
    body = chord([again.set(task_id=site.queue), last])(signature(site, "adding"))
    (first,) = [each for each in site.proxy.wait_for_calls("SendMessage", 2) if is_of(each, site.queue)]

    def wait_for_ends(count):
        succeeded = f"Task ends.one[{site.queue}] succeeded"
        wait_until(lambda: worker.log.count(succeeded) == count, SOON, lambda: worker.log)

    wait_for_ends(1)
    ran.touch()
    site.sqs.send_message(**first.request)
    wait_for_ends(2)
    there.touch()
    assert [entry["sum"] for entry in site.diary.wait_for("sum")] == [3]
    wait_until(lambda: body.state == "SUCCESS", SOON, lambda: body.state)
    site.sqs.send_message(**first.request)
    wait_for_ends(3)
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert (body.state, site.diary.count("sum"), site.diary.count("task_failure")) == ("SUCCESS", 1, 0)


def test_a_chord_that_is_polled_for_is_no_dead_letter(make_site):
    site = make_site()  # its results are files
    dead = site.create_queue_with_dead_letters(receives=3)
    start(site, concurrency=3)
    chord([signature(site, "number", 1), signature(site, "number", 2, seconds=8)])(signature(site, "adding"))
    assert [entry["sum"] for entry in site.diary.wait_for("sum")] == [3]
    assert site.counts(dead) == (0, 0)


@pytest.mark.prefork_only("it kills processes")
def test_a_map_runs_its_items_as_celerys_does_but_for_a_lost_process(make_site, tmp_path):
    site = make_site(visibility_timeout=5)
    site.start(pool="prefork", concurrency=1)
    item = site.app.signature("work.item")
    site.app.send_task("celery.map", kwargs={"task": item, "it": ["good", "bad", "later"]})
    site.diary.wait_for("item", 2)
    site.proxy.wait_for(lambda _: site.kept == 0)
    assert [entry["key"] for entry in site.diary.entries("item")] == ["good", "bad"]
    deadly = str(tmp_path / "was killed")
    site.app.send_task("celery.map", kwargs={"task": item, "it": [deadly, "last"]})
    site.diary.wait_for("item", key="last")
    assert site.diary.count("item", key=deadly) == 2

"""What of kombu's SQS cannot have is refused, and what Celery does with it unasked harms nobody."""

from __future__ import annotations

import pytest
from kombu.common import Broadcast
from support.processes import SOON, wait_until

from celery_sqs_visibility.errors import UnroutableError

BROADCAST = """
from kombu.common import Broadcast
from support.processes import SOON, wait_until
from work import app

app.conf.task_queues = [Broadcast("news")]
"""

RAISING = """
from work import app, quick


def strategy(task, app, consumer):
    def raising(*_, **__):
        raise KeyError("a strategy of the user's")

    return raising


@app.task(name="work.unlucky")
def unlucky(key):
    quick(key)


unlucky.Strategy = strategy
"""


#: As in Celery's guide "Custom Message Consumers".
CONSUMER_STEP = """
import os

from celery import bootsteps
from kombu import Consumer, Queue
from support.diary import note
from work import app


class Orders(bootsteps.ConsumerStep):
    def get_consumers(self, channel):
        queues = [Queue(os.environ["ORDERS"])]
        return [Consumer(channel, queues=queues, callbacks=[self.order], accept=["json"])]

    def order(self, body, message):
        note("ordered", key=body)
        message.ack()


app.steps["consumer"].add(Orders)
"""


def write(tmp_path, name, code):
    (tmp_path / f"{name}.py").write_text(code)
    return {"import_paths": [tmp_path]}


def test_a_worker_of_a_broadcast_queue_ends_with_a_sentence_and_makes_no_queue(make_site, tmp_path):
    site = make_site()
    worker = site.start("news", ready=False, **write(tmp_path, "news", BROADCAST))
    assert worker.wait_exit(30) != 0
    assert "cannot start, since queue 'bcast." in worker.log
    assert "exchange 'news' is of type 'fanout'" in worker.log
    assert "Set the transport option supports_fanout" in worker.log
    assert "Traceback" not in worker.log
    assert site.proxy.count("CreateQueue") == 0


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_consumer_step_gets_messages_of_other_programs_and_tasks_run_beside_it(
    make_site, monkeypatch, tmp_path, pool
):
    site = make_site(visibility_timeout=5)
    name = f"{site.queue[:60]}-orders.fifo"
    monkeypatch.setenv("ORDERS", name)
    url = site.sqs.create_queue(QueueName=name, Attributes={"FifoQueue": "true"})["QueueUrl"]
    bodies = ["7 apples", '{"order": 8}', '[{"order": 9}]']
    for number, body in enumerate(bodies):
        ids = {"MessageGroupId": "orders", "MessageDeduplicationId": str(number)}
        site.sqs.send_message(QueueUrl=url, MessageBody=body, **ids)
    worker = site.start("orders", pool=pool, **write(tmp_path, "orders", CONSUMER_STEP))
    for body in bodies:
        site.diary.wait_for("ordered", key=body)
    site.begin("a")
    wait_until(lambda: site.counts(url) == (0, 0), SOON, "what was acknowledged to be deleted")
    assert len(site.diary.entries("ordered")) == len(bodies)
    assert "Traceback" not in worker.log


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"queue": "news"},
            r"exchange 'news' .* type fanout \(Broadcast\) with the option supports_fanout only",
        ),
        ({"exchange": "media", "routing_key": "video"}, "no queue is bound to exchange 'media'"),
    ],
    ids=["a broadcast queue", "no queue"],
)
def test_a_task_is_refused_where_it_is_published_to(make_site, producer, options, sentence):
    site = make_site()
    app = producer({**site.config, "task_queues": [Broadcast("news")]})
    with pytest.raises(UnroutableError, match=sentence):
        app.send_task("work.quick", ("a",), **options)
    assert site.proxy.count("SendMessage") == 0


@pytest.mark.parametrize("settings", [{}, {"event_exchange": "ours", "control_exchange": "ours"}])
def test_events_and_remote_control_go_nowhere_and_harm_nobody(make_site, settings):
    site = make_site({"worker_send_task_events": True, "task_send_sent_event": True, **settings})
    worker = site.start(extra_args=["-E", "--heartbeat-interval", "1"])
    site.begin("a")
    site.app.control.revoke("somebody")
    site.begin("b")
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert worker.running
    assert "UnroutableError" not in worker.log


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "eventlet"])
def test_what_celery_cannot_take_is_kept_and_ends_no_worker(make_site, tmp_path, pool):
    site = make_site(visibility_timeout=10, error_visibility_timeout=60)
    worker = site.start("unlucky", pool=pool, **write(tmp_path, "unlucky", RAISING))
    site.app.send_task("work.nobody_knows", ("a",))
    worker.wait_for_log("message is no task for this worker")
    assert "work.nobody_knows" in worker.log
    site.proxy.wait_for(lambda _: site.changes() == [60])
    site.send("unlucky", "a")
    worker.wait_for_log("message could not be handed to Celery")
    site.begin("after")
    site.proxy.wait_for(lambda _: site.changes() == [60, 60])
    site.proxy.wait_for(lambda _: site.counts() == (0, 2))
    assert worker.running


def test_results_by_rpc_arrive_and_leave_no_queue_when_their_client_ends(make_site):
    def queues_of_the_client():
        return site.sqs.list_queues(QueueNamePrefix=site.app.backend.oid).get("QueueUrls", [])

    site = make_site({"result_backend": "rpc://", "result_expires": 3600})
    site.start()
    assert site.send("quick", "a").get(timeout=30) == "a"
    (url,) = queues_of_the_client()
    attributes = site.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert attributes["MessageRetentionPeriod"] == "3600"
    late = site.send("slow", "late", 3)
    site.diary.wait_for("started", key="late")
    site.app.backend.result_consumer.stop()
    assert not queues_of_the_client()
    site.diary.wait_for("done", key="late")
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))
    assert not queues_of_the_client()
    assert late

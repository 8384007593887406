"""Access to SQS is shared by equal settings, within a process."""

import json
import subprocess
import sys

from celery import Celery

from celery_sqs_visibility import VisibilityTask
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.transport.broker_clients import _plans


def nothing(): ...


def test_a_queue_is_planned_by_the_tasks_that_the_process_knows():
    with Celery("w", set_as_current=False) as app:
        app.conf.task_default_queue = "planned"
        app.task(name="often", base=VisibilityTask, max_retries=20, shared=False)(nothing)
        assert list(app.amqp.queues) == ["planned"]  # its settings have been read, as those of who publishes
        *_, plan = _plans(Options.parse({}), "planned")
        assert (plan.dead_letters, plan.max_receive_count) == ("planned-dead", 24)
        *_, plan = _plans(Options.parse({}), "other")
        assert plan.max_receive_count == 7


def test_a_queue_is_planned_though_the_tasks_of_an_app_cannot_be_made():
    with Celery("w", set_as_current=False) as app:
        app.task(name="broken", shared=False)(print)
        assert app.amqp.queues
        *_, plan = _plans(Options.parse({}), "planned")
        assert plan.max_receive_count == 7
        app._pending.clear()


FORK = """
import json, os, sys, threading
from celery_sqs_visibility.aws import boto, process_lock
from celery_sqs_visibility.aws.client_settings import ClientSettings
from celery_sqs_visibility.transport import broker_clients
from celery_sqs_visibility.transport.broker_clients import shared_sqs

made = []
class Caller:
    def __init__(self, client): made.append(os.getpid())
    def call(self, action, params, **_): return {"QueueUrl": "u"}
boto.Caller, boto.new_client = Caller, lambda *_: None
settings = ClientSettings("us-east-1", access_key_id="a", secret_access_key="b")
sqs = shared_sqs(settings)
sqs.queue_url("q")
with process_lock.SESSIONS, broker_clients._lock:  # the child must not wait for locks that its parent held
    pid = os.fork()
    if pid == 0:
        def look():
            sqs.queue_url("q")
            own = shared_sqs(settings)
            print(json.dumps([made[1:] == [os.getpid()], own is sqs, own is shared_sqs(settings)]))
        looker = threading.Thread(target=look)
        looker.start()
        looker.join()
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(pid, 0)
"""


def test_a_forked_child_uses_neither_clients_nor_locks_of_its_parent():
    run = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(run.stdout) == [True, False, True]

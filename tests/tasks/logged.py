"""Tasks whose worker writes its log as JSON lines."""

import logging
import os
import signal
import time

from celery.utils.log import get_task_logger
from support.app import make_app
from support.diary import note
from support.runs import UNTIL_ACCEPTED

from celery_sqs_visibility import VisibilityTask, log_json

app = make_app("logged", task_cls=VisibilityTask)
log_json(life_cycle=bool(os.environ.get("LIFE_CYCLE", "1")))


@app.task
def works(key):
    logging.getLogger("shop").warning("sold %s", key, extra={"price": 7})
    get_task_logger("shop.tasks").info("told")
    print("printed")  # noqa: T201 - Celery makes a record of it
    note("done", key=key)


@app.task(error_visibility_timeout=[1, 600], max_retries=5)
def fails(key):
    raise ValueError(key)


@app.task(max_retries=0)
def fails_for_good(key):
    raise ValueError(key)


@app.task(max_retries=0)
def exits(key):
    os._exit(9)


@app.task(exclusive=lambda args, _: args[0])
def once(key):
    note("done", key=key)


@app.task
def kills_worker(key):
    """Take the whole worker along."""
    time.sleep(UNTIL_ACCEPTED)
    os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)

"""Airflow's tasks of the scenes: each notes its attempts. Airflow's processors parse this file."""

import datetime as dt
import time

from airflow.sdk import dag, task
from support.diary import note

SOON = dt.timedelta(seconds=1)
#: Each scene has a queue and a DAG of its own, of the same name, that runs one task for `seconds`.
SCENES = ["unbegun", "killed", "deploy", "deadline", "stuck", "unrevoked"]


class Trouble(Exception):
    """The error with which a task of the scenes fails."""


def noted(event, context):
    ti = context["ti"]
    note(event, dag=ti.dag_id, task=ti.task_id, run=ti.run_id, attempt=ti.try_number)


@task
def quick(**context):
    noted("started", context)
    noted("ended", context)


@task(retries=2, retry_delay=SOON)
def failing_twice(**context):
    noted("started", context)
    if context["ti"].try_number < 3:
        raise Trouble
    noted("ended", context)


@task(retries=1, retry_delay=SOON)
def lasting(**context):
    noted("started", context)
    time.sleep(context["params"]["seconds"])
    noted("ended", context)


@dag(schedule=None, params={"seconds": 0})
def mixed():
    quick.override(task_id="first")() >> [
        quick.override(task_id="second")(),
        failing_twice(),
        lasting(),
    ]


mixed()

for scene in SCENES:

    @dag(dag_id=scene, schedule=None, params={"seconds": 0})
    def one():
        lasting.override(queue=scene)()  # noqa: B023 - called in this turn

    one()

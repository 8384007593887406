"""The tasks of `logged`, in a worker whose core breaks a rule: the one that the environment names."""

import math
import os
import time

from logged import app

from celery_sqs_visibility.core.extensions import ExtensionSchedule
from celery_sqs_visibility.core.held import Held
from celery_sqs_visibility.delivery.receive.buffer import Buffer

carry_out = Held.carry_out
put = Buffer.put


def regardless_of_the_deadline(held, delivery, settlement, now):
    delivery.deadline = math.inf
    return carry_out(held, delivery, settlement, now)


def put_twice(buffer, messages):
    put(buffer, [*messages, *messages])


def forget(*_):
    """Tell SQS nothing."""


def stay_held(_held, delivery):
    delivery.carrier, delivery.attended = None, True  # or it would be found forgotten, and settled again


match os.environ["BROKEN"]:
    case "settled messages stay held":
        Held._remove = stay_held
    case "nothing is extended, and deadlines do not count":
        ExtensionSchedule.next_due = lambda _: None
        Held.carry_out = regardless_of_the_deadline
    case "messages go to Celery twice":
        Buffer.put = put_twice
    case "settlements are forgotten":
        Held.carry_out = forget


@app.task(name="broken.slow_failure", error_visibility_timeout=600)
def slow_failure(key, seconds):
    time.sleep(seconds)
    raise ValueError(key)

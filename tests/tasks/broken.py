"""The tasks of `logged`, in a worker whose core breaks a rule: the one that the environment names."""

from __future__ import annotations

import math
import os
import time

from logged import app

from celery_sqs_visibility.core.extensions import ExtensionSchedule
from celery_sqs_visibility.core.held import Held

carry_out = Held.carry_out


def regardless_of_the_deadline(held, delivery, settlement, now):
    delivery.deadline = math.inf
    return carry_out(held, delivery, settlement, now)


def stay_held(_held, delivery):
    delivery.carrier, delivery.attended = None, True  # or it would be found forgotten, and settled again


match os.environ["BROKEN"]:
    case "settled messages stay held":
        Held._remove = stay_held
    case "nothing is extended, and deadlines do not count":
        ExtensionSchedule.next_due = lambda _: None
        Held.carry_out = regardless_of_the_deadline


@app.task(name="broken.slow_failure", error_visibility_timeout=600)
def slow_failure(key, seconds):
    time.sleep(seconds)
    raise ValueError(key)

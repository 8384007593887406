"""The subject of monitors: a worker's part, which sends each event of Celery's to all of them."""

from __future__ import annotations

import cost_worlds as worlds
from growth_control import OPTIONS, Clock, alive
from kombu.utils.json import dumps

from celery_sqs_visibility.control import wire
from celery_sqs_visibility.control.event_feed import LINGER_SECONDS
from celery_sqs_visibility.control.monitors import Monitors
from celery_sqs_visibility.control.queues import ControlQueues
from celery_sqs_visibility.delivery.pump import Pump

EXCHANGE = "celeryev"
EVENTS = 1000
EVENTS_A_SECOND = 100
#: Those that share requests.
TOGETHER = int(EVENTS_A_SECOND * LINGER_SECONDS)


def event(number):
    """What kombu publishes for a task's event (celery/events/dispatcher.py: `EventDispatcher._publish`)."""
    body = dumps(
        {"type": "task-succeeded", "uuid": str(number), "hostname": "worker@host", "pid": 1, "result": "None"}
    )
    headers = {"hostname": "worker@host"}
    return {"body": body, "content-type": wire.JSON, "content-encoding": "utf-8", "headers": headers}


def events(measure, monitors):
    """An event of a worker, to which so many monitors listen."""
    directory = ControlQueues(measure.sqs, OPTIONS.whole_control_prefix, {}, Clock())
    for number in range(monitors):
        alive(measure, directory.create(EXCHANGE, f"monitor{number}@host"))
    listened = Monitors(EXCHANGE, directory, Clock(), Pump(Clock()), in_worker=True)
    listened.look()
    measure.prepare()
    measure.start()
    for number in range(EVENTS):
        listened.publish(event(number))
        worlds.advance(1 / EVENTS_A_SECOND)
        if number % TOGETHER == TOGETHER - 1:
            for feed in listened._feeds.values():
                feed.lane.send_next()
    measure.stop()

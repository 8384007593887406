"""The subjects of remote control: the caller's side, and one worker's, among many."""

from __future__ import annotations

import cost_worlds as worlds
from kombu.utils.json import dumps

from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.control import inbox, queues, wire
from celery_sqs_visibility.control.queues import STALE_SECONDS, ControlQueues, sign_of_life
from celery_sqs_visibility.control.remote import RemoteControl
from celery_sqs_visibility.policy.control_names import replies_of
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.quotas import WAIT_TIME_SECONDS

EXCHANGE = "celery.pidbox"
REPLIES = replies_of(EXCHANGE)
OPTIONS = Options.parse({"remote_control": True})
TICKET, COLLECTOR = "the-ticket", "the-collector"
HOUR_SECONDS = 3600
EPOCH_SECONDS = 1_700_000_000
NEVER_STALE = sign_of_life(2 * EPOCH_SECONDS)


class Clock:
    """Both of its hands are turned together."""

    monotonic = staticmethod(worlds.Clock.monotonic)

    @staticmethod
    def wall():
        return EPOCH_SECONDS + worlds.hands[0]


class OneThread:
    """In place of a pool of threads: the caller's own does all."""

    def __init__(self, *_arguments):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        pass

    map = staticmethod(map)


def start_here(target, _name, *arguments):
    """A sweep is done at once."""
    if getattr(target, "__name__", "") == "sweep":
        target(*arguments)
    return worlds.Unstarted()


def fleet(measure, workers):
    """The queues of that number of workers, all alive, and who made them."""
    queues.ThreadPoolExecutor = OneThread
    inbox.start_thread = start_here
    directory = ControlQueues(measure.sqs, OPTIONS.whole_control_prefix, {}, Clock())
    made = [directory.create(EXCHANGE, f"worker{number}@host") for number in range(workers)]
    for queue in made:
        alive(measure, queue)
    return directory, made


def alive(measure, queue):
    """Whose queue it is says so, for as long as anybody looks."""
    measure.sqs.tag_queue(queue, NEVER_STALE)


def command(destination=None, *, replies=False):
    """What kombu publishes for `ping` (kombu/pidbox.py: `Mailbox._publish`)."""
    body = {"method": "ping", "arguments": {}, "destination": destination, "ticket": TICKET}
    if replies:
        body["reply_to"] = {"exchange": REPLIES, "routing_key": COLLECTOR}
    headers = {"clock": 1, "expires": Clock.wall() + 1}
    return {"body": dumps(body), "content-type": wire.JSON, "content-encoding": "utf-8", "headers": headers}


def reply(number):
    content = dumps({f"worker{number}@host": {"ok": "pong"}})
    return wire.envelope(content, {"ticket": TICKET, "clock": 1}, REPLIES, COLLECTOR, {wire.ID: str(number)})


def command_all(measure, workers):
    """A command to all, and their answers: the caller's part."""
    fleet(measure, workers)
    caller = RemoteControl(measure.sqs, OPTIONS, Clock())
    own = caller._replies.inbox(REPLIES)
    own._poll(own._create())
    answers = []
    caller.consume(f"{COLLECTOR}.{REPLIES}", REPLIES, lambda payload, _in_time: answers.append(payload))
    for number in range(workers):
        measure.sqs.send(own._url, OutgoingMessage(reply(number)))
    measure.start()
    caller.broadcast(EXCHANGE, command(replies=True))
    while len(answers) < workers:
        own._poll(own._url)
    measure.stop()


def command_one(measure, workers):
    """A command to one worker, while the list of all is fresh."""
    fleet(measure, workers)
    caller = RemoteControl(measure.sqs, OPTIONS, Clock())
    caller.broadcast(EXCHANGE, command(["worker0@host"]))
    worlds.advance(1)
    measure.start()
    caller.broadcast(EXCHANGE, command(["worker0@host"]))
    measure.stop()


def command_an_old_list(measure, workers):
    """A command by a list from which all but one have gone since."""
    directory, made = fleet(measure, workers + 1)
    directory.find(EXCHANGE)
    for queue in made[1:]:
        measure.sqs.delete_queue(queue)
    measure.start()
    directory.send(EXCHANGE, directory.find(EXCHANGE), "a command")
    measure.stop()


def sweep(measure, workers):
    """One worker sweeps the queues of all others, which were killed long ago."""
    directory, made = fleet(measure, workers)
    for queue in made:
        measure.sqs.tag_queue(queue, sign_of_life(Clock.wall()))
    worlds.advance(2 * STALE_SECONDS)
    measure.start()
    directory.sweep(EXCHANGE)
    measure.stop()


def hour_of_a_worker(measure, workers):
    """What one worker does for remote control in an hour in which there is no command."""
    fleet(measure, workers - 1)
    worker = RemoteControl(measure.sqs, OPTIONS, Clock())
    measure.prepare()
    worker.consume(f"worker@host.{EXCHANGE}", EXCHANGE, lambda *_: None)
    (member,) = worker._members.values()
    own = member.inbox
    own._sweep_at = Clock.monotonic() + HOUR_SECONDS / 2  # in any case once in the hour
    own._poll(own._create())
    measure.start()
    for _ in range(HOUR_SECONDS // WAIT_TIME_SECONDS):
        own._poll(own._url)
        worlds.advance(WAIT_TIME_SECONDS)
    measure.stop()

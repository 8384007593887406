"""The account of a model's messages: what was published, and what has become of each, by its key.

A message has keys, one for each run that is to come of it: those of an event have several.
"""

import functools
import json
import math
from collections import Counter

from support.factories import TIMEOUT

from celery_sqs_visibility import events
from celery_sqs_visibility.core.copies import CHECK_SECONDS
from celery_sqs_visibility.core.delivery import Wait
from celery_sqs_visibility.core.held import MARGIN_SECONDS
from celery_sqs_visibility.delivery.settle.dead_letters import described
from celery_sqs_visibility.delivery.supervisor import CHECK_INTERVAL_SECONDS
from celery_sqs_visibility.policy.health import HUNG_AFTER_SECONDS


class Account:
    """Keys, and the runs of each.

    Attributes:
        done: keys of which a run succeeded, here or elsewhere, or was revoked.
        given_up: keys of messages that are not to be run any more, and may be kept.
        disturbed: keys that may run once more, since a request failed, or a lease was lost.
        payloads: the keys of messages whose payload is in S3, by their bodies.
        awake_since: the instant at which the machine woke.
    """

    def __init__(self, world):
        self.world = world
        self.keys, self.done, self.given_up, self.disturbed = set(), set(), set(), set()
        self.forgotten = set()  # ids of messages that the worker finished and, in a long sleep, forgot
        self.payloads = {}
        self.awake_since = 0.0
        self.finished_here = set()  # keys of runs that have ended here, for good
        self.ended = {}  # when messages were finished by this process, by id: run, copied, or a dead letter
        self.received = Counter()  # the receive count that this process has seen last, by message id
        self.lettered = {}  # the receive counts of dead letters, by the ids of their messages
        self.copied = {}  # keys of which this process has sent copies, by the delivery they were sent for
        self.too_late = set()  # deliveries that were to be copied after their deadlines
        self.counts = Counter()
        self._keys_by_id = {}

    def new_keys(self, count):
        first = len(self.keys)
        return [str(first + n) for n in range(count)]

    def published(self, message_id, keys):
        self.keys.update(keys)
        self._keys_by_id[message_id] = keys

    def keys_in(self, body):
        return self.payloads.get(body) or keys_in(body)

    def keys_of(self, delivery):
        return self.keys_by_id(delivery.facts.message_id)

    def keys_by_id(self, message_id):
        """Also of what is deleted by now."""
        if message_id not in self._keys_by_id:
            for message in self.world.messages.values():
                self._keys_by_id[message.id] = self.keys_in(message.body)
        return self._keys_by_id.get(message_id, [])

    def disturb(self, keys):
        self.disturbed.update(keys)

    def disturb_all(self):
        """The process is killed: whatever SQS has may run once more, and the next one knows nothing."""
        self.ended.clear()
        self.copied.clear()
        for message in self.world.messages.values():
            self.disturb(self.keys_in(message.body))

    @property
    def sendings(self):
        """Whose copies are sent."""
        holders = dict.fromkeys(consumer.holder for consumer in self.world.consumers)
        return [each for holder in holders for each in holder.copies.pending.sendings]

    def interrupt_copies(self):
        """The machine slept during requests, which may be taken for hanging ones and made once more."""
        for sending in self.sendings:
            if sending.under_way:
                self.disturb(self.keys_of(sending.delivery))

    def forget(self):
        """The machine slept for longer than finished messages are remembered; some may be there still."""
        for message in self.world.messages.values():
            if message.id in self.ended:
                self.disturb(self.keys_in(message.body))
                self.forgotten.add(message.id)

    def disturb_request(self, arguments):
        """The answer to a request is lost, or late: what it sends may be there twice."""
        for body in (each.body for each in bodies_in(arguments)):
            self.disturb(self.keys_in(body))

    def note(self, event):
        """Whatever happens."""
        self.counts[type(event).__name__] += 1
        keys = self.keys_by_id(event.delivery.message_id)
        match event:
            case events.Received():
                self.received[event.delivery.message_id] = event.delivery.receive_count
            case events.Lost():
                self.disturb(keys)
            case events.Unreadable():
                self.given_up.update(keys)
            case events.DeadLettered():
                self.given_up.update(keys)
                # The machine may have slept during the request, in which the message came back, and was run
                # or had another letter since.
                message_id, receives = event.delivery.message_id, event.delivery.receive_count
                message = self.world.messages.get(message_id)
                latest = self.received[message_id] if message is None else message.receive_count
                if receives >= latest and not self._was_sent_again(message_id, receives):
                    self.check_not_ended(message_id)
                    self.ended[message_id] = self.world.now
                    self.lettered[message_id] = receives

    def _was_sent_again(self, message_id, receives):
        """A letter whose request the machine slept through: it was taken for a hanging one."""
        slept = self.world.now - self.awake_since < 2 * HUNG_AFTER_SECONDS
        return slept and self.lettered.get(message_id) == receives

    # Runs

    def begun(self, run):
        self.counts["runs"] += 1
        for other in self.world.pool.running:
            same = other.id == run.id and not other.given_up and run.id not in self.forgotten
            assert not same, f"nothing runs twice at once: {run.keys}"
            twice = set(other.keys) & set(run.keys) - self.disturbed
            assert not twice, f"copy and original run at once: {twice}"
        self.check_not_ended(run.id)
        again = self.finished_here & set(run.keys) - self.disturbed
        assert not again, f"what is done runs again without need: {again}"

    def finished(self, run):
        self.finished_here.update(run.keys)
        self.ended[run.id] = self.world.now

    def check_not_ended(self, message_id):
        """However it comes back: this process knows that."""
        ended = self.ended.get(message_id, -math.inf)
        assert self.world.now >= ended + TIMEOUT + MARGIN_SECONDS, "what this process has finished is over"

    def ending(self, run, how):
        current = run.delivery
        match how:
            case "success" | "success, too":
                self.done.update(run.keys)
            case "rejected" | "given up" if run.delivery.queue.name == "second":
                self.given_up.update(run.keys)
            case "retry" if current.lost_by(self.world.now):
                self.too_late.add(current)

    def killed(self, runs):
        """They were acknowledged early, and are lost, as the log says."""
        for run in runs:
            self.done.update(run.keys)

    def body_of(self, run):
        """As it was published, and is sent again."""
        pointer = run.delivery.pointer
        return pointer.body if pointer is not None else run.payload["body"]

    # Requests

    def check_copies(self, queue_url, messages):
        """Copies are about to be sent."""
        now = self.world.now
        for message in messages if queue_url not in {queue.url for queue in self.world.graves} else ():
            keys = self.keys_in(message.body)
            if (sending := self._sending(keys)) is None:
                continue
            current, message_id = sending.delivery, sending.delivery.facts.message_id
            assert sending.delivery not in self.too_late, "nothing is copied after its deadline"
            assert now - current.deadline < CHECK_SECONDS, "nothing is copied long after its deadline"
            if not self.disturbed.issuperset(keys):  # else the answer that said so may not have been heard
                self.check_not_ended(message_id)
            before = [sent for each, sent in self.copied.items() if each.facts.message_id == message_id]
            again = set().union(*before) & set(keys) - self.disturbed
            assert not again, "a record that was sent is not sent again"

    def note_copies(self, queue_url, messages, failed):
        """SQS has said which it has.

        Where it refuses the one that stands for the others of an event, that comes back as a whole.
        """
        if queue_url in {queue.url for queue in self.world.graves}:
            return
        for message in failed:
            if (sending := self._sending(self.keys_in(message.body))) and sending.remainder_tried:
                self.disturb(self.keys_of(sending.delivery))
        for message in messages:
            keys = self.keys_in(message.body)
            if sending := self._sending(keys):
                message_id = sending.delivery.facts.message_id
                copied = self.copied.setdefault(sending.delivery, set())
                copied.update(keys)
                if copied.issuperset(self.keys_by_id(message_id)) and sending.delivery.held:
                    self.ended[message_id] = self.world.now

    def _sending(self, keys):
        """Whose copy has these keys; `None` where nobody knows: a copy that arrived is copied, too."""
        found = [each for each in self.sendings if set(self.keys_of(each.delivery)) & set(keys)]
        return found[0] if len(found) == 1 else None

    # What always holds

    def check(self):
        """Whenever no thread can go on."""
        capacity, held = self.world.consumer.capacity, 0
        for consumer in self.world.consumers:
            for delivery in consumer.held():
                held += delivery.has_place and delivery.wait is not Wait.PAYLOAD
                lease = delivery.lease
                assert lease is None or lease.lost >= delivery.lost, "a run learns that its message is lost"
        assert capacity.held == held, "capacity is counted"
        for run in self.world.pool.running:
            self.check_activity(run)

    def check_activity(self, run):
        """A run that shows no life ends with the supervisor's next look, or the one after a sleep."""
        current, now = run.delivery, self.world.now
        if current.inactivity is None or current.lease is None:
            return
        silent_since = max(current.lease.last_sign, self.awake_since)
        late = silent_since + current.inactivity.timeout + 3 * CHECK_INTERVAL_SECONDS
        assert now < late, "a run that shows no life is ended"

    def check_nothing_is_lost(self):
        left = {key for message in self.world.messages.values() for key in self.keys_in(message.body)}
        graves = [self.world.sqs.queues[queue.url] for queue in self.world.graves]
        for letter in (letter for grave in graves for letter in grave.messages):
            moved = "DeadLetterQueueSourceArn" in letter.system
            assert moved or "reason" in described(letter.message_attributes), "a dead letter says why"
            left.update(self.keys_in(letter.body))
        runs = {key for run in self.world.pool.running for key in run.keys}
        lost = self.keys - self.done - self.given_up - left - runs
        assert not lost, f"nothing is lost: {lost}"


@functools.lru_cache(maxsize=10_000)
def keys_in(body):
    content = json.loads(body)
    return content.get("keys") or content["records"]


def bodies_in(arguments):
    """The messages among a request's arguments."""
    for each in arguments:
        if hasattr(each, "body"):
            yield each
        elif isinstance(each, (list, tuple)):
            yield from bodies_in(each)

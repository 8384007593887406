"""SQS and S3 for simulated threads: requests take time, and fail as told."""

import functools
import math
from collections import defaultdict, deque

from celery_sqs_visibility.aws.fake import FakeObjectStore, FakeSQS
from celery_sqs_visibility.errors import (
    AnswerLostError,
    ReceiptHandleInvalidError,
    ThrottledError,
    UnavailableError,
)

#: What may become of a request.
FAULTS = ("lost", "answer lost", "throttled", "one throttled", "one refused", "slow", "hangs", "twice")

#: The API actions that the simulated requests make, by the port's names.
ACTIONS = {
    "receive": "ReceiveMessage",
    "delete": "DeleteMessageBatch",
    "change_visibility": "ChangeMessageVisibilityBatch",
    "send": "SendMessage",
    "send_batch": "SendMessageBatch",
    "queue_attributes": "GetQueueAttributes",
}

#: Seconds: a request that is slow, and one that hangs for longer than its thread is waited for.
SLOW, HANGS = 3.0, 45.0


class Requests:
    """Requests of threads of `scheduler`; the test's own take no time, and do not fail.

    `failing` gets the arguments of each request that has no answer, though it may have reached SQS.

    Attributes:
        faults: what becomes of the next requests, by API action.
        failed_at: when a request last met a fault.
        latency: seconds that a request takes, there and back.
    """

    def __init__(self, scheduler, chance, failing):
        self._scheduler, self._chance, self._failing = scheduler, chance, failing
        self.faults = defaultdict(deque)
        self.failed_at = -math.inf
        self.latency = 0.02

    def make(self, action, call, fail_one, arguments):
        """Make it; `fail_one` has one entry of it fail."""
        if self.by_test:
            return call()
        faults = self.faults[action]
        fault = faults.popleft() if faults else None
        if fault is not None:
            self.failed_at = self._scheduler.clock.monotonic()
            if fault in {"answer lost", "hangs"}:
                self._failing(arguments)
        self._pass(fault)
        match fault:
            case "lost":
                raise UnavailableError(fault)
            case "throttled":
                raise ThrottledError(fault)
            case "one throttled":
                fail_one(ThrottledError(fault))
            case "one refused":
                fail_one(ReceiptHandleInvalidError(fault))
        result = call()
        self._pass(None)
        if fault in {"answer lost", "hangs"}:
            raise AnswerLostError(fault)
        return result * 2 if fault == "twice" and action == "ReceiveMessage" else result

    @property
    def by_test(self):
        """Whether the test makes this one."""
        return self._scheduler.me is self._scheduler.test

    def _pass(self, fault):
        seconds = {"slow": SLOW, "hangs": HANGS}.get(fault, 0.0)
        self._scheduler.sleep(seconds + self._chance.choice([0.0, self.latency]))


class SimulatedSQS(FakeSQS):
    """SQS whose requests are `requests`.

    `sends` gets the queue's URL and the messages of those that send, and `sent` what SQS says that it has,
    and what it has not.
    """

    def __init__(self, clock, requests, **options):
        super().__init__(clock, **options)
        self._waits = True  # a long poll waits, since its clock goes on
        self.requests = requests
        for name, action in ACTIONS.items():
            setattr(self, name, functools.partial(self._request, action, getattr(super(), name)))

    def sends(self, queue_url, messages):
        pass

    def sent(self, queue_url, messages, failed):
        pass

    def _request(self, action, call, *args, **options):
        sends = action.startswith("SendMessage") and not self.requests.by_test
        if sends:
            messages = [args[1]] if action == "SendMessage" else args[1]
            self.sends(args[0], messages)
        result = self.requests.make(
            action,
            lambda: call(*args, **options),
            lambda error: self.fail_next(action, error, 0 if action.endswith("Batch") else None),
            args,
        )
        if sends:
            failed = getattr(result, "failed", ())
            taken = [each for place, each in enumerate(messages) if place not in failed]
            self.sent(args[0], taken, [messages[place] for place in failed])
        return result


class SimulatedBucket(FakeObjectStore):
    """A bucket whose requests are `requests`."""

    def __init__(self, requests):
        super().__init__()
        for name, action in (("get", "GetObject"), ("put", "PutObject"), ("delete", "DeleteObjects")):
            setattr(self, name, functools.partial(self._request, requests, action, getattr(super(), name)))

    def _request(self, requests, action, call, *args, **options):
        return requests.make(
            action, lambda: call(*args, **options), lambda error: self.fail_next(action, error), args
        )

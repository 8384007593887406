"""Requests that are under way: taken, at SQS, answered, with anything in between."""

from celery_sqs_visibility.errors import (
    ReceiptHandleInvalidError,
    SQSError,
    ThrottledError,
    UnavailableError,
)

#: What may become of a request, or of the entry at a position, with that error.
FAULTS = {
    "none": None,
    "the request is lost": None,
    "the answer is lost": None,
    "one is throttled": ThrottledError("slow down"),
    "one is refused": ReceiptHandleInvalidError("stale"),
}


class Flight:
    """A request of batch threads' `work`, from its beginning to its conclusion."""

    def __init__(self, work, batch, since):
        self.work, self.batch, self.since = work, batch, since
        self.failed = None  # by position; `None` until it is known

    def all_failed(self, error):
        return dict.fromkeys(range(len(self.batch)), error)

    def send(self):
        """The request reaches SQS: the errors by position."""
        try:
            return dict(self.work.send(self.batch, self.since).failed)
        except SQSError as error:
            return self.all_failed(error)

    def pass_through(self, fault, send=None):
        """It reaches SQS, by `send`, or does not, and its answer comes, or does not."""
        if fault != "the request is lost":
            self.failed = (send or self.send)()
        if fault.endswith("is lost"):
            self.failed = self.all_failed(UnavailableError(fault))

    def conclude(self):
        self.work.conclude(self.batch, self.since, self.failed)

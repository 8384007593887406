from __future__ import annotations

import json
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from decimal import Decimal, InvalidOperation
from itertools import islice
from pathlib import Path
from typing import Any

from celery.exceptions import Reject
from celery.utils.log import get_task_logger

from celery_sqs_visibility import VisibilityTask, s3_object
from proj.celery import app
from proj.records import PROCESS_TIMEOUT, Claim, Order, Records

logger = get_task_logger(__name__)

LINES_AT_A_TIME = 10_000

WEBHOOK_SECONDS = 10
TOO_MANY_REQUESTS = 429
SERVER_ERRORS = range(500, 600)


@app.task(bind=True, sqs_event="s3:ObjectCreated:*", error_visibility_timeout=[10, 60, 300], max_retries=5)
def import_object(self: VisibilityTask, record: dict[str, Any]) -> str:
    """Import the orders of an object that has arrived: CSV, an order number and an amount per line."""
    bucket, key, _ = s3_object(record)
    records = Records(app.conf.proj_database)
    name = f"{bucket}/{key}"
    claim = records.claim(name, self.visibility.remaining())
    if claim is Claim.PROCESSED:
        logger.info("%s: skipped, since it was imported before", name)
        return "imported before"
    if claim is Claim.TAKEN:
        # That worker may yet die, so look again later, in a new message: an error would cost an attempt.
        logger.info("%s: skipped for %d s, since another worker imports it", name, PROCESS_TIMEOUT)
        return self.replace(self.signature((record,), countdown=PROCESS_TIMEOUT))
    try:
        result = _import_lines(self, records, name, download(bucket, key))
    except BaseException as error:
        # Also when a time limit ends us, or the shutdown. An error never deletes: it propagates, and the
        # message comes back.
        if not self.visibility.lost:  # or another worker may have the object by now
            records.give_back(name)
        # A shutdown is no failure.
        level = logging.INFO if isinstance(error, Reject) else logging.WARNING
        logger.log(level, "%s: import ends early: %r", name, error)
        raise
    logger.info("%s: imported, %s", name, result)
    return result


def _import_lines(task: VisibilityTask, records: Records, name: str, lines: Iterable[bytes]) -> str:
    imported, place = records.kept(name)  # by a run before this one
    logger.info("%s: import begins after line %d", name, place)
    numbered = islice(enumerate(lines, start=1), place, None)
    while some := list(islice(numbered, LINES_AT_A_TIME)):
        if task.visibility.stopping or task.visibility.lost:
            # Our place is saved: whoever gets the message next goes on from there.
            task.visibility.release()
        orders = list(valid_orders(name, some))
        place, _ = some[-1]
        records.keep(name, orders, place, task.visibility.remaining())
        imported += len(orders)
    records.finish(name)
    skipped = place - imported
    return f"{imported} orders, {skipped} skipped" if skipped else f"{imported} orders"


def valid_orders(name: str, numbered: Iterable[tuple[int, bytes]]) -> Iterator[Order]:
    """Skip lines that are not valid: they never will be, and are no reason to repeat the others."""
    for number, line in numbered:
        try:
            yield number, *parse_order(line)
        except ValueError as error:  # UnicodeDecodeError is one
            logger.warning("%s, line %d skipped: %s", name, number, error)


def parse_order(line: bytes) -> tuple[str, int]:
    order, comma, amount = line.decode().strip().partition(",")
    try:
        cents = Decimal(amount) * 100
    except InvalidOperation:
        cents = Decimal("NaN")
    if not (order and comma and cents.is_finite() and cents == int(cents)):
        raise ValueError("expected an order number, a comma and an amount")
    return order, int(cents)


def download(bucket: str, key: str) -> Iterator[bytes]:
    """The lines of an object, as `boto3.client("s3").get_object(...)["Body"].iter_lines()` has them."""
    with (Path(app.conf.proj_buckets) / bucket / key).open("rb") as body:
        yield from body


class WebhookError(Exception):
    """The other side did not take it.

    Attributes:
        retry_after: seconds after which it wants to be asked again, or `None`. What an exception says goes
            before the task's `error_visibility_timeout`.
    """

    def __init__(self, status: int, retry_after: str | None = None) -> None:
        super().__init__(status)
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"HTTP status {self.args[0]}"


class RefusedError(WebhookError):
    """It will never take it."""


@app.task(
    error_visibility_timeout=[1, 2, 4],
    max_retries=3,
    dont_autoretry_for=(RefusedError,),
)
def call_webhook(url: str, payload: dict[str, str]) -> str:
    """Post to somebody else's server, which may be down or busy."""
    request = urllib.request.Request(url, json.dumps(payload).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=WEBHOOK_SECONDS) as answer:
            return f"HTTP status {answer.status}"
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == TOO_MANY_REQUESTS or error.code in SERVER_ERRORS:
            raise WebhookError(error.code, error.headers.get("Retry-After")) from None
        raise RefusedError(error.code) from None


@app.task
def build_report(chapters: int, seconds_per_chapter: float) -> str:
    """Take longer than the visibility timeout: the heartbeat keeps the message hidden until we are done."""
    for _ in range(chapters):
        time.sleep(seconds_per_chapter)  # stands for a slow query
    return f"{chapters} chapters"

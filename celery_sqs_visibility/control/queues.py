"""The directory of control queues. A queue's name is its binding to an exchange: see `control_names`."""

from __future__ import annotations

import logging
import random
import re
import secrets
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from celery_sqs_visibility.aws.attempts import attempt
from celery_sqs_visibility.aws.port import SQS, OutgoingMessage
from celery_sqs_visibility.aws.process_lock import ProcessLock
from celery_sqs_visibility.errors import PASSING_ERRORS, QueueDoesNotExistError, SQSError
from celery_sqs_visibility.policy.backoff import pause
from celery_sqs_visibility.policy.clock import Clock
from celery_sqs_visibility.policy.control_names import (
    UNIQUE_CHARACTERS,
    address,
    exchange_prefix,
    has_all,
    is_address,
    of_nodes,
)
from celery_sqs_visibility.policy.quotas import MIN_RETENTION_SECONDS

logger = logging.getLogger(__name__)

#: A message is received once, and expires before its visibility timeout does, so nobody needs to delete it.
ATTRIBUTES: Final = {
    "MessageRetentionPeriod": str(MIN_RETENTION_SECONDS),
    "VisibilityTimeout": str(10 * MIN_RETENTION_SECONDS),
}

#: Seconds for which the list of an exchange's queues is used. SQS's own may be a minute old.
LIST_SECONDS: Final = 10

#: How many requests one broadcast makes at the same time.
MAX_THREADS: Final = 32

#: How many queues' tags one round of a sweep reads. After a round that finds a stale queue there is another.
SWEPT_QUEUES: Final = 10


class ControlQueues:
    """The control queues of all processes, by exchange. Any thread; all methods but `url_of` make requests.

    Args:
        prefix: the beginning of their names.
        tags: the user's, for every queue.
    """

    def __init__(self, sqs: SQS, prefix: str, tags: Mapping[str, str], clock: Clock) -> None:
        self.sqs = sqs
        self._prefix = prefix
        self._tags = dict(tags)
        self._clock = clock
        self._lock = ProcessLock()  # guards everything below
        self._listed: dict[str, tuple[float, dict[str, str]]] = {}  # exchange: (when, address to URL)
        self._base: str | None = None  # the part of a URL before the name

    def create(self, exchange: str, node: str) -> str:
        """Create a queue with an unused name. Returns its URL. It may take a second until it is usable."""
        own = address(node, secrets.token_hex(UNIQUE_CHARACTERS // 2))
        tags = {**self._tags, **tags_of(exchange, node, self._clock.wall())}
        url = self.sqs.create_queue(exchange_prefix(self._prefix, exchange) + own, ATTRIBUTES, tags)
        with self._lock:
            self._base = url.rpartition("/")[0]
        return url

    def delete(self, url: str) -> None:
        """Delete a queue, if it still exists. Waits between attempts."""
        delete = partial(self.sqs.delete_queue, url)
        try:
            attempt(delete, PASSING_ERRORS, map(pause, (1, 2)))  # an ending process has little time
        except QueueDoesNotExistError:
            pass
        except SQSError as error:
            logger.warning("cannot delete a control queue, which others sweep: %s (%s)", error, url)

    def renew(self, url: str) -> None:
        """Tag the queue with a sign of life of this process."""
        self.sqs.tag_queue(url, sign_of_life(self._clock.wall()))

    def url_of(self, exchange: str, address: str) -> str | None:
        """The URL of another process's queue; `None` for an invalid address. No request."""
        if self._base is None or not is_address(address):
            return None
        return f"{self._base}/{exchange_prefix(self._prefix, exchange)}{address}"

    def find(self, exchange: str, nodes: Collection[str] = ()) -> list[str]:
        """The URLs of the exchange's queues, or of those of `nodes`.

        Uses a cached list, which is refreshed if it lacks a node.
        """
        listed, fresh = self._cached(exchange)
        found = _of_nodes(listed, nodes)
        if fresh or (found and has_all(listed, nodes)):
            return found
        return _of_nodes(self._list(exchange), nodes)

    def send(self, exchange: str, urls: Collection[str], body: str) -> int:
        """Send a message to each queue, in parallel. Waits. Returns the number of queues that have it.

        Raises:
            SQSError: no existing queue is known to have the message.
        """
        if not urls:
            return 0
        with ThreadPoolExecutor(min(len(urls), MAX_THREADS), "sqs-control-send") as threads:
            errors = list(threads.map(partial(self._try, body), urls))
        failures = [error for error in errors if error is not None]
        failed = [error for error in failures if not isinstance(error, QueueDoesNotExistError)]
        if len(failures) > len(failed):
            tried = zip(urls, errors, strict=True)
            self._forget(exchange, {url for url, error in tried if isinstance(error, QueueDoesNotExistError)})
        if failed and len(failures) == len(urls):
            raise failed[0]
        if failed:
            logger.warning("a command did not reach %d of %d queues: %s", len(failed), len(urls), failed[0])
        return len(urls) - len(failures)

    def sweep(self, exchange: str) -> None:
        """Delete queues that killed processes left behind. Logs errors."""
        try:
            urls = [*self._list(exchange).values()]
            random.shuffle(urls)
            found = True
            while urls and found:
                found = sum(self._swept(exchange, url) for url in urls[:SWEPT_QUEUES]) > 0
                del urls[:SWEPT_QUEUES]
        except SQSError as error:
            logger.warning("cannot sweep control queues of processes that are gone, which stay: %s", error)

    def _swept(self, exchange: str, url: str) -> bool:
        """Delete the queue if it is stale. Returns whether it was stale, or no longer exists."""
        try:
            if not is_stale(self.sqs.queue_tags(url), exchange, self._clock.wall()):
                return False
            self.sqs.delete_queue(url)
            logger.info("deleted a control queue whose process has gone (%s)", url)
        except QueueDoesNotExistError:
            pass  # another process was faster
        return True

    def _cached(self, exchange: str) -> tuple[dict[str, str], bool]:
        """The list, and whether it is fresh."""
        with self._lock:
            when, listed = self._listed.get(exchange, (float("-inf"), {}))
        if self._clock.monotonic() - when < LIST_SECONDS:
            return listed, False
        return self._list(exchange), True

    def _list(self, exchange: str) -> dict[str, str]:
        prefix = exchange_prefix(self._prefix, exchange)
        now = self._clock.monotonic()
        named = {url.rpartition("/")[2][len(prefix) :]: url for url in self.sqs.list_queues(prefix)}
        listed = {address: url for address, url in named.items() if is_address(address)}
        with self._lock:
            self._listed[exchange] = now, listed
        return listed

    def _try(self, body: str, url: str) -> SQSError | None:
        try:
            attempt(partial(self.sqs.send, url, OutgoingMessage(body)), PASSING_ERRORS, (0.0,))  # twice
        except SQSError as error:
            return error
        return None

    def _forget(self, exchange: str, gone: Collection[str]) -> None:
        with self._lock:
            when, listed = self._listed.get(exchange, (float("-inf"), {}))
            self._listed[exchange] = when, {key: each for key, each in listed.items() if each not in gone}


def _of_nodes(listed: Mapping[str, str], nodes: Collection[str]) -> list[str]:
    return [listed[address] for address in (of_nodes(listed, nodes) if nodes else listed)]


#: The keys of a control queue's tags.
EXCHANGE_TAG: Final = "celery-control-exchange"
NODE_TAG: Final = "celery-control-node"
ALIVE_TAG: Final = "celery-control-alive"

#: The interval of signs of life.
SIGN_OF_LIFE_SECONDS: Final = 300

#: A queue without a sign of life for this long has no owner. AWS lets clocks differ by five minutes.
STALE_SECONDS: Final = 1200

#: Characters that SQS refuses in the value of a tag, and the most that it takes.
_ILLEGAL: Final = re.compile(r"[^\w .:/=+\-@]")
_MAX_TAG_CHARACTERS: Final = 256


def tags_of(exchange: str, node: str, now: float) -> dict[str, str]:
    """The tags of a new queue; `now` is in seconds since the epoch."""
    names = {EXCHANGE_TAG: _legal(exchange), NODE_TAG: _legal(node)}
    return {**names, **sign_of_life(now)}


def sign_of_life(now: float) -> dict[str, str]:
    """The tag that says that the queue has an owner at `now`, in seconds since the epoch."""
    return {ALIVE_TAG: str(int(now))}


def is_stale(tags: Mapping[str, str], exchange: str, now: float) -> bool:
    """Whether a queue of the exchange has no owner any more. `False` if it lacks one of our tags."""
    alive = tags.get(ALIVE_TAG, "")
    ours = tags.get(EXCHANGE_TAG) == _legal(exchange) and NODE_TAG in tags
    return ours and alive.isascii() and alive.isdigit() and now - int(alive) > STALE_SECONDS


def _legal(text: str) -> str:
    return _ILLEGAL.sub("_", text)[:_MAX_TAG_CHARACTERS]

"""Store in Redis 5 or later, cluster mode included: a hash for each key, changed by scripts.

Instants are those of the server's clock.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from celery_sqs_visibility.aws.client_factory import KEEPALIVE
from celery_sqs_visibility.errors import OptionError, StoreError, StoreUnavailableError
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.policy.exclusive import message_of
from celery_sqs_visibility.stores.port import (
    RECORD_SECONDS,
    Acquired,
    Acquisition,
    ExclusiveStore,
    Processed,
    Processing,
    Renewal,
)

T = TypeVar("T")

#: The prefix of each key's name in Redis.
PREFIX: Final = "celery_sqs_visibility:exclusive:"

#: Timeouts in seconds: to connect, and for an answer.
TIMEOUT_SECONDS: Final = 3

#: A connection is not reused after this idle time: a firewall or balancer may have dropped it silently, and
#: the request would get no answer.
IDLE_SECONDS: Final = 30

#: Codes of a server that is not a primary, or whose cluster fails over. Its name may soon lead elsewhere.
FAILING_OVER: Final = ("READONLY", "MASTERDOWN", "CLUSTERDOWN", "NOREPLICAS")

#: Codes that redis-py turns into classes, and then leaves out of the message.
_CODES: Final = {
    "ReadOnlyError": "READONLY",
    "MasterDownError": "MASTERDOWN",
    "ClusterDownError": "CLUSTERDOWN",
    "MovedError": "MOVED",
}

#: The beginning of each script. Instants are seconds since the epoch, by the server's clock.
_NOW: Final = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local function keep(seconds) redis.call('PEXPIRE', KEYS[1], math.ceil(seconds * 1000)) end
local function at(seconds) return string.format('%.6f', now + seconds) end
"""

#: The beginning of scripts for the owner, ARGV[1]. They return 0 for others, and after a release.
_OWNED: Final = f"""{_NOW}
local owner, lease = unpack(redis.call('HMGET', KEYS[1], 'owner', 'lease_until'))
if owner ~= ARGV[1] or not lease then return 0 end
"""

_SCRIPTS: Final = {
    # ARGV: owner, seconds of the lease, seconds for which the record outlasts it, the owner's message, and
    # that message's earlier attempts, which count if this is its first run in a row.
    "acquire": f"""{_NOW}
local owner, lease, processed, checkpoint, message = unpack(
    redis.call('HMGET', KEYS[1], 'owner', 'lease_until', 'processed_until', 'checkpoint', 'message_id'))
if processed and tonumber(processed) > now then return {{'processed'}} end
if lease and tonumber(lease) > now and owner ~= ARGV[1] then
    return {{'processing', string.format('%.6f', lease - now), owner}}
end
if message ~= ARGV[4] then
    redis.call('HSET', KEYS[1], 'message_id', ARGV[4], 'retries', ARGV[5], 'runs', 1)
elseif owner ~= ARGV[1] then
    redis.call('HINCRBY', KEYS[1], 'runs', 1)
end
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'lease_until', at(ARGV[2]))
keep(ARGV[2] + ARGV[3])
return {{'acquired', checkpoint, unpack(redis.call('HMGET', KEYS[1], 'retries', 'runs'))}}
""",
    # A record that Redis has lost belongs to the owner who renews it.
    "renew": f"""{_NOW}
if redis.call('EXISTS', KEYS[1]) == 0 then
    redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'lease_until', at(0))
end
{_OWNED.removeprefix(_NOW)}
redis.call('HSET', KEYS[1], 'lease_until', at(ARGV[2]))
keep(ARGV[2] + ARGV[3])
return 1
""",
    "finish": f"""{_OWNED}
redis.call('HSET', KEYS[1], 'lease_until', at(0), 'processed_until', at(ARGV[2]))
redis.call('HDEL', KEYS[1], 'checkpoint', 'message_id')
keep(ARGV[2])
return 1
""",
    "release": f"{_OWNED} redis.call('HDEL', KEYS[1], 'lease_until') return 1",
    "save": f"{_OWNED} redis.call('HSET', KEYS[1], 'checkpoint', ARGV[2]) return 1",
}


class RedisStore(ExclusiveStore):
    """A process's access to Redis. Connects at the first request.

    A cluster (MemoryDB always is one) is recognized by the first key that belongs to another node.

    Args:
        url: redis://, rediss:// or unix://, for redis-py.

    Raises:
        OptionError: redis-py is not installed, or refuses the URL.
    """

    def __init__(self, url: str) -> None:
        self._module = redis = _redis_py()
        self._url = url
        closed = (redis.ConnectionError,)
        # Reopen a closed connection, but ask a server that does not answer only once.
        self._retry = redis.retry.Retry(
            redis.backoff.ExponentialBackoff(cap=0.5, base=0.1), retries=2, supported_errors=closed
        )
        try:
            self._use(
                redis.Redis.from_url(url, retry=self._retry, retry_on_error=list(closed), **_settings())
            )
        except ValueError:  # its text may show a part of the password
            raise OptionError(
                "expected coordination_store to be a URL such as redis://:password@host:6379/0; in a "
                "password, characters such as # / @ are percent-encoded"
            ) from None
        self._errors = (redis.RedisError, redis.cluster.RedisClusterException)
        self._unanswered = (
            redis.ConnectionError,
            redis.TimeoutError,
            redis.cluster.RedisClusterException,
        )
        self._used_at = SYSTEM_CLOCK.monotonic()

    def _use(self, client: Any) -> None:
        self._redis = client
        self._scripts = {name: client.register_script(text) for name, text in _SCRIPTS.items()}

    def acquire(
        self, key: str, owner: str, seconds: float, retries: int = 0, kept: float = RECORD_SECONDS
    ) -> Acquisition:
        match self._run("acquire", key, owner, seconds, kept, message_of(owner), retries):
            case ["processed"]:
                return Processed()
            case ["processing", left, other]:
                return Processing(float(left), other)
            case ["acquired", checkpoint, before, in_a_row]:
                runs = int(in_a_row) - 1
                return Acquired(json.loads(checkpoint) if checkpoint else None, int(before) + runs, runs)
            case answer:
                raise StoreError(f"Redis has answered {answer!r}, which is not a record of an exclusive key")

    def renew(self, renewals: Sequence[Renewal]) -> list[bool]:
        """Renew leases. One pipeline; one request each in cluster mode."""

        def send() -> list[bool]:
            arguments = [
                ([PREFIX + each.key], [each.owner, each.seconds, RECORD_SECONDS]) for each in renewals
            ]
            renew = self._scripts["renew"]
            if self._is_cluster:
                return [bool(renew(keys=keys, args=args)) for keys, args in arguments]
            with self._redis.pipeline(transaction=False) as pipeline:
                for keys, args in arguments:
                    renew(keys=keys, args=args, client=pipeline)
                return [bool(done) for done in pipeline.execute()]

        return self._request(send)

    def finish(self, key: str, owner: str, ttl: float) -> bool:
        return bool(self._run("finish", key, owner, ttl))

    def release(self, key: str, owner: str) -> bool:
        return bool(self._run("release", key, owner))

    def save(self, key: str, owner: str, checkpoint: Any) -> bool:
        return bool(self._run("save", key, owner, json.dumps(checkpoint)))

    def _run(self, script: str, key: str, *args: Any) -> Any:
        return self._request(lambda: self._scripts[script](keys=[PREFIX + key], args=args))

    def _request(self, send: Callable[[], T]) -> T:
        """Make an idempotent request, and repeat it once if another server must be asked."""
        now = SYSTEM_CLOCK.monotonic()
        if now - self._used_at > IDLE_SECONDS:
            self._forget_connections()
        self._used_at = now
        try:
            try:
                return send()
            except self._module.ResponseError as error:
                if not self._is_cluster and _has_code(error, "MOVED"):
                    self._use_cluster()
                elif _has_code(error, *FAILING_OVER):
                    self._forget_connections()
                else:
                    raise
            return send()
        except self._errors as error:
            unavailable = isinstance(error, self._unanswered) or _has_code(error, *FAILING_OVER)
            kind = StoreUnavailableError if unavailable else StoreError
            raise kind(f"Redis: {type(error).__name__}: {error}") from error

    @property
    def _is_cluster(self) -> bool:
        return isinstance(self._redis, self._module.cluster.RedisCluster)

    def _use_cluster(self) -> None:
        plain = self._redis
        self._use(self._module.cluster.RedisCluster.from_url(self._url, retry=self._retry, **_settings()))
        plain.close()

    def _forget_connections(self) -> None:
        """Close idle connections, so that none of them is used again."""
        nodes = self._redis.get_nodes() if self._is_cluster else []
        clients = [each.redis_connection for each in nodes] if nodes else [self._redis]
        for client in filter(None, clients):
            client.connection_pool.disconnect(inuse_connections=False)


def _settings() -> dict[str, Any]:
    probes = {getattr(socket, name): value for name, value in KEEPALIVE.items() if hasattr(socket, name)}
    return {
        "decode_responses": True,
        "socket_timeout": TIMEOUT_SECONDS,
        "socket_connect_timeout": TIMEOUT_SECONDS,
        "socket_keepalive": True,
        "socket_keepalive_options": probes,
    }


def _has_code(error: Exception, *codes: str) -> bool:
    """Return whether an error has one of these codes. Before Redis 7 a script's error has it mid-sentence."""
    return _CODES.get(type(error).__name__) in codes or any(code in str(error) for code in codes)


def _redis_py() -> Any:
    try:
        import redis.backoff  # noqa: PLC0415 - an extra
        import redis.cluster  # noqa: PLC0415
        import redis.retry  # noqa: PLC0415
    except ImportError:
        raise OptionError(
            "coordination_store names a Redis, and the package redis is not installed: "
            "pip install 'celery_sqs_visibility[redis]'"
        ) from None
    return redis

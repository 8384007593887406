"""A bucket is left alone while S3 does not answer."""

import threading

import pytest
from support.clock import FakeClock

from celery_sqs_visibility.aws.breaker import PAUSE_SECONDS
from celery_sqs_visibility.aws.fake import FakeObjectStore
from celery_sqs_visibility.aws.object_store import PROBED_KEY, GuardedObjectStore
from celery_sqs_visibility.errors import AccessDeniedError, UnavailableError


class Threads:
    """Threads that run when the test says so, once the time has come for a probe."""

    def __init__(self):
        self.clock = FakeClock()
        self.targets = []

    def start(self, target, _name):
        self.targets.append(target)
        return threading.current_thread()

    def run(self):
        self.clock.advance(PAUSE_SECONDS)
        self.targets.pop()()


TIMEOUT = UnavailableError("no answer", code="ReadTimeoutError", action="PutObject")


@pytest.mark.parametrize(
    ("error", "opens"),
    [
        (TIMEOUT, True),
        (UnavailableError("nobody", code="EndpointConnectionError"), True),
        (UnavailableError("internal error", code="InternalError"), False),
        (UnavailableError("it comes too slowly", code="TooSlow"), False),
        (AccessDeniedError("no"), False),
    ],
)
def test_s3_is_left_alone_after_silence_and_not_after_an_error(error, opens):
    objects, threads = FakeObjectStore(), Threads()
    guarded = GuardedObjectStore(objects, threads.start, threads.clock)
    objects.fail_next("PutObject", error)
    with pytest.raises(type(error)):
        guarded.put("a", b"1")
    assert bool(threads.targets) == opens
    if opens:
        with pytest.raises(UnavailableError, match="not asked again") as raised:
            guarded.get("a", 1)
        assert (raised.value.code, raised.value.action) == ("CircuitOpen", "GetObject")
        with pytest.raises(UnavailableError):
            guarded.delete(["a"])
        assert objects.calls == ["PutObject"]
        objects.objects[PROBED_KEY] = b"12"  # whatever it is, that is an answer
        threads.run()
    guarded.put("a", b"1")
    assert guarded.get("a", 1) == b"1"
    assert guarded.delete(["a"]).failed == {}
    assert guarded.bucket == objects.bucket

"""Payloads of deleted messages go in batches, for as long as it may help to try."""

import pytest
from support.clock import FakeClock
from support.lanes import work_off

from celery_sqs_visibility.aws.fake import FakeObjectStore
from celery_sqs_visibility.delivery.payloads.removals import LINGER_SECONDS, TRY_SECONDS, Removals
from celery_sqs_visibility.delivery.pump import Pump
from celery_sqs_visibility.errors import AccessDeniedError, UnavailableError

DELETES = "DeleteObjects"


class World:
    def __init__(self):
        self.clock, self.objects = FakeClock(), FakeObjectStore()
        self.removals = Removals(self.objects, Pump(self.clock))

    def remove(self, count):
        for number in range(count):
            self.objects.objects[str(number)] = b""
            self.removals.submit(str(number))

    def later(self, seconds=LINGER_SECONDS):
        self.clock.advance(seconds)
        return work_off(self.removals.lane)


@pytest.fixture
def world():
    return World()


def test_a_thousand_share_a_request(world):
    world.remove(1001)
    assert work_off(world.removals.lane) == 0
    assert world.later() == 2
    assert world.objects.objects == {}


def test_a_flush_waits_for_nothing_else(world):
    world.remove(1)
    world.removals.lane.start()
    assert world.removals.flush(5)
    assert world.objects.objects == {}
    world.removals.lane.stop()


def test_a_flush_too_waits_before_it_tries_again_what_has_failed(world):
    world.remove(1)
    world.objects.fail_next(DELETES, *[UnavailableError("no answer")] * 5)
    world.removals.flushing = 1
    assert work_off(world.removals.lane) == 1
    world.remove(2)
    assert work_off(world.removals.lane) == 1
    assert work_off(world.removals.lane) == 0


def test_what_fails_is_tried_again(world, caplog):
    world.remove(2)
    world.objects.fail_next(DELETES, UnavailableError("no answer"), UnavailableError("no answer"))
    for _ in range(4):
        world.later(2.0)
    assert world.objects.calls == [DELETES] * 3
    assert world.objects.objects == {}
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert "cannot remove payloads: no answer; trying again (bucket=payloads)" in caplog.text


@pytest.mark.parametrize(
    ("error", "calls"), [(AccessDeniedError("not allowed"), 1), (UnavailableError("down"), None)]
)
def test_what_will_not_pass_or_lasts_too_long_is_left_to_the_lifecycle_rule(world, caplog, error, calls):
    world.remove(2)
    world.objects.fail_next(DELETES, *[error] * 1000)
    for _ in range(int(TRY_SECONDS) + 5):
        world.later()
    assert work_off(world.removals.lane) == 0
    assert calls is None or len(world.objects.calls) == calls
    assert "payloads of deleted messages stay in S3 (bucket=payloads objects=2 first=0)" in caplog.text
    assert world.removals.flush(0)

"""What docs/scaling.md computes: its tables are the code's, its formulae what a heartbeat and a poll do."""

import json
import re
from dataclasses import replace

import pytest
from support.clock import FakeClock
from support.factories import CHANGES, TIMEOUT, entries, every_queue, received, sqs_queue
from support.lanes import work_off
from support.scaling import ROOT, scaling

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.core.extensions import BUCKETS
from celery_sqs_visibility.core.held import Held
from celery_sqs_visibility.delivery.heartbeat import Heartbeat
from celery_sqs_visibility.delivery.holder import SETTLE_WINDOW_SECONDS
from celery_sqs_visibility.delivery.pump import Pump
from celery_sqs_visibility.delivery.receive.decoder import MAX_TRANSIT_SECONDS
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.prefetch import PREFETCH_SECONDS

PAGE = ROOT / "docs/scaling.md"
WORK = scaling.Workload("task", seconds=1)


def extended(count, seconds, phase=0.0):
    """Extensions, and requests for them, of messages held for so long; the clock begins at `phase`."""
    clock = FakeClock(monotonic=1000 + phase)
    sqs = FakeSQS(clock)
    held = Held(every_queue(TIMEOUT, 40.0), TIMEOUT)
    heartbeat = Heartbeat(held, lambda *_: None, Pump(clock))
    held.receive(received(sqs_queue(sqs=sqs), count, clock), clock.monotonic())
    end = clock.monotonic() + seconds
    while (due := held.next_extension()) < end:
        clock.advance(max(0.0, due - clock.monotonic()))
        work_off(heartbeat.lane)
    batches = [changes for changes in entries(sqs, CHANGES) if changes]
    return sum(map(len, batches)), len(batches)


def test_the_tables_of_the_page_are_generated_from_the_code():
    page = PAGE.read_text()
    assert page == scaling.written(page), "run: python benchmarks/scaling.py --write docs/scaling.md"


def test_the_json_of_the_recipes_is_json():
    blocks = re.findall(r"^```json\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert blocks
    for block in blocks:
        json.loads(block)


def test_a_page_without_its_table_is_told_so():
    with pytest.raises(ValueError, match="expected one table 'tasks' in the page, got 0"):
        scaling.written("no table here")


def test_the_formulae_know_the_defaults_and_the_package():
    options = Options.parse({})
    assert scaling.MAX_TRANSIT_SECONDS == MAX_TRANSIT_SECONDS
    assert scaling.BUCKETS_OF_THE_SCHEDULE == BUCKETS
    assert WORK.visibility_timeout == options.visibility_timeout
    assert (WORK.settle_window, WORK.prefetch_seconds) == (SETTLE_WINDOW_SECONDS, PREFETCH_SECONDS)


@pytest.mark.parametrize("seconds", [1, 39, 79, 81, 200, 1200, 7205])
@pytest.mark.parametrize("phase", [0, 3.3, 9.9])
def test_a_heartbeat_extends_as_often_as_the_formula_says(seconds, phase):
    """Received at any phase of the schedule, at the most that often, at the least one less."""
    often, _ = extended(1, seconds, phase)
    most = scaling.extensions(seconds, TIMEOUT)
    assert most - 1 <= often <= most
    assert scaling.extensions(seconds, TIMEOUT, 0) == 0, "without heartbeat"


@pytest.mark.parametrize("count", [10, 30, 60])
def test_extensions_share_requests_as_the_formula_says(count):
    often, requests = extended(count, 1200)
    assert often / count in (scaling.extensions(1200, TIMEOUT) - 1, scaling.extensions(1200, TIMEOUT))
    assert often / requests == scaling.extension_batch(replace(WORK, seconds=1200, slots=count))


def test_long_tasks_are_received_one_by_one_and_short_ones_by_ten():
    assert scaling.receive_batch(replace(WORK, seconds=30)) == 1
    assert scaling.receive_batch(replace(WORK, seconds=0.05, slots=8)) == 10
    assert scaling.held(replace(WORK, seconds=30, slots=8)) == 8


def test_a_task_of_a_fifo_queue_costs_three_requests_however_short_it_is():
    alone = replace(WORK, seconds=0.05, slots=8, fifo=True, settle_window=0)
    assert scaling.requests(alone) == 3
    assert scaling.held(alone) == 8
    assert scaling.calls(replace(alone, settle_window=0.02)).delete == pytest.approx(1 / 4.2)


def test_a_million_is_free_and_the_rest_costs_by_the_million():
    assert scaling.dollars(1e6) == 0
    assert scaling.dollars(3.5e6) == pytest.approx(1.00)
    assert scaling.dollars(3e6, scaling.FIFO) == pytest.approx(1.00)
    assert scaling.dollars(201e9) == pytest.approx(40_000 + 30_000 + 240, rel=1e-4)


def test_each_64_kilobytes_of_payload_is_a_request():
    assert [scaling.billed(size) for size in (0, 1, 65536, 65537, 1024 * 1024)] == [1, 1, 1, 2, 16]
    one_by_one = replace(WORK, seconds=0.05, slots=8, bytes=60_000)
    # A receive of ten such messages is ten requests on the bill.
    assert scaling.requests(one_by_one) - scaling.calls(one_by_one).delete == pytest.approx(1 + 1)


def test_a_retry_costs_a_receive_and_a_hide_and_a_dead_letter_a_send():
    long = replace(WORK, seconds=30, slots=1, settle_window=0)
    assert scaling.requests(long) == 3
    assert scaling.requests(replace(long, retries=2)) == 3 + 2 * 2
    assert scaling.requests(replace(long, dead=1)) == 3 + 1


def test_idle_at_the_defaults_is_three_polls_a_minute_and_as_many_workers_as_keep_up_are_needed():
    assert scaling.idle_polls() == 3
    assert scaling.idle_polls(sleep=60) == 0.75
    assert scaling.workers_for(100, replace(WORK, seconds=30, slots=8)) == 375
    assert scaling.workers_for(100, replace(WORK, seconds=30, slots=8, retries=0.5)) == 563

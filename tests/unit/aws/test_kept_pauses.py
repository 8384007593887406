"""The tag that keeps a pause of a queue."""

import math

import pytest

from celery_sqs_visibility.aws.kept_pauses import NO_END, PAUSE_TAG, end_kept_pause, keep_pause, kept_until
from celery_sqs_visibility.aws.queues import Queue

YEAR_10000 = 253_402_300_800


@pytest.fixture
def queue(sqs, url):
    return Queue("q", url, sqs)


def tag(queue):
    return queue.sqs.queue_tags(queue.url).get(PAUSE_TAG)


def test_a_tag_says_until_when_in_a_time_that_people_read(queue):
    keep_pause(queue, 1_796_000_000.2)
    assert (tag(queue), kept_until(queue)) == ("2026-11-30T00:53:21Z", 1_796_000_001)


@pytest.mark.parametrize("until", [math.inf, YEAR_10000, 1e300])
def test_a_pause_without_an_end_says_so(queue, until):
    keep_pause(queue, until)
    assert (tag(queue), kept_until(queue)) == (NO_END, math.inf)


def test_ending_a_pause_leaves_the_other_tags(queue):
    queue.sqs.tag_queue(queue.url, {"team": "mail"})
    assert (kept_until(queue), end_kept_pause(queue)) == (None, False)
    keep_pause(queue, math.inf)
    assert (end_kept_pause(queue), end_kept_pause(queue)) == (True, False)
    assert queue.sqs.queue_tags(queue.url) == {"team": "mail"}


def test_a_tag_that_nobody_can_read_pauses_and_the_log_says_what_to_do(queue, caplog):
    queue.sqs.tag_queue(queue.url, {PAUSE_TAG: "tomorrow"})
    assert kept_until(queue) == math.inf
    assert "queue 'q', celery-paused-until='tomorrow'; expected 'resumed' or a time such as" in caplog.text
    assert "sqs resume` removes it" in caplog.text

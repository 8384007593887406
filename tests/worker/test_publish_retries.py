"""`task_publish_retry_policy` means what it says: how often, how far apart, and for which errors."""

from __future__ import annotations

from itertools import pairwise

import pytest
from kombu.exceptions import OperationalError
from support.faults import error, lose_response, reset_connection

SENDS = "SendMessage"
LOOK_UPS = "GetQueueUrl"

#: Waits of 0.4, 0.8 and 1 s.
POLICY = {"max_retries": 3, "interval_start": 0.4, "interval_step": 0.4, "interval_max": 1}
WAITS = [0.4, 0.8, 1.0]

PASSING_ERRORS = {
    "throttled": error("RequestThrottled"),
    "5xx": error("InternalError", 500),
    "no answer": reset_connection(),
    "refused by a gateway": error("", 400),
    "credentials that are being rotated": error("ExpiredToken"),
}
REFUSALS = {
    "access denied": error("AccessDenied"),
    "bad content": error("InvalidMessageContents"),
    "bad parameter": error("InvalidParameterValue"),
}


@pytest.fixture
def site(make_site):
    """A producer that knows its queue, with that policy."""
    return known(make_site({"task_publish_retry_policy": POLICY}))


def known(site):
    site.send("quick", "first")
    site.proxy.clear()
    return site


def waits(site, action=SENDS):
    """Seconds between the attempts, from an answer to the next request."""
    return [later.started - earlier.finished for earlier, later in pairwise(site.proxy.calls(action))]


def assert_waits(site, action, expected):
    """As many attempts as were to be, and none too early; a slow machine may be late."""
    assert len(waits(site, action)) == len(expected)
    assert all(waited > wanted - 0.02 for waited, wanted in zip(waits(site, action), expected, strict=True))


@pytest.mark.parametrize("fault", PASSING_ERRORS.values(), ids=PASSING_ERRORS.keys())
def test_what_passes_is_retried_as_often_and_as_far_apart_as_the_policy_says(site, fault):
    with site.proxy.inject(fault, SENDS), pytest.raises(OperationalError, match=SENDS):
        site.send("quick", "a")
    assert_waits(site, SENDS, WAITS)


def test_the_next_publication_begins_anew(site):
    for key in "ab":
        with site.proxy.inject(PASSING_ERRORS["throttled"], SENDS), pytest.raises(OperationalError):
            site.send("quick", key)
        assert_waits(site, SENDS, WAITS)
        site.proxy.clear()
    with site.proxy.inject(PASSING_ERRORS["throttled"], SENDS, times=1):
        site.send("quick", "c")
    assert_waits(site, SENDS, WAITS[:1])


def test_what_has_passed_is_sent(site):
    with site.proxy.inject(PASSING_ERRORS["5xx"], SENDS, times=2):
        site.send("quick", "a")
    assert_waits(site, SENDS, WAITS[:2])
    assert site.counts() == (2, 0)


def test_a_publications_own_policy_goes_first(site):
    policy = {"max_retries": 1, "interval_start": 0.6}
    with site.proxy.inject(PASSING_ERRORS["5xx"], SENDS), pytest.raises(OperationalError):
        site.app.send_task("work.quick", ("a",), retry_policy=policy)
    assert_waits(site, SENDS, [0.6])


def test_without_retries_there_is_one_attempt(make_site):
    site = known(make_site({"task_publish_retry": False, "task_publish_retry_policy": POLICY}))
    with site.proxy.inject(PASSING_ERRORS["5xx"], SENDS), pytest.raises(OperationalError, match=SENDS):
        site.send("quick", "a")
    assert site.proxy.count(SENDS) == 1


def test_a_publication_without_retries_leaves_anothers_alone(site):
    with site.proxy.inject(PASSING_ERRORS["5xx"], SENDS, times=1), pytest.raises(OperationalError):
        site.app.send_task("work.quick", ("a",), retry=False)
    assert site.proxy.count(SENDS) == 1
    site.proxy.clear()
    with site.proxy.inject(PASSING_ERRORS["5xx"], SENDS, times=1):
        site.send("quick", "b")
    assert_waits(site, SENDS, WAITS[:1])


@pytest.mark.parametrize("fault", REFUSALS.values(), ids=REFUSALS.keys())
def test_a_refusal_is_sent_once_and_raises_at_once(site, fault):
    with site.proxy.inject(fault, SENDS), pytest.raises(OperationalError, match=SENDS):
        site.send("quick", "a")
    assert site.proxy.count(SENDS) == 1


def test_a_queue_that_cannot_be_looked_up_for_now_is_looked_up_again(make_site):
    site = make_site({"task_publish_retry_policy": POLICY})
    with site.proxy.inject(PASSING_ERRORS["5xx"], LOOK_UPS), pytest.raises(OperationalError, match=LOOK_UPS):
        site.send("quick", "a")
    assert_waits(site, LOOK_UPS, WAITS)
    site.send("quick", "b")
    assert site.counts() == (1, 0)


@pytest.mark.parametrize("retry", [True, False])
def test_a_queue_that_was_deleted_is_made_anew(site, retry):
    site.sqs.delete_queue(QueueUrl=site.url)
    site.app.send_task("work.quick", ("a",), retry=retry)
    assert [call.action for call in site.proxy.calls()] == [SENDS, LOOK_UPS, "CreateQueue", SENDS]
    assert site.counts() == (1, 0)


def test_a_predefined_queue_that_was_deleted_is_told_of_at_once(make_site, sqs, queue):
    url = sqs.create_queue(QueueName=queue)["QueueUrl"]
    site = make_site(predefined_queues={queue: {"url": url}})
    sqs.delete_queue(QueueUrl=url)
    with pytest.raises(OperationalError, match=r"QueueDoesNotExist|NonExistentQueue"):
        site.send("quick", "a")
    assert [call.action for call in site.proxy.calls()] == [SENDS]


def test_an_answer_that_was_lost_is_asked_for_again(site):
    with site.proxy.inject(lose_response(), SENDS, times=1):
        site.send("quick", "a")
    assert_waits(site, SENDS, WAITS[:1])
    assert site.counts() == (3, 0)  # at least once is all that a standard queue promises

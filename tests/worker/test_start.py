"""A worker's start: it waits for what passes, and ends with one clear sentence where waiting cannot help."""

from __future__ import annotations

import contextlib
import time

import pytest
from kombu.exceptions import OperationalError
from support.faults import black_hole, error, reset_connection
from support.processes import RECOVERY

CANNOT = "cannot start, since "
UNSIGNED = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
INVALID = error("InvalidClientTokenId", 403, "The security token included in the request is invalid.")
DENIED = error("AccessDeniedException", 403, "User is not authorized to perform this action")


def refusal(worker):
    """The one sentence of a worker that could not start."""
    assert worker.wait_exit() == 1
    (sentence,) = [line for line in worker.log.splitlines() if "CRITICAL" in line]
    assert CANNOT in sentence
    assert "Traceback" not in worker.log
    assert worker.log.count("Connected to") == 0
    return sentence


def test_no_credentials(make_site):
    sentence = refusal(make_site().start(pool="solo", ready=False, env=UNSIGNED))
    assert "no AWS credentials were found; set AWS_ACCESS_KEY_ID" in sentence


def test_invalid_credentials(make_site):
    site = make_site()
    site.proxy.inject(INVALID)
    sentence = refusal(site.start(pool="solo", ready=False))
    assert "InvalidClientTokenId" in sentence
    assert "check those in the environment, the profile, the role or broker_url" in sentence


@pytest.mark.parametrize(
    ("region", "said"),
    [("nowhere-1", "botocore knows no region 'nowhere-1'"), ("not a region", "'not a region' doesn't match")],
)
def test_an_unknown_region(make_site, region, said):
    # Nothing leaves this machine: a proxy is asked for that endpoint, and there is none.
    env = {"AWS_ENDPOINT_URL_SQS": "", "HTTPS_PROXY": "http://127.0.0.1:1"}
    site = make_site()
    site.config["broker_transport_options"] = {"visibility_timeout": 30, "region": region}
    sentence = refusal(site.start(pool="solo", ready=False, env=env))
    assert said in sentence


def test_a_malformed_endpoint(make_site):
    site = make_site()
    env = {"AWS_ENDPOINT_URL_SQS": "not a url"}
    assert "Invalid endpoint: not a url" in refusal(site.start(pool="solo", ready=False, env=env))


def test_a_queue_that_is_missing_and_may_not_be_created(make_site):
    site = make_site()
    site.proxy.inject(DENIED, "CreateQueue")
    sentence = refusal(site.start(pool="solo", ready=False))
    assert f"SQS has no queue '{site.queue}'" in sentence
    assert "create the queue or allow sqs:CreateQueue" in sentence


def test_a_dead_letter_queue_that_is_missing_and_may_not_be_created(make_site):
    site = make_site()
    site.create_queue()
    site.config["broker_transport_options"]["dead_letter_queue"] = f"{site.queue}-dead"
    site.proxy.inject(DENIED, "CreateQueue")
    sentence = refusal(site.start(pool="solo", ready=False))
    assert "the transport option dead_letter_queue" in sentence
    assert f"SQS has no queue '{site.queue}-dead'" in sentence
    assert "create the queue or allow sqs:CreateQueue" in sentence


def test_a_predefined_queue_that_does_not_exist(make_site):
    site = make_site()
    url = f"{site.proxy.url}/123456789012/missing"
    site.config["broker_transport_options"]["predefined_queues"] = {site.queue: {"url": url}}
    sentence = refusal(site.start(pool="solo", ready=False))
    assert url in sentence
    assert "Create the queue, or correct its name or URL" in sentence


@contextlib.contextmanager
def refused(site):
    site.proxy.refuse()
    yield
    site.proxy.accept()


PASSING_ERRORS = {
    "throttled": error("RequestThrottled"),
    "500": error("InternalFailure", 500),
    "clock skew": error("InvalidSignatureException", 403, "Signature not yet current: ..."),
    "reset": reset_connection(),
    "black hole": black_hole(),
    "refused": None,
}


@pytest.mark.parametrize("name", PASSING_ERRORS)
def test_what_passes_is_waited_for(make_site, name, reliability):
    site = make_site()
    site.send("quick", "a")
    fault = PASSING_ERRORS[name]
    with site.proxy.inject(fault) if fault else refused(site):
        worker = site.start(pool="solo", ready=False).wait_for_log("cannot find the queue: ")
        time.sleep(3)
    ended = time.monotonic()
    (start,) = site.diary.wait_for("started", key="a")
    seconds = start["monotonic"] - ended
    assert seconds < RECOVERY
    assert worker.log.count("; trying again") == 1
    assert worker.log.count("can find the queue again") == 1
    assert "Traceback" not in worker.log
    reliability(
        f"at the start: {name}", "every request, 3 s and more", ["a"], seconds=seconds, ended="started"
    )


def test_what_passes_is_not_waited_for_where_celery_is_told_not_to(make_site):
    site = make_site({"broker_connection_retry_on_startup": False})
    site.proxy.inject(error("InternalFailure", 500))
    sentence = refusal(site.start(pool="solo", ready=False))
    assert "With broker_connection_retry_on_startup it would be waited for." in sentence


def test_a_worker_that_waits_can_be_told_to_stop(make_site):
    site = make_site()
    site.proxy.inject(error("InternalFailure", 500))
    worker = site.start(pool="solo", ready=False).wait_for_log("cannot find the queue: ")
    worker.terminate()
    assert worker.wait_exit(10) == 0


@pytest.mark.parametrize(
    ("fault", "action", "bound"),
    [
        (INVALID, "GetQueueUrl", 5),
        (DENIED, "SendMessage", 5),
        (error("InternalFailure", 500), "SendMessage", 20),
        (black_hole(), "GetQueueUrl", 30),
        (black_hole(), "SendMessage", 45),
    ],
    ids=["invalid credentials", "denied", "500", "black hole", "black hole for sends"],
)
def test_a_producer_hears_of_it_in_bounded_time(make_site, fault, action, bound):
    site = make_site()
    began = time.monotonic()
    with site.proxy.inject(fault, action), pytest.raises(OperationalError, match=action):
        site.send("quick", "a")
    assert time.monotonic() - began < bound

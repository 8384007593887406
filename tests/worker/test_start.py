"""A worker's start: it waits for what passes, and ends with one clear sentence where waiting cannot help."""

import contextlib
import signal
import time
from urllib.parse import urlsplit

import pytest
from kombu.exceptions import OperationalError
from support.faults import Answer, black_hole, error, reset_connection

UNSIGNED = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
# Nothing leaves this machine: a proxy is asked for a region's own endpoint, and there is none.
ELSEWHERE = {"AWS_ENDPOINT_URL_SQS": "", "HTTPS_PROXY": "http://127.0.0.1:1"}
INVALID = error("InvalidClientTokenId", 403, "The security token included in the request is invalid.")
DENIED = error("AccessDeniedException", 403, "User is not authorized to perform this action")


def assert_refused(site, *said, env=None):
    """A worker ends with one sentence, which says this."""
    worker = site.start(pool="solo", ready=False, env=env)
    assert worker.wait_exit() == 1
    (sentence,) = [line for line in worker.log.splitlines() if "CRITICAL" in line]
    for part in ("cannot start, since ", *said):
        assert part in sentence
    assert "Traceback" not in worker.log
    assert worker.log.count("Connected to") == 0


def test_a_worker_says_where_it_is_connected_without_a_request_more(make_site, queue):
    name = queue[-20:]
    site = make_site({"task_default_queue": f"{name}.a"})
    site.queue = f"{name}-a"
    site.create_queue_with_dead_letters(5)
    worker = site.start()
    host = urlsplit(site.proxy.url).netloc
    (line,) = [line for line in worker.log.splitlines() if "INFO/MainProcess] queue " in line]
    assert line.endswith(
        f"queue '{name}-a' (Celery's '{name}.a') found at http://{host}/123456789012/{name}-a "
        f"(region us-east-1, account 123456789012): dead letters go to '{name}-a-dead' after 5 receives; "
        "visibility timeout 30 s"
    )
    assert f"transport:   sqs://{host}\n" in worker.log
    assert f"Connected to sqs://{host}\n" in worker.log
    assert "localhost" not in worker.log
    assert ":**@" not in worker.log
    actions = [call.action for call in site.proxy.calls() if call.action != "ReceiveMessage"]
    assert actions == ["GetQueueUrl", "GetQueueAttributes"]


def test_a_region_that_nobody_configured_is_warned_of(make_site):
    # Nothing leaves this machine: a proxy is asked for Amazon's endpoint, and there is none.
    env = {"AWS_ENDPOINT_URL_SQS": "", "AWS_DEFAULT_REGION": "", "HTTPS_PROXY": "http://127.0.0.1:1"}
    worker = make_site(region=None).start(pool="solo", ready=False, env=env)
    worker.wait_for_log("cannot find the queue: ")
    assert worker.log.count("no AWS region is configured: queues are looked for in us-east-1") == 1
    assert "transport:   sqs://us-east-1\n" in worker.log


@pytest.mark.parametrize(
    ("fault", "env", "region", "said"),
    [
        (None, UNSIGNED, "us-east-1", ["no AWS credentials were found; set AWS_ACCESS_KEY_ID"]),
        (
            INVALID,
            {},
            "us-east-1",
            ["InvalidClientTokenId", "check the AWS credentials in the environment, the profile, the role"],
        ),
        (None, ELSEWHERE, "nowhere-1", ["botocore knows no region 'nowhere-1'"]),
        (None, ELSEWHERE, "not a region", ["'not a region' doesn't match"]),
        (None, {"AWS_ENDPOINT_URL_SQS": "not a url"}, "us-east-1", ["Invalid endpoint: not a url"]),
    ],
    ids=["no credentials", "invalid credentials", "an unknown region", "no region", "a malformed endpoint"],
)
def test_a_worker_whom_sqs_cannot_know_or_who_cannot_find_it_ends(make_site, fault, env, region, said):
    site = make_site()
    site.config["broker_transport_options"]["region"] = region
    with site.proxy.inject(fault) if fault else contextlib.nullcontext():
        assert_refused(site, *said, env=env)


def test_a_queue_that_is_missing_and_may_not_be_created(make_site):
    site = make_site()
    site.proxy.inject(DENIED, "CreateQueue")
    told = "create the queue or allow sqs:CreateQueue"
    assert_refused(site, f"SQS has no queue '{site.queue}'", told)
    site.create_queue()
    dead = site.config["broker_transport_options"]["dead_letter_queue"] = f"{site.queue}-dead"
    assert_refused(site, "the transport option dead_letter_queue", f"SQS has no queue '{dead}'", told)


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
    assert worker.log.count("; trying again") == 1
    assert worker.log.count("can find the queue again") == 1
    assert "Traceback" not in worker.log
    reliability(
        f"at the start: {name}", "every request, 3 s and more", ["a"], seconds=seconds, ended="started"
    )


TERM, INT, QUIT = signal.SIGTERM, signal.SIGINT, signal.SIGQUIT


@pytest.mark.parametrize(("number", "status"), [(TERM, 0), (INT, 0), (QUIT, 1)])
def test_a_worker_that_waits_can_be_told_to_stop(make_site, number, status):
    site = make_site()
    site.proxy.inject(error("InternalFailure", 500))
    worker = site.start(pool="solo", ready=False).wait_for_log("cannot find the queue: ")
    worker.signal_main(number)
    assert worker.wait_exit() == status
    assert "Traceback" not in worker.log


@pytest.mark.parametrize(
    ("fault", "action"),
    [
        (INVALID, "GetQueueUrl"),
        (DENIED, "SendMessage"),
        (error("InternalFailure", 500), "SendMessage"),
        (black_hole(), "GetQueueUrl"),
        (black_hole(), "SendMessage"),
    ],
    ids=["invalid credentials", "denied", "500", "black hole", "black hole for sends"],
)
def test_a_producer_hears_of_it_in_bounded_time(make_site, fault, action):
    site = make_site()
    with site.proxy.inject(fault, action), pytest.raises(OperationalError, match=action):
        site.send("quick", "a")


PAGE = Answer(200, b"<html>Welcome</html>", {"Content-Type": "text/html"})
REDIRECT = Answer(307, b"", {"Location": "http://127.0.0.1:1/login"})
NOWHERE = Answer(307, b"")


@pytest.mark.parametrize(
    ("action", "answer", "said"),
    [
        (
            "GetQueueUrl",
            PAGE,
            "its answer has no 'QueueUrl': is the endpoint right, or does a proxy answer with a page?",
        ),
        ("ReceiveMessage", REDIRECT, "http://127.0.0.1:1/login"),
        ("ReceiveMessage", NOWHERE, "ReceiveMessage was answered 307"),
    ],
    ids=["page", "elsewhere", "nowhere"],
)
def test_an_endpoint_that_is_no_sqs_is_called_so(make_site, action, answer, said):
    site = make_site(wait_time_seconds=1)
    site.create_queue()
    with site.proxy.inject(lambda *_: answer, action):
        worker = site.start(pool="threads", ready=False)
        worker.wait_for_log(said)
    worker.wait_ready()
    site.begin("after")
    assert "KeyError" not in worker.log

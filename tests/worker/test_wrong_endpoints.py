"""No SQS answers at the endpoint: the log says what it answers, and the worker goes on when SQS does."""

from __future__ import annotations

import pytest
from support.faults import Answer

PAGE = Answer(200, b"<html>Welcome</html>", {"Content-Type": "text/html"})
ELSEWHERE = Answer(307, b"", {"Location": "http://127.0.0.1:1/login"})
NOWHERE = Answer(307, b"")


@pytest.mark.parametrize(
    ("action", "answer", "said"),
    [
        (
            "GetQueueUrl",
            PAGE,
            "its answer has no 'QueueUrl': is the endpoint right, or does a proxy answer with a page?",
        ),
        ("ReceiveMessage", ELSEWHERE, "http://127.0.0.1:1/login"),
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

"""How far this machine's clock is from that of an endpoint."""

from __future__ import annotations

import threading
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from celery_sqs_visibility.aws.clock_offset import clock_offset
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK


class Endpoint(BaseHTTPRequestHandler):
    """Refuses as SQS does, with the date that the test says."""

    def do_GET(self):
        status, date = self.server.said
        self.send_response_only(status)
        if date is not None:
            self.send_header("Date", date)
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture
def offset_of():
    """The offset that is read of an answer with this status and Date header."""
    with HTTPServer(("127.0.0.1", 0), Endpoint) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()

        def offset_of(status, date):
            server.said = status, date
            return clock_offset(f"http://127.0.0.1:{server.server_port}")

        yield offset_of
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("status", [200, 403, 404])
@pytest.mark.parametrize("ahead", [-600, 0, 600])
def test_any_answer_has_a_date(offset_of, status, ahead):
    date = formatdate(SYSTEM_CLOCK.wall() - ahead, usegmt=True)
    assert offset_of(status, date) == pytest.approx(ahead, abs=2)


@pytest.mark.parametrize("date", [None, "yesterday"])
def test_an_answer_without_one_tells_nothing(offset_of, date):
    assert offset_of(403, date) is None


@pytest.mark.parametrize("endpoint", ["memory://us-east-1", "http://127.0.0.1:1"])
def test_where_nothing_answers_nothing_is_known(endpoint):
    assert clock_offset(endpoint) is None

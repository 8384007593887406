"""The clock of an endpoint and the keys of KMS, asked about without changing anything."""

import json
import threading
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest

from celery_sqs_visibility.aws import diagnostics
from celery_sqs_visibility.aws.client_settings import ClientSettings
from celery_sqs_visibility.aws.diagnostics import clock_offset, may_generate_data_key

SETTINGS = ClientSettings(
    endpoint_url="http://sqs.test", access_key_id="made-up", secret_access_key="made-up"
)


@contextmanager
def serving(handler):
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


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
    with serving(Endpoint) as server:

        def offset_of(status, date):
            server.said = status, date
            return clock_offset(f"http://127.0.0.1:{server.server_port}")

        yield offset_of


@pytest.mark.parametrize("status", [200, 403, 404])
@pytest.mark.parametrize("ahead", [-600, 0, 600])
def test_any_answer_has_a_date(offset_of, system_clock, status, ahead):
    date = formatdate(system_clock.wall() - ahead, usegmt=True)
    assert offset_of(status, date) == pytest.approx(ahead, abs=0.5)


@pytest.mark.parametrize(
    ("called", "returned", "ahead"),
    [
        (1000.2, 1000.9, 0),
        (1001.0, 1001.1, 0),
        (994.5, 1006.5, 0),
        (1001.5, 1002.5, 1.5),
        (994.0, 999.0, -4.0),
    ],
)
def test_clocks_differ_only_if_that_is_not_the_time_that_the_answer_took(
    offset_of, monkeypatch, called, returned, ahead
):
    instants = iter([called, returned])
    monkeypatch.setattr(diagnostics, "SYSTEM_CLOCK", SimpleNamespace(wall=lambda: next(instants)))
    assert offset_of(403, formatdate(1000, usegmt=True)) == ahead


@pytest.mark.parametrize("date", [None, "yesterday"])
def test_an_answer_without_one_tells_nothing(offset_of, date):
    assert offset_of(403, date) is None


@pytest.mark.parametrize("endpoint", ["memory://us-east-1", "http://127.0.0.1:1"])
def test_where_nothing_answers_nothing_is_known(endpoint):
    assert clock_offset(endpoint) is None


class KMS(BaseHTTPRequestHandler):
    """Answers with the error of the test, as AWS's JSON protocol has it."""

    def do_POST(self):
        self.server.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        body = json.dumps({"__type": self.server.code, "message": "says the test"}).encode()
        self.send_response(400)
        self.send_header("Content-Type", "application/x-amz-json-1.1")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def kms(monkeypatch):
    with serving(KMS) as server:
        server.asked = []
        monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", f"http://127.0.0.1:{server.server_port}")
        yield server


@pytest.mark.parametrize(
    ("code", "allowed"),
    [
        ("DryRunOperationException", True),
        ("AccessDeniedException", False),
        ("DisabledException", False),
        ("ThrottlingException", None),
    ],
)
def test_the_answer_to_a_dry_run_tells(kms, code, allowed):
    kms.code = code
    assert may_generate_data_key(SETTINGS, "alias/mine", "eu-west-1") is allowed
    assert kms.asked == [{"KeyId": "alias/mine", "KeySpec": "AES_256", "DryRun": True}]


def test_silence_tells_nothing(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", "http://127.0.0.1:1")
    assert may_generate_data_key(SETTINGS, "alias/mine", "eu-west-1") is None

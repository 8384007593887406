"""Whether a key of KMS may be used, by a dry run."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from celery_sqs_visibility.aws.client_settings import ClientSettings
from celery_sqs_visibility.aws.data_keys import may_generate_data_key

SETTINGS = ClientSettings(
    endpoint_url="http://sqs.test", access_key_id="made-up", secret_access_key="made-up"
)


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
    with HTTPServer(("127.0.0.1", 0), KMS) as server:
        server.asked = []
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", f"http://127.0.0.1:{server.server_port}")
        yield server
        server.shutdown()
        thread.join()


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

"""The fake SQS as a server, for real workers: `fake_server.py PORT '{"late_change": "HIDES"}'`.

Speaks SQS's JSON protocol, on 127.0.0.1. Queue URLs have the host that the caller used.
"""

from __future__ import annotations

import json
import sys
import uuid
from base64 import b64decode, b64encode
from hashlib import md5
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from celery_sqs_visibility.aws.fake import ENDPOINT, FakeSQS
from celery_sqs_visibility.aws.fake_queue import LateChange
from celery_sqs_visibility.aws.port import BatchResult, OutgoingMessage, ReceiveOptions
from celery_sqs_visibility.errors import QueueDoesNotExistError, RequestRefusedError, SQSError

LATE_CHANGES = ("late_change", "late_fifo_change")


class Service:
    """API actions by their names, on a fake. URLs are the fake's."""

    def __init__(self, sqs: FakeSQS) -> None:
        self._sqs = sqs

    def answer(self, action: str, asked: dict[str, Any]) -> dict[str, Any]:
        method = getattr(self, action, None)
        if method is None:
            raise RequestRefusedError(f"the fake has no {action}", code="UnsupportedOperation", action=action)
        self._sqs.calls.clear()  # nobody looks at them, and they have every message
        return method(asked) or {}

    def CreateQueue(self, asked):  # noqa: N802 - as SQS has it, and so below
        return {
            "QueueUrl": self._sqs.create_queue(
                asked["QueueName"], asked.get("Attributes", {}), asked.get("tags", {})
            )
        }

    def GetQueueUrl(self, asked):  # noqa: N802
        return {"QueueUrl": self._sqs.queue_url(asked["QueueName"], asked.get("QueueOwnerAWSAccountId"))}

    def ListQueues(self, asked):  # noqa: N802
        return {"QueueUrls": self._sqs.list_queues(asked.get("QueueNamePrefix", ""))}

    def DeleteQueue(self, asked):  # noqa: N802
        self._sqs.delete_queue(asked["QueueUrl"])

    def PurgeQueue(self, asked):  # noqa: N802
        self._sqs.purge(asked["QueueUrl"])

    def GetQueueAttributes(self, asked):  # noqa: N802
        return {"Attributes": self._sqs.queue_attributes(asked["QueueUrl"], asked.get("AttributeNames", []))}

    def SetQueueAttributes(self, asked):  # noqa: N802
        self._sqs.set_queue_attributes(asked["QueueUrl"], asked["Attributes"])

    def ListQueueTags(self, asked):  # noqa: N802
        return {"Tags": self._sqs.queue_tags(asked["QueueUrl"])}

    def TagQueue(self, asked):  # noqa: N802
        self._sqs.tag_queue(asked["QueueUrl"], asked["Tags"])

    def StartMessageMoveTask(self, asked):  # noqa: N802
        self._sqs.start_move_task(asked["SourceArn"], asked["DestinationArn"])
        return {"TaskHandle": uuid.uuid4().hex}

    def SendMessage(self, asked):  # noqa: N802
        return {"MessageId": self._sqs.send(asked["QueueUrl"], _outgoing(asked)), **_digest(asked)}

    def SendMessageBatch(self, asked):  # noqa: N802
        entries = asked["Entries"]
        result = self._sqs.send_batch(asked["QueueUrl"], [_outgoing(entry) for entry in entries])
        return _parts(
            entries, result, lambda at: {"MessageId": result.message_id(at), **_digest(entries[at])}
        )

    def ReceiveMessage(self, asked):  # noqa: N802
        names = asked.get("MessageSystemAttributeNames") or asked.get("AttributeNames") or ()
        options = ReceiveOptions(
            asked.get("VisibilityTimeout"),
            tuple(names),
            tuple(asked.get("MessageAttributeNames", ())),
            asked.get("ReceiveRequestAttemptId"),
        )
        limit, wait = asked.get("MaxNumberOfMessages", 1), asked.get("WaitTimeSeconds", 0)
        return {"Messages": self._sqs.receive(asked["QueueUrl"], limit, wait, options)}

    def DeleteMessage(self, asked):  # noqa: N802
        _raise_its(self._sqs.delete(asked["QueueUrl"], [asked["ReceiptHandle"]]))

    def DeleteMessageBatch(self, asked):  # noqa: N802
        entries = asked["Entries"]
        return _parts(
            entries, self._sqs.delete(asked["QueueUrl"], [entry["ReceiptHandle"] for entry in entries])
        )

    def ChangeMessageVisibility(self, asked):  # noqa: N802
        change = asked["ReceiptHandle"], asked["VisibilityTimeout"]
        _raise_its(self._sqs.change_visibility(asked["QueueUrl"], [change]))

    def ChangeMessageVisibilityBatch(self, asked):  # noqa: N802
        entries = asked["Entries"]
        changes = [(entry["ReceiptHandle"], entry["VisibilityTimeout"]) for entry in entries]
        return _parts(entries, self._sqs.change_visibility(asked["QueueUrl"], changes))


def _raise_its(result: BatchResult) -> None:
    for error in result.failed.values():
        raise error


def _parts(entries, result, of_entry=lambda _at: {}) -> dict[str, Any]:
    failed = [
        {"Id": entries[at]["Id"], "Code": error.code, "Message": str(error), "SenderFault": True}
        for at, error in sorted(result.failed.items())
    ]
    successful = [
        {"Id": entry["Id"], **of_entry(at)} for at, entry in enumerate(entries) if at not in result.failed
    ]
    return {"Successful": successful, "Failed": failed}


def _digest(entry: dict[str, Any]) -> dict[str, str]:
    return {"MD5OfMessageBody": md5(entry["MessageBody"].encode()).hexdigest()}


def _outgoing(entry: dict[str, Any]) -> OutgoingMessage:
    return OutgoingMessage(
        entry["MessageBody"],
        {name: _with_bytes(value, b64decode) for name, value in entry.get("MessageAttributes", {}).items()},
        entry.get("DelaySeconds"),
        entry.get("MessageGroupId"),
        entry.get("MessageDeduplicationId"),
    )


def _with_bytes(value: dict[str, Any], convert) -> dict[str, Any]:
    """A message attribute whose bytes are text on the wire."""
    return {**value, "BinaryValue": convert(value["BinaryValue"])} if "BinaryValue" in value else value


def _as_text(value: object) -> str:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    raise TypeError(f"expected bytes, got {value!r}")


class Handler(BaseHTTPRequestHandler):
    """One connection; its thread waits while a long poll does."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # an answer is one write
    service: Service

    def do_POST(self) -> None:
        here = f"http://{self.headers['Host']}"
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        asked = json.loads(body or "{}")
        if "QueueUrl" in asked:
            asked["QueueUrl"] = f"{ENDPOINT}/{asked['QueueUrl'].split('/', 3)[-1]}"
        action = self.headers.get("X-Amz-Target", "").rpartition(".")[2]
        try:
            status, answer, headers = HTTPStatus.OK, self.service.answer(action, asked), {}
        except SQSError as error:
            status, (answer, headers) = HTTPStatus.BAD_REQUEST, _refusal(error)
        if "QueueUrl" in answer:
            answer["QueueUrl"] = answer["QueueUrl"].replace(ENDPOINT, here)
        if "QueueUrls" in answer:
            answer["QueueUrls"] = [url.replace(ENDPOINT, here) for url in answer["QueueUrls"]]
        self._send(status, json.dumps(answer, default=_as_text).encode(), headers)

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        all_headers = {"Content-Type": "application/x-amz-json-1.0", "Content-Length": str(len(body))}
        for name, value in {**all_headers, "x-amzn-RequestId": str(uuid.uuid4()), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing: the proxy before it has every call."""


def _refusal(error: SQSError) -> tuple[dict[str, str], dict[str, str]]:
    code = error.code or "InternalFailure"
    shape = "QueueDoesNotExist" if isinstance(error, QueueDoesNotExistError) else code
    return (
        {"__type": f"com.amazonaws.sqs#{shape}", "message": str(error)},
        {
            "x-amzn-query-error": f"AWS.SimpleQueueService.{code};Sender"
            if shape != code
            else f"{code};Sender"
        },
    )


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def main(port: str, switches: str) -> None:
    given = json.loads(switches)
    given |= {name: LateChange[given[name]] for name in LATE_CHANGES if name in given}
    Handler.service = Service(FakeSQS(**given))
    with Server(("127.0.0.1", int(port)), Handler) as server:
        server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])

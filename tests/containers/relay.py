"""The endpoint of SQS: passes requests on to the emulator, and can be killed without its messages.

As SQS, and unlike the emulator, it refuses requests that were signed by a clock that is wrong by a quarter of
an hour.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
from datetime import UTC, datetime, timedelta

CHUNK_BYTES = 65536
MOST_SKEW = timedelta(minutes=15)

HEAD_END = b"\r\n\r\n"
LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
SIGNED = re.compile(rb"\r\nx-amz-date:\s*(\w+)", re.IGNORECASE)
SIGNED_FORMAT = "%Y%m%dT%H%M%SZ"


def refusal(head: bytes) -> bytes | None:
    """The answer to a request with a wrong date; `None` to others."""
    if (signed := SIGNED.search(head)) is None:
        return None
    date = datetime.strptime(signed[1].decode(), SIGNED_FORMAT).replace(tzinfo=UTC)
    now = datetime.now(UTC)
    if abs(date - now) <= MOST_SKEW:
        return None
    what = "Signature not yet current" if date > now else "Signature expired"
    text = f"{what}: {date:{SIGNED_FORMAT}}, and it is {now:{SIGNED_FORMAT}}"
    body = json.dumps({"__type": "com.amazonaws.sqs#InvalidSignatureException", "message": text}).encode()
    lines = [
        "HTTP/1.1 403 Forbidden",
        "Content-Type: application/x-amz-json-1.0",
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join(lines).encode() + HEAD_END + body


async def pass_on(
    reader: asyncio.StreamReader, upstream: asyncio.StreamWriter, client: asyncio.StreamWriter
) -> None:
    """Pass on requests until the last, but those that are refused."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        while True:
            head = await reader.readuntil(HEAD_END)
            length = LENGTH.search(head)
            body = await reader.readexactly(int(length[1]) if length else 0)
            refused = refusal(head)
            to = upstream if refused is None else client
            to.write(head + body if refused is None else refused)
            await to.drain()
    upstream.close()


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on what comes, until its end."""
    with contextlib.suppress(OSError):
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
    writer.close()


async def main(host: str, port: int) -> None:
    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream = await asyncio.open_connection(host, port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(pass_on(reader, upstream[1], writer), copy(upstream[0], writer))

    server = await asyncio.start_server(relay, "0.0.0.0", port)
    print(f"Passing on to {host}:{port}")  # noqa: T201 - a container's log
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))

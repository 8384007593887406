"""The endpoint of SQS: passes bytes on to the emulator, and can be killed without its messages."""

from __future__ import annotations

import asyncio
import contextlib
import sys

CHUNK_BYTES = 65536


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
        await asyncio.gather(copy(reader, upstream[1]), copy(upstream[0], writer))

    server = await asyncio.start_server(relay, "0.0.0.0", port)
    print(f"Passing on to {host}:{port}")  # noqa: T201 - a container's log
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))

"""The probe: asks the workers of this host how they are, within a time. Celery is not imported.

`celery-sqs-health` is this, and `celery -A proj sqs health` calls it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Final

from celery_sqs_visibility.operate.health.sockets import directory, sockets
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.policy.printable import printable

SECONDS: Final = 1.0

#: As of the other commands; 69 is EX_UNAVAILABLE of sysexits.h.
WELL, UNWELL, NOBODY = 0, 1, 69

REQUEST: Final = "GET {path} HTTP/1.0\r\n\r\n"


def ask(node: str | None, path: str, timeout: float) -> Iterator[dict[str, Any]]:
    """What each worker answers: `node`, `ok`, `reason` and more. All have the same time, together.

    Args:
        node: a node's name, which several workers may have; `None` asks all workers of this user.
        path: `/healthz` or `/readyz`.
        timeout: seconds, after which a worker counts as one that does not answer.
    """
    until = SYSTEM_CLOCK.monotonic() + timeout
    with ExitStack() as open_sockets:
        asked = []
        for name, address in sockets(node):
            connection = open_sockets.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            try:
                _limit(connection, until)
                connection.connect(address)
                connection.sendall(REQUEST.format(path=path).encode())
            except (ConnectionRefusedError, FileNotFoundError):
                continue  # it was killed, or has just ended
            except OSError:
                pass  # it has not accepted for so long that the kernel queues no more
            asked.append((name, connection))
        for name, connection in asked:
            yield _answer(name, connection, until, timeout)


def run(node: str | None, timeout: float, *, ready: bool, as_json: bool) -> int:
    """Print a line for each worker, and return the exit status."""
    answers = list(ask(node, "/readyz" if ready else "/healthz", timeout))
    if not answers:
        print(_nobody(node), file=sys.stderr)
        return NOBODY
    if as_json:
        print(json.dumps(answers, indent=2))
    else:
        for answer in answers:
            print(printable(f"{answer['node']}: {answer['reason']}"))
    return WELL if all(answer["ok"] for answer in _counting(answers)) else UNWELL


def _counting(answers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The answers without those of workers that shut down and have a successor of their name."""
    staying = {answer["node"] for answer in answers if not _ends(answer)}
    return [answer for answer in answers if not _ends(answer) or answer["node"] not in staying]


def _ends(answer: dict[str, Any]) -> bool:
    return answer.get("phase") == "stopping"


def parse(arguments: Sequence[str] | None = None) -> Namespace:
    """The options, which are those of `celery -A proj sqs health`."""
    parser = ArgumentParser(description="Ask the workers of this host how they are.")
    parser.add_argument("-n", "--node", help="the node to ask, as w1@host, w1@%%h or w1 (all workers)")
    parser.add_argument("--timeout", type=float, default=SECONDS, help="seconds (%(default)s)")
    parser.add_argument("--ready", action="store_true", help="whether it is ready, not whether it lives")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args(arguments)


def main() -> None:
    """The console script."""
    given = parse()
    sys.exit(run(given.node, given.timeout, ready=given.ready, as_json=given.json))


def _answer(name: str, connection: socket.socket, until: float, timeout: float) -> dict[str, Any]:
    received = b""
    try:
        _limit(connection, until)
        while part := connection.recv(65536):
            received += part
            _limit(connection, until)
        answer: dict[str, Any] = json.loads(received.partition(b"\r\n\r\n")[2])
    except OSError:
        return {"node": name, "ok": False, "reason": f"does not answer within {timeout:g} s"}
    except ValueError:
        return {"node": name, "ok": False, "reason": "cannot say how it is: see its log"}
    return answer


def _limit(connection: socket.socket, until: float) -> None:
    connection.settimeout(max(0.001, until - SYSTEM_CLOCK.monotonic()))


def _nobody(node: str | None) -> str:
    worker = "worker" if node is None else f"worker {node}"
    return f"no {worker} of user {os.getuid()} runs here (sockets in {directory()})"


if __name__ == "__main__":
    main()

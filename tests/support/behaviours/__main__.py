"""Replay all rows on every implementation that is here, write down what differs, and rewrite the page.

`python -m support.behaviours [NAME ...]`, in tests/. With `AWS_CONFORMANCE=1` AWS is asked, too, with the
credentials and the region of the environment, and its answers become those of the rows.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from support.behaviours import page, recorder
from support.behaviours.language import IMPLEMENTATIONS, read_rows
from support.behaviours.replay import replay_all, replay_all_on_fakes
from support.behaviours.servers import asks_aws, server
from support.known_deviations import ROWS
from support.sqs_servers import INSTALLED_BY, ROOT, is_installed

PAGE = ROOT / "docs/fidelity.md"


def main(names: list[str]) -> None:
    """Replay on the implementations of those names, or on all."""
    chosen = names or [*IMPLEMENTATIONS, *(["aws"] if asks_aws() else [])]
    for name in chosen:
        if not is_installed(name):
            _say(f"{name}: not installed; {INSTALLED_BY} does")
            continue
        rows = read_rows(ROWS)
        began = time.monotonic()
        came = _answers(name, rows)
        _say(f"{name}: {len(rows)} rows in {time.monotonic() - began:.1f} s")
        for line in recorder.disagreements(name, rows, came):
            _say(f"  {line}")
        recorder.record(ROWS, name, came)
    page.write(PAGE, read_rows(ROWS))


def _say(line):
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _answers(name, rows):
    if name == "fake":
        return replay_all_on_fakes(rows)
    with tempfile.TemporaryDirectory() as directory, server(name, Path(directory)) as target:
        return replay_all(rows, target)


if __name__ == "__main__":
    main(sys.argv[1:])

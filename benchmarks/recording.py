"""Animated picture of `make demo`: its real output in a terminal, second by second, as an SVG.

Time in which nothing is printed is cut to `PAUSE`. The picture begins with the last frame, and repeats.

    python benchmarks/recording.py [--write docs/pictures/demo.svg]
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import threading
import time
from html import escape
from itertools import accumulate, groupby, pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COLUMNS, ROWS = 112, 21
#: Seconds between two frames, of the longest pause, and for which the last frame stays.
FRAME, PAUSE, LAST = 1.0, 2.0, 8.0
#: Seconds without output after which a frame is whole, and that the demo may take.
SETTLED, LONGEST = 0.03, 120

#: Pixels of a character and of a line.
WIDTH, HEIGHT = 8.4, 19
#: A colour of the terminal on a light and on a dark ground, both with a contrast of at least 4.5.
COLOURS = {
    31: ("#b3261e", "#ff8a80"),
    32: ("#1a6b2d", "#7ee08a"),
    33: ("#7a5200", "#f2c55c"),
    34: ("#0b57d0", "#8ab4f8"),
    35: ("#8430a5", "#d7a1f0"),
    36: ("#00656f", "#6fd6e0"),
}
GROUND, INK, DIM = ("#f6f8fa", "#161b22"), ("#1f2328", "#e6edf3"), ("#59636e", "#9aa4af")

TITLE = "make demo"
DESCRIPTION = (
    "Eleven tasks on a worker and an SQS of its own. A timeline for each task shows when its message is "
    "received, running, extended, failed, hidden until the next attempt, and done or dead. At the end a "
    "table lists runs, gaps and extensions of each task, and the requests to SQS with their price."
)

BOLD, DIMMED = 1, 2
CONTROL = re.compile(r"\x1b\[(\??[\d;]*)([A-Za-z])|\r|\n|[^\x1b\r\n]+|\x1b")
UNFINISHED = re.compile(r"\x1b(\[\??[\d;]*)?$")


class Screen:
    """As much of a terminal as Rich uses: it moves up and clears lines, and colours text."""

    def __init__(self, columns):
        self.columns = columns
        self.lines = [[]]
        self.row = self.column = 0
        self.style = ()

    def feed(self, text):
        for match in CONTROL.finditer(text):
            if match[2]:
                self._control(match[1], match[2])
            elif match[0] == "\r":
                self.column = 0
            elif match[0] == "\n":
                self._down()
            elif match[0] != "\x1b":
                self._write(match[0])

    def shown(self, rows):
        """The last rows, each as (column, text, style)."""
        last = max((number for number, line in enumerate(self.lines) if line), default=0)
        return [_spans(line) for line in self.lines[max(0, last + 1 - rows) : last + 1]]

    def _control(self, numbers, letter):
        count = int(numbers) if numbers.isdigit() else 1
        if letter == "A":
            self.row = max(0, self.row - count)
        elif letter == "K":
            self.lines[self.row] = []
        elif letter == "m":
            self._restyle([int(number or 0) for number in numbers.split(";")])

    def _restyle(self, codes):
        for code in codes:
            if code in {BOLD, DIMMED} or code in COLOURS:
                self.style = (*self.style, code)
            else:  # Rich ends a style by ending all
                self.style = ()

    def _down(self):
        self.row, self.column = self.row + 1, 0
        if self.row == len(self.lines):
            self.lines.append([])

    def _write(self, text):
        for character in text:
            if self.column == self.columns:
                self._down()
            line = self.lines[self.row]
            line.extend([(" ", ())] * (self.column + 1 - len(line)))
            line[self.column] = character, self.style
            self.column += 1


def _spans(line):
    """Runs of one style, without the spaces at their ends."""
    spans, column = [], 0
    for style, cells in groupby(line, key=lambda cell: cell[1]):
        text = "".join(character for character, _ in cells)
        if text.strip():
            spans.append((column + len(text) - len(text.lstrip()), text.strip(), style))
        column += len(text)
    return tuple(spans)


def record(command, directory):
    """Run it in a terminal: a frame a second, as (seconds, rows)."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = os.environ | {"TERM": "xterm", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(
        command, cwd=directory, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True
    )
    os.close(theirs)
    screen, frames, began, raw = Screen(COLUMNS), [], time.monotonic(), b""
    watchdog = threading.Timer(LONGEST, process.terminate)
    watchdog.start()
    try:
        while chunk := _read(ours):
            raw += chunk
            # A character or a control that is not whole yet waits for its rest.
            text = UNFINISHED.sub("", raw.decode(errors="ignore"))
            raw = raw[len(text.encode()) :]
            screen.feed(text)
            now = time.monotonic() - began
            if (not frames or now >= frames[-1][0] + FRAME) and _is_drawn(ours):
                frames.append((now, screen.shown(ROWS)))
        ended = process.wait()
    finally:
        watchdog.cancel()
        os.close(ours)
    if ended:
        raise SystemExit("\n".join(text for row in screen.shown(ROWS) for _, text, _ in row))
    frames.append((time.monotonic() - began, screen.shown(ROWS)))
    return frames


def _is_drawn(terminal):
    """Whether nothing more comes at once, so that the frame is whole."""
    return not select.select([terminal], [], [], SETTLED)[0]


def _read(terminal):
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux says so when the other side has closed
        return b""


def picture(frames):
    """The frames as an SVG: each row appears and disappears at its times."""
    waits = [min(PAUSE, later[0] - earlier[0]) for earlier, later in pairwise(frames)]
    starts = [0.0, *accumulate(waits)]
    total = starts[-1] + LAST
    ends = [*starts[1:], total]
    shown = [
        (number, row, start, end)
        for (_, rows), start, end in zip(frames, starts, ends, strict=True)
        for number, row in enumerate(rows)
        if row
    ]
    body, times = [], {}
    shown.sort(key=lambda each: (each[0], each[2]))
    for number, group in groupby(shown, key=lambda each: each[0]):
        for row, start, end in _lasting(list(group)):
            name = times.setdefault((start, end), f"t{len(times)}")
            body.append(f'<g class="t {name}{" last" if end == total else ""}">{_text(number, row)}</g>')
    height = HEIGHT * max(len(rows) for _, rows in frames) + 30
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {COLUMNS * WIDTH + 24:.0f} {height}" '
        'role="img" aria-labelledby="title what">'
        f'<title id="title">{TITLE}</title><desc id="what">{DESCRIPTION}</desc>\n'
        f"<style>{_style(times, total)}</style>\n"
        f'<rect width="100%" height="100%" rx="8"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _lasting(rows):
    """One row's contents, each for as long as it lasts: (row, start, end)."""
    lasting = []
    for _, row, start, end in rows:
        if lasting and lasting[-1][0] == row and lasting[-1][2] == start:
            lasting[-1] = row, lasting[-1][1], end
        else:
            lasting.append((row, start, end))
    return lasting


def _text(number, row):
    y = HEIGHT * (number + 1) + 8
    # A width for each, since fonts have their own for blocks and lines.
    return "".join(
        f'<text x="{12 + WIDTH * column:.0f}" y="{y}" textLength="{WIDTH * len(text):.0f}"{_class(style)}>'
        f"{escape(text, quote=False)}</text>"
        for column, text, style in row
    )


def _class(style):
    names = " ".join(f"s{code}" for code in dict.fromkeys(style))
    return f' class="{names}"' if names else ""


def _style(times, total):
    # It begins with the last frame: nobody is shown an empty terminal first.
    moving = f"{total:.1f}s step-end -{total - LAST:.1f}s infinite"
    rules = [
        "text{font:14px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;white-space:pre}",
        f".s1{{font-weight:bold}}.t{{visibility:hidden;animation:{moving}}}",
        _colours(0),
        f"@media(prefers-color-scheme:dark){{{_colours(1)}}}",
        "@media(prefers-reduced-motion:reduce){.t{animation:none!important}.last{visibility:visible}}",
    ]
    for (start, end), name in times.items():
        before = "0%{visibility:hidden}" if start else ""
        after = f"{end / total:.2%}{{visibility:hidden}}" if end < total else ""
        steps = f"{before}{start / total:.2%}{{visibility:visible}}{after}"
        rules.append(f".{name}{{animation-name:{name}}}@keyframes {name}{{{steps}}}")
    return "\n".join(rules)


def _colours(ground):
    inks = "".join(f".s{code}{{fill:{colours[ground]}}}" for code, colours in COLOURS.items())
    return f"rect{{fill:{GROUND[ground]}}}text{{fill:{INK[ground]}}}.s2{{fill:{DIM[ground]}}}{inks}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, default=ROOT / "docs/pictures/demo.svg")
    arguments = parser.parse_args()
    drawn = picture(record([sys.executable, "-m", "demo"], ROOT / "examples"))
    arguments.write.parent.mkdir(exist_ok=True)
    arguments.write.write_text(drawn)
    print(f"{arguments.write}: {len(drawn.encode()):,} bytes")


if __name__ == "__main__":
    main()

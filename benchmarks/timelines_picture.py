"""A timeline as SVG: for each message when it was hidden, and below it its runs. For light and dark pages."""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path

PICTURES = Path(__file__).resolve().parents[1] / "docs/pictures"
RECORD = PICTURES / "visibility.json"

WIDTH, LEFT, RIGHT = 720, 84, 20
HEAD, TITLE, SIGNAL, LABEL, BAND, RUN, GAP, AXIS = 14, 24, 18, 14, 14, 18, 12, 30
CHARACTER = 6.2
#: From this on, in seconds, the scale names every fifth one, in place of every second.
MANY = 25

TITLES = {
    "life": "A message's life",
    "error": "A run fails, without an error_visibility_timeout",
    "no-life": "A run shows no life, with an inactivity_timeout of 3 s",
    "long-task": "A task of 9 s, a visibility timeout of 6 s, two workers",
    "crash": "A worker is killed",
    "deploy": "A worker of two slots gets SIGTERM",
}
#: What a run's end is called.
ENDS = {
    "done": "succeeds",
    "failed": "fails",
    "SIGKILL": "is killed",
    "released": "is given back",
    "inactive": "is ended",
}
STYLE = """\
text{font:11px system-ui,sans-serif;fill:#1f2328}
.title{font-weight:600;font-size:14px}.name{font-weight:600;font-size:12px}
.asked{paint-order:stroke;stroke:#fff;stroke-width:3px}
.back{fill:#fff}.axis{stroke:#8a9099;fill:none}.hidden{fill:#b9cbe6}.mark{stroke:#1f2328}
.signal{stroke:#b3261e;stroke-dasharray:4 3}.told{fill:#b3261e}
.run1{fill:#1f5fa8}.run2{fill:#8a4b00}.run{fill:#fff}
@media(prefers-color-scheme:dark){text{fill:#e6e9ee}
.asked{stroke:#15181d}.back{fill:#15181d}.axis{stroke:#7d858f}.hidden{fill:#34507a}.mark{stroke:#e6e9ee}
.signal{stroke:#ff9d94}.told{fill:#ff9d94}
.run1{fill:#9cc4f5}.run2{fill:#f0b96b}.run{fill:#10131a}}"""


def text_of(record):
    """A record as JSON, with a line for each event."""
    text = json.dumps(record, indent=1)
    return (
        re.sub(r"\{\s+(\"at\"[^{}]*?)\s+\}", lambda found: f"{{{' '.join(found[1].split())}}}", text) + "\n"
    )


def pictures(record):
    """The pictures of a record: their names, and what is in them."""
    return {f"{name}.svg": picture(name, panels) for name, panels in record.items()}


def write_pictures(record):
    for name, text in pictures(record).items():
        (PICTURES / name).write_text(text)


def picture(name, panels):
    """A scene of one panel, or of several that share their scale."""
    end = max(event["at"] for events in panels.values() for event in events) * 1.04
    drawing = Drawing(end)
    drawing.text(10, HEAD + 6, TITLES[name], "title")
    drawing.y = HEAD + 14
    for title, events in panels.items():
        drawing.panel(title, named(events))
    height = drawing.y + 6
    body = "\n".join(drawing.parts)
    told = " ".join(
        f"{title + ': ' if title else ''}{'; '.join(sentence(event) for event in named(events))}."
        for title, events in panels.items()
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img" aria-labelledby="title told">\n'
        f'<title id="title">{escape(TITLES[name])}</title>\n'
        f'<desc id="told">{escape(told)}</desc>\n<style>{STYLE}</style>\n'
        f'<rect class="back" width="100%" height="100%" rx="6"/>\n{body}\n</svg>\n'
    )


def named(events):
    """The events, a change of visibility named for its purpose."""
    failed = set()
    for event in events:
        what, message = event["what"], event.get("message")
        if what == "changed":
            what = "released" if event["seconds"] == 0 else "hidden" if message in failed else "extended"
        if what in ("failed", "inactive", "received"):
            (failed.discard if what == "received" else failed.add)(message)
        yield {**event, "what": what}


def sentence(event):
    """An event in words."""
    facts = [event.get("message"), event["what"], event.get("worker") and f"by {event['worker']}"]
    if event["what"] in ("SIGTERM", "SIGKILL"):
        facts = [event["worker"], "gets", event["what"]]
    seconds = f"for {event['seconds']} s" if event.get("seconds") else None
    return " ".join(filter(None, [f"at {event['at']:.1f} s", *facts, seconds]))


class Drawing:
    """The parts of a picture, from the top down to `y`."""

    def __init__(self, end):
        self.end = end
        self.parts, self.y = [], 0

    def x(self, at):
        return LEFT + (WIDTH - LEFT - RIGHT) * at / self.end

    def text(self, x, y, content, kind="", anchor="start"):
        attributes = f' class="{kind}"' if kind else ""
        attributes += "" if anchor == "start" else f' text-anchor="{anchor}"'
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}"{attributes}>{escape(content)}</text>')

    def bar(self, begin, end, y, height, kind):
        width = max(1, self.x(end) - self.x(begin))
        at = f'x="{self.x(begin):.1f}" y="{y}" width="{width:.1f}" height="{height}"'
        self.parts.append(f'<rect class="{kind}" {at} rx="2"/>')

    def line(self, at, top, bottom, kind):
        self.parts.append(f'<path class="{kind}" d="M{self.x(at):.1f} {top}V{bottom}"/>')

    def panel(self, title, events):
        events = list(events)
        if title:
            self.y += TITLE
            self.text(10, self.y - 4, title, "name")
        begin = len(self.parts)
        signals = [event for event in events if event["what"] in ("SIGTERM", "SIGKILL")]
        self.y += SIGNAL if signals else 0
        top = self.y
        for message in dict.fromkeys(event["message"] for event in events if "message" in event):
            self.message(message, [e for e in events if e.get("message", message) == message])
        for signal in signals:
            self.line(signal["at"], top, self.y, "signal")
            self.text(
                self.x(signal["at"]), top - 4, f"{signal['what']} to {signal['worker']}", "told", "middle"
            )
        # Names go over a signal's line.
        self.parts[begin:] = sorted(self.parts[begin:], key=lambda part: 'class="asked"' in part)
        self.axis()

    def message(self, name, events):
        """When a message was hidden, what was asked for it, and its runs."""
        self.y += GAP
        self.labels(events)
        self.text(LEFT - 8, self.y + BAND - 3, name, "name", "end")
        for begin, end in hidden(events):
            self.bar(begin, end, self.y, BAND, "hidden")
        for event in asked(events):
            self.line(event["at"], self.y - 3, self.y + BAND, "mark")
        self.y += BAND + 4
        workers = sorted({event["worker"] for event in events if event["what"] == "started"})
        for worker in workers:
            self.text(LEFT - 8, self.y + RUN - 5, worker, "", "end")
            for begin, end, told in runs(events, worker):
                self.bar(begin, end, self.y, RUN, f"run{worker[-1]}")
                fits = self.x(end) - self.x(begin) > CHARACTER * len(told)
                self.text(self.x(begin if fits else end) + 5, self.y + RUN - 5, told, "run" if fits else "")
            self.y += RUN + 4

    def labels(self, events):
        """The names of what was asked for a message, one above the other where they are close together."""
        ends, placed = [], []
        for event in asked(events):
            x, width = self.x(event["at"]) - 1, CHARACTER * len(event["what"])
            x = min(x, WIDTH - 4 - width)
            row = next((row for row, end in enumerate(ends) if x > end), len(ends))
            ends[row : row + 1] = [x + width]
            placed.append((x, row, event["what"]))
        self.y += LABEL * len(ends)
        for x, row, what in placed:
            self.text(x, self.y - 6 - LABEL * row, what, "asked")

    def axis(self):
        self.y += 6
        self.parts.append(f'<path class="axis" d="M{LEFT} {self.y}H{WIDTH - RIGHT}"/>')
        step = 2 if self.end < MANY else 5
        for second in range(0, int(self.end) + 1, step):
            self.line(second, self.y, self.y + 4, "axis")
            self.text(self.x(second), self.y + 16, f"{second} s", "", "middle")
        self.y += AXIS


def asked(events):
    """The requests for a message."""
    return [
        each
        for each in events
        if each["what"] in ("sent", "received", "extended", "hidden", "released", "deleted")
    ]


def hidden(events):
    """From when to when a message was hidden: until the last request for it says, or its deletion."""
    spans, begin, until = [], None, 0
    for event in events:
        if begin is not None and event["what"] != "received" and event["at"] > until:
            spans.append((begin, until))
            begin = None
        if event["what"] in ("received", "extended", "hidden"):
            if event["what"] == "received":
                spans += [] if begin is None else [(begin, min(until, event["at"]))]
                begin = event["at"]
            until = event["at"] + event["seconds"]
        elif event["what"] in ("released", "deleted") and begin is not None:
            spans.append((begin, event["at"]))
            begin = None
    return spans


def runs(events, worker):
    """A worker's runs of a message: begin, end, and how it ended."""
    begin = None
    for event in events:
        if event.get("worker") != worker:
            continue
        if event["what"] == "started":
            begin = event["at"]
        elif event["what"] in ENDS and begin is not None:
            yield begin, event["at"], f"runs, {ENDS[event['what']]}"
            begin = None

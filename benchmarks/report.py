"""The page docs/benchmarks.md: the run, and for each measurement a table; two have a plot."""

from __future__ import annotations

import datetime as dt
import os
import platform
import subprocess
from importlib.metadata import version

from paths import ROOT
from plots import bars
from results import by_measurement, table

BEGIN, END = "<!-- make {}: {} -->", "<!-- end of {} -->"
PACKAGES = ("celery", "kombu", "boto3", "botocore", "redis", "pycurl")
PLOTS = {  # file: measurement, figure, title
    "consume-rate": ("consume", "tasks/s", "Tasks consumed a second"),
    "publish-rate": ("publish", "tasks/s", "Tasks published a second"),
}
#: Cases that only the JSON has.
LEFT_OUT = "50 ms"
#: The figures that the page shows, where these are not all.
SHOWN = {
    "consume": ("tasks/s", "requests/task", "main CPU ms/task"),
    "publish": ("tasks/s", "CPU ms/task", "requests/task"),
    "heartbeat": ("entries/batch", "requests/s", "main CPU percent of a core", "expired"),
}


def named_run(arguments, servers):
    """When, where and with what, of which a figure is worth nothing without."""
    git = ["git", "-C", str(ROOT)]
    commit = subprocess.run(
        [*git, "describe", "--always", "--dirty"], check=False, capture_output=True, text=True
    )
    return {
        "date": dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit.stdout.strip() or "unknown",
        "cores": os.cpu_count(),
        "load": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        "emulator": servers.sqs.name,
        "versions": {name: version(name) for name in PACKAGES},
        "arguments": {k: v for k, v in vars(arguments).items() if k not in {"json", "write", "again"}},
    }


def sentence(run):
    """The run in words."""
    versions = ", ".join(f"{name} {number}" for name, number in run["versions"].items())
    asked = run["arguments"]
    return (
        f"Run of {run['date']}, commit `{run['commit']}`: {run['cores']} cores for worker, proxy and "
        f"emulator ({run['emulator']}) together, Python {run['python']}, {versions}; "
        f"{asked['tasks']:,} tasks, "
        f"medians of {asked['repeats']} repeats. The load before it was {run['load'][0]}."
    )


def write(path, run, results):
    """Put what was measured between its markers, and plots into the folder of the page's name."""
    folder = path.with_suffix("")
    folder.mkdir(exist_ok=True)
    page = replaced(path.read_text(), "run", sentence(run))
    shown = [result for result in results if not result.case.startswith(LEFT_OUT)]
    for name, rows in by_measurement(shown).items():
        parts = [table(rows, SHOWN.get(name, ()))]
        for file, (measurement, figure, title) in PLOTS.items():
            if measurement == name:
                (folder / f"{file}.svg").write_text(bars(rows, figure, title))
                parts.append(f"![{title}]({folder.name}/{file}.svg)")
        page = replaced(page, name, "\n\n".join(parts))
    path.write_text(page)


def replaced(page, name, body, made_by="bench"):
    """The page with that between the markers of that name and target of make."""
    begin, end = BEGIN.format(made_by, name), END.format(name)
    before, found, rest = page.partition(begin)
    if not found:
        raise ValueError(f"the page has no {begin}")
    return f"{before}{begin}\n\n{body}\n\n{end}{rest.partition(end)[2]}"

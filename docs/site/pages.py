"""Lays out the pages of the repository for Sphinx: the README first, and every link made one of the site.

The pages keep their addresses: docs/options.md is options.html. Those beside the README are in project/. A
link to a file that is no page leads to the repository.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SOURCE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]

#: The pages of each part, in the order of the navigation. A page that is named nowhere comes after UNNAMED's.
NAVIGATION = {
    "Start": [
        "quickstart",
        "pages",
        "before-production",
        "testing",
        "django",
        "airflow",
        "permissions",
    ],
    "Move": [
        "coming-from-kombu",
        "mixed-fleets",
        "coming-from-redis-and-rabbitmq",
    ],
    "How-to: tasks and queues": [
        "retries",
        "long-tasks",
        "exclusive-tasks",
        "delays",
        "beat",
        "aws-events",
        "fanout",
        "publishing-many",
        "large-messages",
        "several-queues",
        "dead-letters",
    ],
    "How-to: run": [
        "compatibility",
        "lambda",
        "deploys",
        "doctor",
        "command-line",
        "remote-control",
        "health",
        "metrics",
        "logs-and-events",
        "troubleshooting",
        "scaling",
        "costs",
        "security",
    ],
    "Explanation": ["visibility", "ends", "reliability", "fidelity", "growth", "benchmarks"],
    "Reference": [
        "options",
        "reference-tasks",
        "reference-exceptions",
        "reference-events",
        "reference-commands",
        "kombu-features",
    ],
    "Contributing": ["project/contributing", "architecture", "contributing/*", "project/*"],
}
UNNAMED = "How-to: tasks and queues"

#: A link's target, in Markdown and in HTML, without its fragment.
TARGET = re.compile(r'(\]\(|\b(?:src|href)=")(?![a-z]+:)([^)#"\s]+)')
FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
FLOWCHART = re.compile(r"^```mermaid\nflowchart TD\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FLOOR = re.compile(r'^ *f\d+\["(.*)"\]$', re.MULTILINE)
ESCAPED = {"#quot;": "&quot;", "#lt;": "&lt;"}


def pages():
    """The pages of the repository, each with its place in the site."""
    beside = sorted(page for page in ROOT.glob("*.md") if page.name != "README.md")
    return {
        ROOT / "README.md": Path("index.md"),
        **{page: Path("project", page.name.lower()) for page in beside},
        **{page: page.relative_to(DOCS) for page in sorted(DOCS.rglob("*.md"))},
    }


def main(destination):
    shutil.rmtree(destination, ignore_errors=True)
    places = pages()
    for page, place in places.items():
        laid = destination / place
        laid.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(part_for_site(part, page, places) for part in FENCED.split(page.read_text()))
        laid.write_text(text + (navigation(places) if place.name == "index.md" else ""))
    for picture in DOCS.rglob("*"):
        if picture.suffix in {".svg", ".png", ".gif"}:
            laid = destination / picture.relative_to(DOCS)
            laid.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(picture, laid)


def part_for_site(text, page, places):
    """A page's text, or one of its blocks of code."""
    if text.startswith("```"):
        return FLOWCHART.sub(floors, text)

    def target(match):
        return match[1] + address(match[2], page, places)

    return TARGET.sub(target, text)


def address(target, page, places):
    """The target of a link, as the site has it."""
    path = Path(os.path.normpath(page.parent / target))
    if not path.exists():
        sys.exit(f"{page.relative_to(ROOT)} links to {target}, which does not exist")
    here = places[page].parent
    if path in places:
        return os.path.relpath(places[path], here)
    if path.suffix in {".svg", ".png", ".gif"} and path.is_relative_to(DOCS):
        return os.path.relpath(path.relative_to(DOCS), here)
    return f"{SOURCE}/{'tree' if path.is_dir() else 'blob'}/main/{path.relative_to(ROOT)}"


def floors(match):
    """A flowchart of floors that stand one upon the other, as a list: its reader needs no script."""
    lines = "".join(f"<li>{floor}</li>\n" for floor in FLOOR.findall(match[1]))
    for name, entity in ESCAPED.items():
        lines = lines.replace(name, entity)
    return f'<ol class="floors">\n{lines}</ol>'


def navigation(places):
    """The contents of the site, which Sphinx shows beside each page."""
    names = [str(place.with_suffix("")) for place in places.values() if place.name != "index.md"]
    named = {
        part: list(dict.fromkeys(name for entry in entries for name in matching(entry, names)))
        for part, entries in NAVIGATION.items()
    }
    for entry in (entry for entries in NAVIGATION.values() for entry in entries):
        if not matching(entry, names):
            sys.exit(f"docs/site/pages.py names {entry}, which is no page")
    known = {name for entries in named.values() for name in entries}
    named[UNNAMED] += sorted(set(names) - known)
    titles = {str(place.with_suffix("")): title(page) for page, place in places.items()}
    parts = ["\n"]
    for part, entries in named.items():
        lines = "".join(f"{titles[name]} <{name}>\n" for name in entries)
        parts.append(f"```{{toctree}}\n:hidden:\n:caption: {part}\n\n{lines}```\n\n")
    return "".join(parts)


def matching(entry, names):
    if not entry.endswith("/*"):
        return [name for name in names if name == entry]
    return [name for name in names if name.startswith(entry.removesuffix("*"))]


def title(page):
    """A page's title, without the question that it answers."""
    return page.read_text().partition("\n")[0].removeprefix("# ").partition(": ")[0]


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""The pages can be read: short, in plain words, from a question to the next page."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"

MOST_WORDS = 1_200
MOST_README_WORDS = 500

#: Pages in which somebody looks something up: they may be longer, and need no question in their title.
REFERENCE = {
    DOCS / name
    for name in (
        "architecture.md",
        "benchmarks.md",
        "command-line.md",
        "ends.md",
        "fidelity.md",
        "kombu-features.md",
        "metrics.md",
        "options.md",
        "permissions.md",
        "reference.md",
        "reliability.md",
        "troubleshooting.md",
    )
}
#: Of the site.
LANDING_PAGE = DOCS / "index.md"

USERS_PAGES = sorted({*DOCS.glob("*.md")} - REFERENCE - {LANDING_PAGE})
CONTRIBUTORS_PAGES = sorted({*(DOCS / "contributing").glob("*.md")} - REFERENCE)

#: Where `task_cls=` or `base=` is introduced.
BOXED = [
    README,
    *(DOCS / f"{name}.md" for name in ("quickstart", "frameworks")),
    *(DOCS / f"coming-from-{name}.md" for name in ("kombu", "redis-and-rabbitmq")),
]
BOX = re.compile(r"^> \*\*What changes for your tasks\*\*.*\n(?:>.*\n)+", re.MULTILINE)


def name(page):
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [*USERS_PAGES, *CONTRIBUTORS_PAGES], ids=name)
def test_no_page_is_longer_than_a_reader_stays(page):
    words = len(page.read_text().split())
    assert words <= MOST_WORDS, f"{name(page)} has {words} words: split it, or say that it is a reference"


def test_the_reference_is_there():
    assert {page for page in REFERENCE if not page.exists()} == set()


def test_the_readme_counts_the_behaviours_that_are_replayed():
    rows = (ROOT / "tests/conformance/behaviours.jsonl").read_text().splitlines()
    assert f"[{len(rows)} behaviours of SQS]" in README.read_text()


def test_the_readme_is_for_somebody_tired():
    assert len(README.read_text().split()) <= MOST_README_WORDS


@pytest.mark.parametrize("page", BOXED, ids=name)
def test_a_task_class_comes_with_what_it_changes(page):
    assert BOX.search(page.read_text())


def test_the_box_is_the_same_everywhere():
    boxes = {box for page in [README, *DOCS.glob("*.md")] for box in BOX.findall(page.read_text())}
    assert len(boxes) == 1

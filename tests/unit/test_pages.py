"""The pages can be read: short, in plain words, from a question to the next page."""

from __future__ import annotations

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
PROSE = [README, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "CODE_OF_CONDUCT.md", *USERS_PAGES]

#: Where `task_cls=` or `base=` is introduced.
BOXED = [
    README,
    *(DOCS / f"{name}.md" for name in ("quickstart", "frameworks")),
    *(DOCS / f"coming-from-{name}.md" for name in ("kombu", "redis-and-rabbitmq")),
]
BOX = re.compile(r"^> \*\*What changes for your tasks\*\*.*\n(?:>.*\n)+", re.MULTILINE)

#: Words of the old register, and what to write instead: see CONTRIBUTING.md.
OLD_WORDS = {
    r"\b(?:a|the|no|this|that|which|of) rights?\b(?! away)|\brights\b": "permission",
    r"\b(?:have|has|had) (?:it|them|kombu|Celery|SQS|(?:a|the) \w+) \w+ed by\b": "subject, verb, object",
    r"\bpeople\b": "operators, or readers",
    r"\b(?:so|that) (?:much|many) (?:waits?|holds?|keeps?|stays?)\b": "the noun",
    r"\b(?:lest|whence|thereof|hereby|in vain)\b": "a plainer word",
}
#: A sentence whose subject is a clause: name the noun.
CLAUSE_AS_SUBJECT = re.compile(r"(?:What|Who|Which)\b[^?]*\.")


def name(page):
    return str(page.relative_to(ROOT))


def sentences(page):
    """The prose of a page, without code, one sentence or cell of a table at a time."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`]*`", "`", text)
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*[-|#>]|\d+\. )", text):
        for cell in " ".join(paragraph.split()).split(" | "):
            for sentence in re.split(r"(?<=[.?!])\s+", cell):
                yield sentence.lstrip("-|*_># 0123456789.")


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


@pytest.mark.parametrize("page", USERS_PAGES, ids=name)
def test_every_page_begins_with_what_it_answers(page):
    title = page.read_text().splitlines()[0]
    assert re.fullmatch(r"# .+\?", title), f"{name(page)}: expected a question as its title, got {title!r}"


@pytest.mark.parametrize("page", USERS_PAGES, ids=name)
def test_every_page_ends_with_where_to_go_next(page):
    last = page.read_text().rstrip("\n").split("\n\n")[-1]
    assert re.match(r"Next: .*\]\(", last, re.DOTALL), (
        f"{name(page)}: expected a last line 'Next: [...](...)'"
    )


@pytest.mark.parametrize("page", PROSE, ids=name)
def test_no_page_has_words_of_the_old_register(page):
    found = [
        f"{match[0]!r} in {sentence!r}: write {remedy}"
        for sentence in sentences(page)
        for words, remedy in OLD_WORDS.items()
        for match in re.finditer(words, sentence, re.IGNORECASE)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", PROSE, ids=name)
def test_sentences_name_their_subject(page):
    assert [sentence for sentence in sentences(page) if CLAUSE_AS_SUBJECT.fullmatch(sentence)] == []


@pytest.mark.parametrize("page", BOXED, ids=name)
def test_a_task_class_comes_with_what_it_changes(page):
    assert BOX.search(page.read_text())


def test_the_box_is_the_same_everywhere():
    boxes = {box for page in [README, *DOCS.glob("*.md")] for box in BOX.findall(page.read_text())}
    assert len(boxes) == 1

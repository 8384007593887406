"""The documentation is true: its Python runs, its tables come from the code, its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from celery import _state

from celery_sqs_visibility.policy.options import REFERENCE, Options, reference_table

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    ("page", "number"), [(page, number) for page in PAGES for number in range(len(blocks(page)))]
)
def test_python_in_the_docs_runs(page, number, monkeypatch):
    # A block's app becomes the current one of this process, in which other tests have theirs.
    monkeypatch.setattr(_state._tls, "current_app", None)
    names = {"__name__": page.stem}
    exec(compile(blocks(page)[number], f"{page.name}, block {number}", "exec"), names)
    if "app" in names:
        names["app"].finalize()
        names["app"].close()
    if "unsubscribe" in names:
        names["unsubscribe"]()
    Options.parse(names.get("broker_transport_options", {}))


def test_the_reference_of_options_is_generated_from_the_code():
    assert (ROOT / "docs/options.md").read_text() == REFERENCE.format(table=reference_table())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"

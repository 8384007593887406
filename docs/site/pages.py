"""Lays out the pages of the repository for Sphinx: the README first, and every link made one of the site.

The pages keep their addresses: docs/options.md is options.html. Those beside the README are in project/. A
link to a file that is no page leads to the repository. docs/pages.md is the navigation: each of its headings
becomes a page that lists its part, which the sidebar opens and closes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
ALL_PAGES = DOCS / "pages.md"
SOURCE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]

#: Parts that are not in the main navigation, but below the list of all pages.
BELOW_ALL_PAGES = ("Evidence", "Change it")
#: The part of pages that docs/pages.md does not name: those for contributors.
UNNAMED = "Change it"

#: A link's target, in Markdown and in HTML, without its fragment.
TARGET = re.compile(r'(\]\(|\b(?:src|href)=")(?![a-z]+:)([^)#"\s]+)')
FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
FLOWCHART = re.compile(r"^```mermaid\nflowchart TD\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FLOOR = re.compile(r'^ *f\d+\["(.*)"\]$', re.MULTILINE)
ESCAPED = {"#quot;": "&quot;", "#lt;": "&lt;"}
MARKUP = re.compile(r"!?\[([^\]]*)\]\([^)]*\)|[*`]")
DESCRIPTION_LENGTH = 160


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
    sections = parts(places)
    lists = {
        ROOT / "README.md": [slug(part) for part in sections if part not in BELOW_ALL_PAGES]
        + [f"{title(ALL_PAGES)} <pages>"],
        ALL_PAGES: [slug(part) for part in BELOW_ALL_PAGES],
    }
    unfound = {"pages", *(entry for entry, _ in sections[UNNAMED][1])}
    for page, place in places.items():
        text = for_site(page.read_text(), page, places)
        text += toctree(lists.get(page, []))
        lay(destination / place, text, found=name(place) not in unfound)
    for part, (text, entries) in sections.items():
        listed = toctree([f"{heading} <{entry}>" for entry, heading in entries])
        table = for_site(text, ALL_PAGES, places)
        lay(destination / f"{slug(part)}.md", f"# {part}\n\n{table}{listed}", found=False)
    for picture in DOCS.rglob("*"):
        if picture.suffix in {".svg", ".png", ".gif"} and not picture.is_relative_to(DOCS / "site"):
            laid = destination / picture.relative_to(DOCS)
            laid.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(picture, laid)


def parts(places):
    """Each part of docs/pages.md: its text, and its pages as (name, title)."""
    _, *headed = re.split(r"^## (.*)\n", ALL_PAGES.read_text(), flags=re.MULTILINE)
    found, named = {}, set()
    for part, text in zip(headed[::2], headed[1::2], strict=True):
        table = text.partition("\n\nNext: ")[0]
        linked = [Path(os.path.normpath(DOCS / target)) for _, target in TARGET.findall(table)]
        entries = [page for page in dict.fromkeys(linked) if page in places and page not in named]
        named.update(entries)
        found[part] = table, entries
    found[UNNAMED][1].extend(page for page in places if page not in named | {ROOT / "README.md", ALL_PAGES})
    return {
        part: (text, [(name(places[page]), title(page)) for page in entries])
        for part, (text, entries) in found.items()
    }


def lay(path, text, *, found):
    """Write a page with its description. Search finds it if `found`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {"myst": {"html_meta": {"description": description(text)}}}
    if not found:
        head["no-search"] = True
    path.write_text(f"---\n{json.dumps(head)}\n---\n{text}")


def description(text):
    """The beginning of a page's first paragraph, or its title."""
    paragraphs = [" ".join(each.split()) for each in FENCED.sub("", text).split("\n\n")]
    prose = (each for each in paragraphs if each and not each.startswith(("#", "|", "![", "<", ">", "-")))
    plain = MARKUP.sub(r"\1", next(prose, text.partition("\n")[0].removeprefix("# ")))
    if len(plain) <= DESCRIPTION_LENGTH:
        return plain
    return plain[:DESCRIPTION_LENGTH].rpartition(" ")[0] + " ..."


def for_site(text, page, places):
    """A page's text as the site has it."""
    return "".join(part_for_site(part, page, places) for part in FENCED.split(text))


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
    for entity, character in ESCAPED.items():
        lines = lines.replace(entity, character)
    return f'<ol class="floors">\n{lines}</ol>'


def toctree(entries):
    """A list of pages for the sidebar."""
    if not entries:
        return ""
    return "\n\n```{toctree}\n:hidden:\n\n" + "\n".join(entries) + "\n```\n"


def slug(part):
    return re.sub(r"\W+", "-", part.lower())


def name(place):
    return str(place.with_suffix(""))


def title(page):
    """A page's title, without the question that it answers."""
    return page.read_text().partition("\n")[0].removeprefix("# ").partition(": ")[0]


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""The documentation is true: its Python runs, its tables are complete, its links lead somewhere."""

import os
import re
from pathlib import Path

import pytest
from celery import _state
from support.app import without_shared_tasks
from support.kombu_names import kombus_options
from support.log_sentences import loud_sentences, plain_words
from support.reference import options_page

from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.unknown_options import REMEDIES

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
ALL_PAGES = ROOT / "docs/pages.md"
TROUBLESHOOTING = ROOT / "docs/troubleshooting.md"
ARCHITECTURE = ROOT / "docs/architecture.md"
CONTRIBUTORS_PAGES = sorted((ROOT / "docs/contributing").glob("*.md"))
AT_THE_ROOT = [ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md")]
USERS_PAGES = [*AT_THE_ROOT, *sorted((ROOT / "docs").glob("*.md"))]
PAGES = [README, *USERS_PAGES, *CONTRIBUTORS_PAGES]

#: Where modules are that pages for contributors name, and the packages of others that they name.
OURS = ("celery_sqs_visibility", "tests", "benchmarks", "examples", "docs")
THEIRS = (
    "moto/",
    "urllib3/",
    "celery/",
    "kombu/",
    "billiard/",
    "botocore/",
    "opentelemetry/",
    "celery_batches/",
)

#: An option and a property of messages, whose names begin as those of threads do.
NO_THREADS = {"sqs-creation-attributes", "sqs-body"}

#: The first line of a block that is an excerpt of a file, which other tests run.
EXCERPT = re.compile(r"# (examples/\S+)\n")


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page):
    """The fragments of a page's headings, as GitHub makes them, and its anchors."""
    text = page.read_text()
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    named = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    return named | set(re.findall(r'<a id="([^"]+)">', text))


@pytest.mark.parametrize(
    ("page", "number"),
    [(page, number) for page in PAGES for number in range(len(blocks(page)))],
    ids=lambda value: getattr(value, "name", value),
)
def test_python_in_the_docs_runs(page, number, monkeypatch):
    block = blocks(page)[number]
    if excerpt := EXCERPT.match(block):
        assert block[excerpt.end() :] in (ROOT / excerpt[1]).read_text()
        return
    # A block's app becomes the current one of this process, in which other tests have theirs.
    monkeypatch.setattr(_state._tls, "current_app", None)
    without_shared_tasks(monkeypatch)
    names = {"__name__": f"{page.stem}_{number}"}  # Celery gives tasks of one name to all apps
    exec(compile(block, f"{page.name}, block {number}", "exec"), names)
    if "app" in names:
        names["app"].finalize()
        Options.parse(names["app"].conf.broker_transport_options)
        names["app"].close()
    if "unsubscribe" in names:
        names["unsubscribe"]()
    Options.parse(names.get("broker_transport_options", {}))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_and_headings_lead_somewhere(page):
    for path, fragment in re.findall(r"\]\(([^)#:]*)#?([^):]*)\)", page.read_text()):
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name} links to {path}"
        assert not fragment or fragment in anchors(target), f"{page.name} links to {path}#{fragment}"


@pytest.mark.parametrize("page", USERS_PAGES, ids=lambda page: page.name)
def test_every_page_can_be_reached_from_the_readme_or_from_the_list_of_all_pages(page):
    lists = [README, ALL_PAGES]
    assert any(f"({os.path.relpath(page, each.parent)})" in each.read_text() for each in lists)


@pytest.mark.parametrize("page", CONTRIBUTORS_PAGES, ids=lambda page: page.name)
def test_every_page_for_contributors_can_be_reached_from_the_map(page):
    assert f"({os.path.relpath(page, ARCHITECTURE.parent)})" in ARCHITECTURE.read_text()


@pytest.mark.parametrize("page", [ARCHITECTURE, *CONTRIBUTORS_PAGES], ids=lambda page: page.name)
def test_modules_that_pages_for_contributors_name_exist(page):
    files = {f"/{path.relative_to(ROOT)}" for room in OURS for path in (ROOT / room).rglob("*.py")}
    named = re.findall(r"`([\w/]+\.py)[:`]", page.read_text())
    missing = {
        name
        for name in named
        if not name.startswith(THEIRS) and not any(path.endswith(f"/{name}") for path in files)
    }
    assert not missing, f"{page.name} names modules that are gone: {', '.join(sorted(missing))}"


def test_every_thread_of_the_package_is_on_the_page_of_drivers():
    page = (ROOT / "docs/contributing/drivers.md").read_text()
    sources = "".join(path.read_text() for path in (ROOT / "celery_sqs_visibility").rglob("*.py"))
    started = set(re.findall(r'f?"(sqs-[a-z]+(?:-[a-z]+)*)[-"]', sources)) - NO_THREADS
    assert len(started) > 20
    assert not [name for name in sorted(started) if f"`{name}" not in page]


def test_who_comes_from_kombu_finds_every_option():
    pages = ("coming-from-kombu", "coming-from-redis-and-rabbitmq")
    text = "".join((ROOT / f"docs/{page}.md").read_text() for page in pages)
    declared = re.findall(r"^\| `([\w-]+)`", options_page(), flags=re.MULTILINE)
    options = {*declared, *REMEDIES, *kombus_options()}
    assert {"predefined_queues", "backoff_policy", "polling_interval", "body_encoding"} <= options
    missing = sorted(name for name in options if f"`{name}`" not in text)
    assert not missing, f"docs/coming-from-kombu.md does not say what becomes of {', '.join(missing)}"


@pytest.mark.slow("it reads all sentences of the log")
def test_every_warning_and_error_of_the_log_has_a_cause_and_a_remedy():
    text = " ".join(TROUBLESHOOTING.read_text().split())
    for sentence, where in loud_sentences():
        words = plain_words(sentence)
        assert words in text, (
            f"docs/troubleshooting.md lacks the words {words!r} of the log sentence {sentence!r} "
            f"({where}): give it a row with its cause and its remedy"
        )


@pytest.mark.slow("it reads all sentences of the log")
def test_every_log_line_of_the_page_is_still_logged():
    words = {plain_words(sentence) for sentence, _ in loud_sentences()}
    tables = re.findall(r"^\| log line .*?\n\n", TROUBLESHOOTING.read_text() + "\n", re.DOTALL | re.MULTILINE)
    cells = [row.split(" | ")[0] for table in tables for row in table.splitlines()[2:] if row]
    shown = [line for cell in cells for line in re.findall(r"`([^`]+)`", cell)]
    assert len(shown) > len(tables)
    assert [line for line in shown if not any(each in line for each in words)] == []

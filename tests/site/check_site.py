"""The built site in a browser: `make docs` runs this after the build. It talks to nobody but itself."""

import functools
import subprocess
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait
from support.browser import Browser

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build/site"
PAGES = sorted(str(page.relative_to(SITE)) for page in SITE.rglob("*.html"))
AXE = next((ROOT / ".venvs/docs").glob("lib/*/site-packages/axe_playwright_python/axe.min.js")).read_text()
#: Each kind of text and block that pages have. All pages in both themes would take half a minute more.
SAMPLE = {
    f"{page}.html"
    for page in (
        "index",
        "quickstart",
        "visibility",
        "options",
        "architecture",
        "command-line",
        "search",
        "genindex",
    )
}
THEMES = ["light", "dark"]
PHONE = {"width": 380, "height": 800, "deviceScaleFactor": 1, "mobile": True}
WINDOW = {"width": 1400, "height": 900, "deviceScaleFactor": 1, "mobile": False}
SECONDS = 60

#: What people type, and the pages of which one should be first or second.
SEARCHES = {
    "IAM policy": "permissions",
    "resend": "dead-letters",
    "test my tasks": "testing",
    "task runs twice": "troubleshooting long-tasks",
    "worker idle": "troubleshooting",
    "retry delay": "retries",
    "backoff": "retries",
    "exactly once": "exclusive-tasks",
    "deploy": "deploys",
    "visibility_timeout": "options",
    "dead letter queue": "dead-letters",
    "rate limit": "delays",
    "long running task": "long-tasks",
    "graceful shutdown": "deploys",
    "kubernetes": "deploys",
    "priority": "several-queues",
    "eta countdown": "delays",
    "django": "frameworks",
    "prometheus": "metrics",
    "localstack": "before-production testing",
}
SEARCHED = (
    "return typeof Search !== 'undefined' && /found|did not match/.test(Search.status?.innerText ?? '')"
)
#: Tables that need more room than their page gives them, and rows that a phone shows as rows.
CUT_OFF = """return [...document.querySelectorAll("article table")].filter(table => {
    const room = table.closest("article").getBoundingClientRect(), needed = table.getBoundingClientRect();
    return needed.right > room.right + 4 || table.scrollWidth > table.clientWidth + 1;
}).map(table => table.innerText.slice(0, 80))"""
UNSTACKED = """return [...document.querySelectorAll("article table tbody tr")].filter(
    row => row.cells.length > 1 && getComputedStyle(row.cells[1]).display !== "none" &&
        row.cells[1].offsetTop <= row.cells[0].offsetTop && row.cells[1].offsetLeft > row.cells[0].offsetLeft
).map(row => row.innerText.slice(0, 80))"""

#: What a page needs of others, and the pictures that it could not show.
LOADED = "return performance.getEntriesByType('resource').map(each => each.name)"
BROKEN = "return [...document.images].filter(each => !each.naturalWidth).map(each => each.src)"
WIDTH = "return document.documentElement.scrollWidth"
RULES = ["color-contrast", "image-alt", "link-name", "document-title", "html-has-lang"]
#: The same hundred links on every page: they are looked at once.
SIDEBAR = [[".sidebar-drawer"]]
CONTRAST = """
const [leftOut, rules, done] = arguments;
axe.run({exclude: leftOut}, {runOnly: rules}).then(found => done(found.violations.flatMap(
    each => each.nodes.map(node => each.id + ": " + node.html + node.failureSummary))));
"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def address():
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=SITE))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def driver():
    with Browser() as browser:
        browser.driver.set_script_timeout(SECONDS)
        yield browser.driver


@pytest.fixture
def wide(driver):
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", WINDOW)
    yield driver
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.fixture
def phone(driver):
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    yield driver
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def hosts(driver):
    """Whom the page has asked for something."""
    return {urlsplit(url).netloc for url in driver.execute_script(LOADED)}


def test_broken_links_end_the_build(tmp_path):
    (tmp_path / "index.md").write_text("# A page\n\n[a](gone.md) [b](#no-heading) ![c](gone.svg)\n")
    options = ["-q", "-W", "--keep-going", "-c", ROOT / "docs/site"]
    command = [ROOT / ".venvs/docs/bin/python", "-m", "sphinx", *options, tmp_path, tmp_path / "site"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=3 * SECONDS, check=False)
    assert ended.returncode != 0
    assert all(each in ended.stderr for each in ("gone.md", "no-heading", "gone.svg")), ended.stderr


def test_no_chart_is_shown_as_its_text():
    assert [page for page in PAGES if "highlight-mermaid" in (SITE / page).read_text()] == []


def search(driver, address, words):
    """The pages that are found, best first."""
    driver.get(f"{address}/index.html")
    driver.find_element(By.NAME, "q").send_keys(words, Keys.ENTER)
    WebDriverWait(driver, SECONDS).until(lambda driver: driver.execute_script(SEARCHED))
    links = driver.find_elements(By.CSS_SELECTOR, "#search-results li > a")
    return [Path(urlsplit(link.get_attribute("href")).path).stem for link in links]


@pytest.mark.parametrize(("words", "pages"), SEARCHES.items(), ids=SEARCHES)
def test_search_finds_what_people_type_first_or_second(driver, address, words, pages):
    assert {*pages.split()} & {*search(driver, address, words)[:2]}
    assert hosts(driver) == {urlsplit(address).netloc}


def test_search_opens_the_place_of_an_option(driver, address):
    assert search(driver, address, "queue_name_prefix")[0] == "options"
    driver.find_element(By.CSS_SELECTOR, "#search-results li > a").click()
    WebDriverWait(driver, SECONDS).until(lambda driver: "search.html" not in driver.current_url)
    assert driver.current_url == f"{address}/options.html#queue_name_prefix"
    assert driver.find_element(By.ID, "queue_name_prefix")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_fits_a_window_of_1400_pixels_and_no_table_is_cut_off(wide, address, page):
    wide.get(f"{address}/{page}")
    assert wide.execute_script(WIDTH) <= WINDOW["width"]
    assert wide.execute_script(CUT_OFF) == []


@pytest.mark.parametrize("page", PAGES)
def test_a_page_fits_a_phone_has_its_pictures_and_asks_nobody_else(phone, address, page):
    phone.get(f"{address}/{page}")
    assert phone.execute_script(WIDTH) == PHONE["width"]
    assert phone.execute_script(CUT_OFF) == []
    assert phone.execute_script(UNSTACKED) == []
    phone.execute_script("document.querySelectorAll('img').forEach(each => each.loading = 'eager')")
    WebDriverWait(phone, SECONDS).until(
        lambda driver: driver.execute_script("return [...document.images].every(each => each.complete)")
    )
    assert phone.execute_script(BROKEN) == []
    assert hosts(phone) == {urlsplit(address).netloc}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_legible(driver, address, page):
    driver.get(f"{address}/{page}")
    driver.execute_script(AXE)
    left_out = [] if page == "index.html" else SIDEBAR
    for theme in THEMES if page in SAMPLE else THEMES[:1]:
        driver.execute_script("document.body.dataset.theme = arguments[0]", theme)
        assert driver.execute_async_script(CONTRAST, left_out, RULES) == [], theme

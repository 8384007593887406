"""The built site in a browser: `make docs` runs this after the build. It talks to nobody but itself."""

from __future__ import annotations

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
        "reference-commands",
        "search",
        "genindex",
    )
}
THEMES = ["light", "dark"]
PHONE = {"width": 380, "height": 800, "deviceScaleFactor": 1, "mobile": True}
SECONDS = 60

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


def test_search_finds_the_page_about_the_visibility_timeout_and_opens_it(driver, address):
    driver.get(f"{address}/index.html")
    driver.find_element(By.NAME, "q").send_keys("visibility timeout", Keys.ENTER)
    found = WebDriverWait(driver, SECONDS).until(
        lambda driver: driver.find_elements(By.CSS_SELECTOR, "#search-results li a")
    )
    assert hosts(driver) == {urlsplit(address).netloc}
    title = found[0].text
    found[0].click()
    WebDriverWait(driver, SECONDS).until(lambda driver: "search.html" not in driver.current_url)
    assert driver.find_element(By.TAG_NAME, "h1").text.startswith(title[:20])
    assert "visibility timeout" in driver.find_element(By.TAG_NAME, "article").text


@pytest.mark.parametrize("page", PAGES)
def test_a_page_fits_a_phone_has_its_pictures_and_asks_nobody_else(phone, address, page):
    phone.get(f"{address}/{page}")
    assert phone.execute_script(WIDTH) == PHONE["width"]
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

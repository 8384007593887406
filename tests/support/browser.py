"""Debian's Chromium, for tests of pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from support.programs import program

if TYPE_CHECKING:
    from typing import Self


class Browser:
    """One without a window. A context manager."""

    def __init__(self) -> None:
        chromium, driver = program("chromium"), program("chromedriver")
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        for argument in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "window-size=1280,660"):
            options.add_argument(f"--{argument}")
        self.driver = webdriver.Chrome(options=options, service=Service(driver))

    def text(self, url: str) -> str:
        """What a page shows."""
        self.driver.get(url)
        return self.shown

    @property
    def shown(self) -> str:
        return self.driver.find_element(By.TAG_NAME, "body").text

    def click(self, element_id: str) -> None:
        self.driver.find_element(By.ID, element_id).click()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.driver.quit()

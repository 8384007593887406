"""Celery's monitors as processes: `celery events`, Flower, celery-exporter; and a browser."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from support.app import CONFIG_VARIABLE, encode_config
from support.processes import GuardedProcess, free_port
from support.worker import IMPORT_PATHS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

ROOT = IMPORT_PATHS[0]

#: It needs other versions of some libraries than the tests have, so that it has an environment of its own.
EXPORTER = ROOT / ".venvs/exporter/bin/python"

MISSING_EXPORTER = "celery-exporter is missing: make .venvs/exporter/.installed"
MISSING_BROWSER = "Chromium or its driver is missing: apt-get install chromium chromium-driver"


class Monitor(GuardedProcess):
    """`celery -A work *args`, or `python *args` of another environment."""

    def __init__(
        self, log: Path, config: Mapping[str, object], *args: str, python: Path | None = None
    ) -> None:
        paths = os.pathsep.join(map(str, IMPORT_PATHS))
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": paths, "TERM": "xterm"}
        environment[CONFIG_VARIABLE] = encode_config(config)
        command = [str(python), *args] if python else [sys.executable, "-m", "celery", *args]
        super().__init__(command, log, environment, cwd=log.parent)


class Flower(Monitor):
    """Flower; `start()` returns when it serves pages."""

    def __init__(self, log: Path, config: Mapping[str, object], *args: str) -> None:
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        super().__init__(log, config, *args, "flower", "--address=127.0.0.1", f"--port={port}")
        self._options["env"]["FLOWER_UNAUTHENTICATED_API"] = "true"  # or its buttons want a password

    def start(self) -> Self:
        return super().start().wait_for_log("Visit me at")


class Exporter(Monitor):
    """celery-exporter, which is given a URL and nothing else."""

    def __init__(self, log: Path, broker_url: str) -> None:
        assert EXPORTER.exists(), MISSING_EXPORTER
        self.port = free_port()
        program = "import runpy, sys; from src.cli import cli; cli()"
        args = [f"--broker-url={broker_url}", "--host=127.0.0.1", f"--port={self.port}"]
        super().__init__(log, {}, "-c", program, *args, python=EXPORTER)

    def metrics(self) -> str:
        with contextlib.suppress(OSError), urlopen(f"http://127.0.0.1:{self.port}/metrics") as answer:
            return answer.read().decode()
        return ""


class Screen(Monitor):
    """`celery *args` in a terminal. Its log is what it has drawn."""

    def __init__(self, log: Path, config: Mapping[str, object], *args: str) -> None:
        program = "import os, pty, sys; os.environ.update(LINES='40', COLUMNS='120'); pty.spawn(sys.argv[1:])"
        command = [sys.executable, "-m", "celery", *args]
        super().__init__(log, config, "-c", program, *command, python=Path(sys.executable))


class Browser:
    """Debian's Chromium without a window. A context manager."""

    def __init__(self) -> None:
        chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
        assert chromium and driver, MISSING_BROWSER  # noqa: PT018 - one sentence for both
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

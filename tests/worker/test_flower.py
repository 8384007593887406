"""Flower, in a browser: it lists the worker, follows a task, and shuts the worker down."""

from __future__ import annotations

import re
import uuid

import pytest
from support.browser import Browser
from support.monitors import Flower
from support.processes import SOON, wait_until


@pytest.fixture
def site(make_site):
    return make_site(remote_control=True, control_prefix=f"{uuid.uuid4().hex[:8]}-", wait_time_seconds=2)


@pytest.fixture
def flower(site, proxy, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", proxy.url)
    with Flower(tmp_path / "flower.log", site.config, "-A", "work") as flower:
        yield flower


def test_flower_lists_the_worker_follows_a_task_and_shuts_the_worker_down(
    site, flower, pytestconfig, tmp_path
):
    worker = site.start(name="importer", ready=False)
    with Browser() as browser:
        worker.wait_ready()

        def shows(page, *texts):
            def seen():
                text = browser.text(f"{flower.url}/{page}")
                return all(each in text for each in texts)

            wait_until(seen, SOON, lambda: f"{texts} on the page: {browser.shown}\n{flower.log}")

        shows("workers", "importer@", "Online")
        shows("broker", "is not supported")
        name = re.search(r"importer@\S+", worker.log)[0]
        worker.wait_for_log("Events of group {task} enabled by remote.")  # Flower asks each five seconds
        site.send("quick", "a")
        site.send("held", "a", str(end := tmp_path / "end"))
        shows("tasks", "work.held", "STARTED")
        shows("tasks", "work.quick", "SUCCESS")
        if path := pytestconfig.getoption("screenshot"):
            browser.driver.save_screenshot(path)
        shows(f"worker/{name}", "Pool", name)
        browser.click("worker-group")
        browser.click("worker-shutdown")
        wait_until(lambda: "Shutting down!" in browser.shown, SOON, lambda: browser.shown)
        end.touch()
        assert worker.wait_exit() == 0
        shows("tasks", "work.held", "SUCCESS")
        shows("workers", "Offline")

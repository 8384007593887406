"""The board of `celery sqs status --watch`, in terminals of two widths, over real workers."""

import json
import re
import socket

import pytest
from support.commands import invoke
from support.faults import error
from support.monitors import Screen
from support.processes import SOON, wait_until

from celery_sqs_visibility.operate.invocation import ask

NODE = f"worker1@{socket.gethostname()}"

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def site(make_control_site, proxy, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", proxy.url)
    return make_control_site(visibility_timeout=6, wait_time_seconds=2)


@pytest.fixture
def board(site, tmp_path):
    """Draw the board in a terminal of so many columns; with these arguments of `celery` before `sqs`."""
    screens = []

    def draw(columns, *args):
        log = tmp_path / f"screen{len(screens)}.log"
        command = ("-A", "work", *args, "sqs", "status", "--watch", "0.5")
        screens.append(Screen(log, site.config, *command, columns=columns))
        return screens[-1].start()

    yield draw
    for each in screens:
        each.stop()


def shows(screen, *texts):
    wait_until(lambda: all(text in screen.log for text in texts), SOON, lambda: f"{texts} in {screen.log}")


def test_a_board_shows_leases_a_killed_worker_and_an_outage(site, board, tmp_path, monkeypatch):
    worker = site.start(name="worker1", concurrency=1, ready=False).wait_ready()
    wait_until(lambda: ask(site.app, "sqs_held", SOON, [NODE]), SOON, "it to take commands")
    site.send("held", "a", str(tmp_path / "never"))
    site.diary.wait_for("started", key="a")
    site.sqs.send_message(QueueUrl=site.url, MessageBody="waits", DelaySeconds=1)
    wide, without = board(200), board(80, "--no-color")
    monkeypatch.setenv("NO_COLOR", "1")
    narrow = board(80)
    for each in (wide, narrow, without):
        shows(each, NODE[:12], "prefork", "1/1", "requests a refresh")
    shows(wide, "work.held", "▲ extended", "free slots", "0/1")
    worker.kill()
    shows(narrow, "silent for ")
    wait_until(lambda: re.search(r"ended \d+s ago", wide.log), SOON, lambda: wide.log)
    with site.proxy.inject(error("InternalError", 500)):
        shows(wide, f"old figures: {site.queue}")
    assert COLOURS.search(wide.log)
    for each in (narrow, without):
        assert not COLOURS.search(each.log)
        assert max(map(len, ESCAPES.sub("", each.log).splitlines())) <= 80


def test_a_brake_that_is_on_is_seen_by_every_command(site, tmp_path, monkeypatch):
    failing = tmp_path / "failing"
    failing.write_text("1")
    monkeypatch.setenv("TEST_DEPENDENCY_FAILS", str(failing))
    for key in range(80):
        site.app.send_task("braking.pay", [f"pay {key}"])
    worker = site.start("braking", name="worker1", concurrency=2)
    worker.wait_for_log("brake 'bank' is applied")

    def queue_waits_for_brake():
        taken.update(json.loads(invoke(site.app, "status", "-t", "2", "--json").stdout))
        (queue,) = [each for each in taken["queues"] if each["queue"] == site.queue]
        return queue["why"] == "for brake 'bank', and the queue is polled seldom meanwhile"

    taken = {}
    wait_until(queue_waits_for_brake, SOON, lambda: f"the queue to rest, not {taken}")
    (told,) = taken["workers"][NODE]["brakes"]
    assert (told["brake"], told["stage"], told["tasks"]) == ("bank", "on", ["braking.pay"])
    assert told["error"].startswith("DependencyDown(")
    held = ask(site.app, "sqs_held", SOON, [NODE])[NODE]["held"]
    assert "brake 'bank'" in {each["waits_for"] for each in held}
    failing.unlink()
    site.diary.wait_for("done", 80)

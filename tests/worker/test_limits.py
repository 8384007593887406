"""How often a message is run: what a run said of its own limit counts, and nothing fails unrun on a guess."""

from __future__ import annotations

import pytest


def send(site, name, **kwargs):
    return site.app.send_task(f"ends.{name}", (), kwargs)


LOST = pytest.mark.prefork_only("only a process can be lost")


@pytest.mark.parametrize(
    ("task", "limits", "attempts", "messages"),
    [
        # One message more has told that limit.
        pytest.param("retrying", {"max_retries": 5}, 6, 2, id="that all retries say"),
        pytest.param(
            "retrying_and_killed", {"limit": 4, "killed_at": 2}, 5, 2, id="before a child is lost", marks=LOST
        ),
        pytest.param(
            "retrying_anew_and_killed",
            {"limit": 5, "killed_at": 4},
            6,
            5,
            id="of a retry published for other reasons",
            marks=LOST,
        ),
    ],
)
def test_a_limit_above_the_tasks_own_counts_on_every_worker(make_site, task, limits, attempts, messages):
    site = make_site(error_visibility_timeout=1)
    for _ in range(2):
        site.start("ends")
    result = send(site, task, **limits)
    site.proxy.wait_for(lambda _: result.state == "FAILURE", timeout=90)
    assert [entry["retries"] for entry in site.diary.entries("run", id=result.id)] == list(range(attempts))
    assert site.proxy.count("SendMessage", queue=site.queue) == messages
    site.proxy.wait_for(lambda _: site.counts() == (0, 0))


def test_a_failure_after_an_extension_comes_back_after_the_visibility_timeout(make_site):
    site = make_site(visibility_timeout=6, heartbeat_interval=1)
    site.start("ends")
    result = send(site, "extending_and_failing")
    site.proxy.wait_for(lambda _: result.state == "SUCCESS", timeout=90)
    assert site.changes() == [600, 6]

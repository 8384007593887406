from __future__ import annotations

import pytest

from celery_sqs_visibility.operate.dead_letters.letter import Selection


@pytest.mark.parametrize(
    ("filters", "is_taken"),
    [
        ({}, True),
        ({"task": "proj.*"}, True),
        ({"task": "other.*"}, False),
        ({"exception": "Trouble"}, True),
        ({"exception": "errors.Trouble"}, True),
        ({"exception": "*in vain*"}, True),
        ({"exception": "Troub"}, False),
        ({"older_than": 60}, True),
        ({"older_than": 61}, False),
        ({"newer_than": 61}, True),
        ({"newer_than": 60}, False),
        ({"sources": {"orders"}}, True),
        ({"sources": {"others"}}, False),
    ],
    ids=str,
)
def test_a_letter_passes_every_filter_that_is_given(site, filters, is_taken):
    site.add(exception="errors.Trouble: in vain")
    now = site.clock.wall() + 60
    assert Selection(**filters).takes(site.receive()[0], now) == is_taken


def test_an_id_is_the_messages_or_the_tasks_or_their_beginning(site):
    letter_id = site.add(task_id="task-0001-more", message_id="original-message")
    (letter,) = site.receive()
    for name in (letter_id, letter_id[:8], "task-0001-more", "task-000", "original"):
        assert Selection([name]).takes(letter, 0)
    assert not Selection(["task-0001"]).takes(letter, 0)


@pytest.mark.parametrize("attempts", ["²", "9" * 5000, "-1", "many"])
def test_a_number_of_attempts_that_is_none_is_left_out(site, attempts):
    site.add(attempts=attempts)
    assert site.receive()[0].summary(site.clock.wall())["attempts"] is None


def test_a_letter_of_an_unknown_queue_is_any_queues(site):
    site.add(source_queue="")
    assert Selection(sources={"others"}).takes(site.receive()[0], 0)


def test_a_message_that_cannot_be_read_is_listed_with_the_reason(site):
    site.add(body="no JSON", reason="")
    summary = site.receive()[0].summary(site.clock.wall() + 3)
    assert (summary["task"], summary["attempts"], summary["age_seconds"]) == (None, None, 3)
    assert "neither a JSON object" in summary["reason"]

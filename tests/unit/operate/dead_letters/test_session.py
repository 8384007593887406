"""A look at dead letters goes by SQS's clock, and knows which ids it has not seen."""

from __future__ import annotations

import pytest

from celery_sqs_visibility.operate.dead_letters import session as module
from celery_sqs_visibility.operate.dead_letters.places import find_place
from celery_sqs_visibility.operate.dead_letters.selection import Selection
from celery_sqs_visibility.operate.dead_letters.session import session_of


def look(site, monkeypatch, ahead=None, **selection):
    """The ids of the letters that a retry takes, and those that it misses."""
    monkeypatch.setattr(module, "clock_offset", lambda _endpoint: ahead)
    monkeypatch.setattr(module, "SYSTEM_CLOCK", site.clock)
    with session_of(site.place, Selection(**selection), None, only_earlier=True) as session:
        site.clock.advance(1)
        return [letter.id for batch in session.batches() for letter in batch], session.missing()


@pytest.mark.parametrize(("ahead", "is_taken"), [(None, False), (0.9, False), (-120.0, True)])
def test_letters_of_a_moment_ago_are_taken_by_sqs_clock(site, monkeypatch, ahead, is_taken):
    letter = site.add()  # not before this machine's clock says so
    assert look(site, monkeypatch, ahead) == ([letter] if is_taken else [], [])


def test_a_letter_that_an_id_names_is_taken_whatever_the_clocks_say(site, monkeypatch):
    letter = site.add()
    assert look(site, monkeypatch, ids=[letter[:8], "not-there"]) == ([letter], ["not-there"])


def test_what_an_id_names_is_not_taken_again_when_it_fails_anew(site, monkeypatch):
    monkeypatch.setattr(module, "clock_offset", lambda _endpoint: None)
    monkeypatch.setattr(module, "SYSTEM_CLOCK", site.clock)
    site.add(task_id="a-task-of-a")
    taken = 0
    with session_of(site.place, Selection(ids=["a-task-o"]), None, only_earlier=True) as session:
        for batch in session.batches():
            taken += len(batch)
            site.add(task_id="a-task-of-a")
    assert taken == 1


def test_letters_that_a_killed_command_has_left_hidden_are_told_of(site, monkeypatch, capsys):
    letter = site.add()
    with session_of(site.place, Selection(), None) as session:
        assert [each.id for batch in session.batches() for each in batch] == [letter]
        monkeypatch.setattr(session.held, "release", lambda: 0)  # as if it had been killed
    anew = find_place(site.context, site.place.source.name, None)
    with session_of(anew, Selection(), None) as session:
        assert list(session.batches()) == []
    assert "Left out: 1 message of 'dead' that somebody else has received" in capsys.readouterr().err

"""Which letters come back after a retry, and what a look for them leaves behind."""

import pytest

from celery_sqs_visibility.aws.queues import HIDDEN, VISIBLE, counts
from celery_sqs_visibility.errors import UnavailableError
from celery_sqs_visibility.operate.dead_letters import follow as module
from celery_sqs_visibility.operate.dead_letters.follow import Followed, follow
from celery_sqs_visibility.operate.dead_letters.letter import Selection
from celery_sqs_visibility.operate.dead_letters.session import Session


@pytest.fixture
def sent_back(site, monkeypatch):
    """A session that has sent back `task-0` and `task-1`, and has looked at another letter."""
    monkeypatch.setattr(module, "SYSTEM_CLOCK", site.clock)
    for number in range(2):
        site.add(task_id=f"task-{number}")
    site.add(task_id="other")
    letters = site.receive()
    site.moves.send_back([letter for letter in letters if letter.task_id != "other"])
    return Session(site.place, Selection(), None, site.held, site.stop)


def meanwhile(site, happens, seconds=60):
    def wait(limit):
        assert limit == 60
        site.clock.advance(seconds)
        happens()

    site.stop.wait = wait


def test_a_task_that_failed_again_came_back_and_nothing_stays_hidden(site, sent_back):
    def happens():
        assert len(site.messages(site.letters)) == 1  # what was only looked at waits for nobody
        site.add(task_id="task-1")
        site.add(task_id="task-1")  # a duplicate
        site.add(task_id="another")

    meanwhile(site, happens)
    assert follow(sent_back, site.moves.outcome, 60) == Followed(60, ["task-1"], 2)
    assert len(site.messages(site.letters)) == 4


def test_a_letter_that_could_not_be_deleted_has_not_come_back(site, sent_back):
    site.add(task_id="task-0")
    (letter,) = site.receive()
    site.moves.outcome.add([letter])
    meanwhile(site, lambda: None)
    assert follow(sent_back, site.moves.outcome, 60).came_back == []


def test_a_signal_ends_the_wait_and_not_the_look(site, sent_back):
    def happens():
        site.add(task_id="task-0")
        site.stop.set()

    meanwhile(site, happens, seconds=7)
    assert follow(sent_back, site.moves.outcome, 60) == Followed(7, ["task-0"], 2)


def test_the_queue_may_not_be_counted(site, sent_back, monkeypatch):
    def refused(*_):
        raise UnavailableError("gone")

    meanwhile(site, lambda: monkeypatch.setattr(module, "count", refused))
    assert follow(sent_back, site.moves.outcome, 60) == Followed(60, [], None)


def test_an_error_of_the_look_gives_back_what_it_has(site, sent_back, monkeypatch):
    receive, answers = site.sqs.receive, iter([None, UnavailableError("gone")])

    def failing(*arguments):
        if error := next(answers):
            raise error
        return receive(*arguments)

    def happens():
        for _ in range(15):
            site.add(task_id="task-0")
        monkeypatch.setattr(site.sqs, "receive", failing)

    meanwhile(site, happens)
    with pytest.raises(UnavailableError):
        follow(sent_back, site.moves.outcome, 60)
    assert counts(site.place.letters, VISIBLE, HIDDEN) == [16, 0]

"""Workers' answers, the last ones of those that do not answer any more included."""

import pytest
from kombu.exceptions import OperationalError
from support.clock import FakeClock

from celery_sqs_visibility.errors import CommandNotSentError
from celery_sqs_visibility.operate import invocation
from celery_sqs_visibility.operate.app_queues import QueueDepth
from celery_sqs_visibility.operate.status import answers as module
from celery_sqs_visibility.operate.status.answers import MAX_SILENT_SECONDS, REQUESTS_OF_A_COMMAND
from celery_sqs_visibility.operate.status.report import QueueStatus, Status

QUEUES = {"queues": {"q": {"held": 2, "running": 1, "paused": False}}, "slots": 4, "busy": 1}
RUN = {"message_id": "m", "began": 5.0}


@pytest.fixture
def ask(monkeypatch):
    """`ask(*answers)` to commands, in order; exceptions are raised."""

    def answer(*given):
        given = iter(given)
        answer.asked = []

        def one(_app, command, _timeout, nodes=(), **_):
            answer.asked.append((command, list(nodes)))
            if isinstance(found := next(given), Exception):
                raise found
            return found

        monkeypatch.setattr(invocation, "ask", one)
        monkeypatch.setattr(invocation, "is_controlled", lambda _app: True)

    return answer


@pytest.mark.parametrize("error", [CommandNotSentError, OperationalError, OSError])
def test_workers_that_cannot_be_asked_are_as_they_were(ask, error):
    ask({"a@h": {}}, error("no answer"), {})
    clock = FakeClock()
    workers = module.WorkerAnswers(object(), 1.0, clock)
    seen = []
    for _ in range(3):
        seen.append(workers.add_to(Status([])))
        clock.advance(9)
    assert [dict(each.workers) for each in seen] == [{"a@h": {}}, {"a@h": {}}, {}]
    assert [each.workers_age_seconds for each in seen] == [0, 9, 0]
    assert "cannot be asked: no answer" in seen[1].notes[0]


def test_a_worker_that_vanished_stays_for_minutes_with_its_runs(ask):
    clock = FakeClock()
    both, one = {"a@h": QUEUES, "b@h": QUEUES}, {"b@h": QUEUES}
    held = {"a@h": {"held": [RUN]}, "b@h": {"error": "KeyError('sqs_held')"}}
    ask(both, held, one, {}, one, {})
    workers = module.WorkerAnswers(object(), 1.0, clock, with_runs=True)
    empty = Status([QueueStatus(QueueDepth("q", 1, 5, 0))])
    assert workers.add_to(empty).queues[0].work.held == 4
    assert workers.requests == 2 * 2 * REQUESTS_OF_A_COMMAND
    clock.advance(40)
    taken = workers.add_to(empty)
    assert taken.workers_age_seconds == 0
    assert (dict(taken.silent), list(taken.workers)) == ({"a@h": 40}, ["b@h"])
    assert taken.runs == {"a@h": [RUN], "b@h": ()}
    assert taken.queues[0].work.held == 2, "what a silent worker held is hidden"
    assert ask.asked[1] == ("sqs_held", ["a@h", "b@h"]), "an answer of each, without waiting for others"
    clock.advance(MAX_SILENT_SECONDS)
    assert not workers.add_to(empty).silent

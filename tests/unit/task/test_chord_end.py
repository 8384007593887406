"""The end of a chord's member: SIGTERM waits for it in a pool's process, and it is counted once."""

import signal
import threading
import uuid
from types import SimpleNamespace

import pytest
from celery import states
from support.factories import trace

from celery_sqs_visibility.task import chord_end


@pytest.fixture
def told(monkeypatch):
    """The signals that the pool's own handler got."""
    numbers = []

    def handler(number, _frame):
        numbers.append(number)

    monkeypatch.setattr(chord_end, "POOLS_HANDLER", handler)
    before = signal.signal(signal.SIGTERM, handler)
    yield numbers
    chord_end.end()
    signal.signal(signal.SIGTERM, before)


def test_sigterm_waits_for_the_end_of_the_run(told):
    chord_end.begin()
    assert chord_end.is_at_end(threading.get_ident())
    signal.raise_signal(signal.SIGTERM)
    assert told == []
    chord_end.end()
    assert told == [signal.SIGTERM]
    assert not chord_end.is_at_end(threading.get_ident())
    chord_end.begin()
    chord_end.end()
    signal.raise_signal(signal.SIGTERM)
    assert told == [signal.SIGTERM] * 2, "it waited once, and does not wait between two runs"


def test_a_handler_of_another_process_is_left_alone(told):
    def celerys(_number, _frame):
        pass

    signal.signal(signal.SIGTERM, celerys)
    chord_end.begin()
    assert signal.getsignal(signal.SIGTERM) is celerys
    chord_end.end()
    assert signal.getsignal(signal.SIGTERM) is celerys
    assert told == []


def test_a_run_that_never_came_to_its_end_has_none(told):
    chord_end.end()
    assert told == []
    assert not chord_end.is_at_end(None)


class Trouble(Exception):
    """What a member fails with."""


@pytest.fixture
def members(app):
    """`members(function)`: runs the members of a chord of two, whose result backend counts ends."""
    group = uuid.uuid4().hex
    ids = [f"{group}-{number}" for number in range(2)]

    @app.task(name="body", shared=False)
    def body(numbers):
        """The chord's."""

    app.backend.apply_chord((group, [app.AsyncResult(each) for each in ids]), body.s())
    chord = {**body.s(), "chord_size": len(ids), "options": {"task_id": f"{group}-body"}}

    def make(function, **options):
        member = app.task(function, name="member", shared=False, **options)

        def run(number, **request):
            return trace(member, id=ids[number], group=group, chord=chord, **request).info

        return SimpleNamespace(run=run, body=app.AsyncResult(f"{group}-body"), key=ids[0])

    return make


def seven():
    return 7


def bodies(published):
    return [args for task, args, *_ in published if task == "body"]


def test_a_member_that_is_delivered_again_counts_once(members, published):
    chord = members(seven)
    assert chord.run(0) is chord.run(0) is None
    assert bodies(published) == []
    chord.run(1)
    assert bodies(published) == [([7, 7],)]
    chord.run(0)
    assert (len(bodies(published)), chord.body.state) == (1, states.PENDING)


def test_a_member_that_fails_for_good_when_it_is_delivered_again_counts_once(members, published):
    outcomes = iter([7, Trouble(), 7])

    def member():
        if isinstance(outcome := next(outcomes), Trouble):
            raise outcome
        return outcome

    chord = members(member, max_retries=0)
    assert chord.run(0) is None
    assert chord.run(0).state == states.FAILURE
    assert chord.body.state == states.PENDING
    chord.run(1)
    assert bodies(published) == [([7, 7],)]


def test_a_member_counts_when_it_ends_and_not_when_it_is_retried(members, published):
    def member():
        if outcomes.pop() is Trouble:
            raise Trouble

    outcomes = [None, None, Trouble]
    chord = members(member)
    assert isinstance(chord.run(0).retval.exc, Trouble)
    assert chord.run(0, retries=1) is chord.run(1) is None
    assert len(bodies(published)) == 1


def test_a_member_whose_end_could_not_be_recorded_counts_at_its_next(app, members, published, monkeypatch):
    def fail(*_args, **_options):
        raise ConnectionError

    chord = members(seven)
    with monkeypatch.context() as patch:
        patch.setattr(app.backend, "store_result", fail)
        assert chord.run(0).state == states.RETRY
    with monkeypatch.context() as patch:
        patch.setattr(app.backend, "get", fail)
        assert chord.run(0).state == states.RETRY
    assert chord.run(0, retries=1) is chord.run(1) is None
    assert len(bodies(published)) == 1


def test_that_a_member_was_counted_and_could_not_be_noted_is_logged(app, members, monkeypatch, caplog):
    chord, store = members(seven), app.backend.set

    def fail(key, value):
        if chord_end.COUNTED in str(key):
            raise ConnectionError
        store(key, value)

    monkeypatch.setattr(app.backend, "set", fail)
    assert chord.run(0) is None
    assert f"task member[{chord.key}] was counted for its chord, but not noted" in caplog.text

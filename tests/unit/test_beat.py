"""Two schedulers send the same deduplication id for the same due time, at the same time."""

import logging
import string
import uuid
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from celery import Celery
from celery import beat as celery_beat
from celery.exceptions import ImproperlyConfigured
from celery.schedules import BaseSchedule, crontab, schedule
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility.beat import (
    CLAIM_SECONDS,
    Scheduler,
    SendsOnce,
    due_key,
    latest,
    on_grid,
    until_next,
)
from celery_sqs_visibility.errors import StoreError
from celery_sqs_visibility.stores import guarded
from celery_sqs_visibility.stores.memory import MemoryStore

START = datetime(2026, 3, 4, 10, 7, 17, tzinfo=UTC)


class InMemory(SendsOnce, celery_beat.Scheduler):
    """Celery's scheduler without a file."""


class Beat:
    """A scheduler with one entry, whose clock tests move; `sent` has the options of what it sent."""

    def __init__(self, plan, now=START, kind=InMemory, path=None, **conf):
        self.now = now
        self.sent = []
        self.app = Celery("beat", set_as_current=False, broker="celery-sqs-visibility://")
        self.app.conf.update({"task_default_queue": "beat.fifo", "timezone": "Asia/Tokyo", **conf})
        self.app.now = lambda: self.now.astimezone(self.app.timezone)
        self.app.conf.beat_schedule = {"report": {"task": "report", "schedule": plan}}
        self.scheduler = kind(app=self.app, schedule_filename=str(path))
        self.scheduler.__dict__["producer"] = None  # no connection
        self.scheduler.send_task = self._send

    def _send(self, _task, _args, _kwargs, **options):
        self.sent.append(options)
        return SimpleNamespace(id="1")

    def run(self, seconds, late=0.0):
        """Tick for a while, at most `late` seconds after each due time."""
        end = self.now + timedelta(seconds=seconds)
        while self.now < end:
            wait = max(0.001, self.scheduler.tick())
            wait += late if wait > 1 else 0
            self.now += min(timedelta(seconds=wait), max(end - self.now, timedelta(milliseconds=1)))
        return self.keys

    @property
    def keys(self):
        return [options.get("MessageDeduplicationId") for options in self.sent]


@pytest.fixture
def beat():
    made = []

    def make(plan, **options):
        made.append(Beat(plan, **options))
        return made[-1]

    yield make
    for each in made:
        each.scheduler.close()


@pytest.mark.parametrize(
    ("plan", "seconds", "due"),
    [
        (lambda: schedule(1800), 7000, ["10:30:00", "11:00:00", "11:30:00", "12:00:00"]),
        (lambda: schedule(7.5), 21, ["10:07:22.500000", "10:07:30", "10:07:37.500000"]),
        (lambda: crontab(minute="*/20"), 3600, ["10:20:00", "10:40:00", "11:00:00"]),
        (lambda: schedule(timedelta(hours=1), relative=True), 7000, ["11:00:00", "12:00:00"]),
        (lambda: crontab(hour="21", minute="30"), 3 * 3600, ["12:30:00"]),  # Tokyo's
    ],
    ids=["interval", "short interval", "crontab", "relative", "daily"],
)
def test_beats_that_started_at_different_times_send_the_same_keys(beat, plan, seconds, due):
    expected = [f"report@2026-03-04T{each}Z" for each in due]
    assert beat(plan()).run(seconds) == expected
    assert beat(plan(), now=START + timedelta(seconds=3)).run(seconds, late=0.4)[: len(due)] == expected


@pytest.mark.parametrize("plan", [lambda: schedule(60), crontab], ids=["interval", "crontab"])
def test_a_beat_that_was_down_sends_what_the_other_one_has_just_sent(beat, plan):
    late = beat(plan())
    late.run(1)
    late.now += timedelta(hours=5)
    assert late.run(2) == ["report@2026-03-04T15:07:00Z"]
    assert late.run(60)[1:] == ["report@2026-03-04T15:08:00Z"]


class Own(BaseSchedule):
    """A user's, that only says when it is due."""

    def is_due(self, last_run_at):
        due = self.now() - last_run_at >= timedelta(seconds=60)
        return due, 60 if due else 1


def test_a_schedule_of_the_users_own_is_sent_without_a_key(beat):
    assert beat(Own()).run(61) == [None]


def test_an_id_that_the_entry_gives_itself_stays(beat):
    one = beat(schedule(60))
    one.scheduler.schedule["report"].options = {"MessageDeduplicationId": "mine"}
    assert one.run(120)[0] == "mine"


class Claiming(InMemory):
    """Asks a store."""

    def claim(self, key, ttl_seconds):
        self.asked = key, ttl_seconds
        return self.app.conf.claimed(key)


@pytest.mark.parametrize(("claimed", "sent"), [(True, 1), (False, 0)])
def test_what_another_beat_has_claimed_is_not_sent(beat, claimed, sent):
    one = beat(schedule(60), kind=Claiming, claimed=lambda _key: claimed)
    assert len(one.run(50)) == sent
    assert one.scheduler.asked == ("report@2026-03-04T10:08:00Z", CLAIM_SECONDS)


def test_while_the_store_is_away_tasks_are_sent(beat, caplog):
    one = beat(schedule(60), kind=Claiming, claimed=None)
    assert len(one.run(50)) == 1
    assert "could not be claimed, and is sent: another beat may send it too" in caplog.text


@pytest.fixture
def store(monkeypatch):
    """The store of an app with the option `coordination_store`."""
    store = MemoryStore()
    monkeypatch.setattr(guarded, "open_store", lambda _address, _settings: store)
    return store


def with_store(queue="celery", address="redis://keys"):
    """Settings for tasks that go to that queue; their contexts are those of one test."""
    options = {"coordination_store": f"{address}/{uuid.uuid4().int}"}
    return {"task_default_queue": queue, "broker_transport_options": options}


@pytest.mark.parametrize(
    "plan", [lambda: schedule(60), lambda: crontab(minute="*/2")], ids=["interval", "crontab"]
)
def test_with_a_store_two_beats_send_each_due_time_to_a_standard_queue_once(beat, store, caplog, plan):
    conf = with_store()
    first = beat(plan(), **conf).run(600)
    late = beat(plan(), now=START + timedelta(seconds=130), **conf)
    later = late.run(600)
    both = first + later
    assert len(both) == len(set(both)) > len(first)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_what_a_fifo_queue_takes_once_is_not_claimed(beat, store):
    conf = with_store("beat.fifo")
    assert beat(schedule(60), **conf).run(50) == beat(schedule(60), **conf).run(50) != []


def test_celerys_own_scheduler_claims_too_beside_its_file(beat, store, tmp_path):
    conf = with_store()
    beats = [beat(schedule(60), kind=Scheduler, path=tmp_path / name, **conf) for name in "ab"]
    first, second = (each.scheduler for each in beats)
    assert (first.claim("report@now", 60), second.claim("report@now", 60)) == (True, False)
    first.unclaim("report@now")
    assert second.claim("report@now", 60)


def test_of_celerys_scheduler_only_what_is_meant_to_be_is_replaced():
    ours = {name for name in vars(SendsOnce) if not name.startswith("__")}
    meant = {"apply_async", "populate_heap", "reserve", "is_due", "setup_schedule"}
    assert ours & set(dir(celery_beat.PersistentScheduler)) == meant


def test_while_the_store_does_not_answer_tasks_are_sent_and_one_line_says_so(
    beat, store, monkeypatch, caplog
):
    def fail(*_):
        raise StoreError("it is down")

    monkeypatch.setattr(store, "acquire", fail)
    assert len(beat(schedule(60), **with_store()).run(50)) == 1
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.getMessage().endswith("is sent: another beat may send it too: it is down")
    assert not record.exc_info


def fail(*_args, **_options):
    raise OSError("it is down")


def test_a_beat_that_cannot_send_leaves_the_task_to_a_later_beat(beat, store):
    conf = with_store()
    broken, later = beat(schedule(60), **conf), beat(schedule(60), **conf)
    broken.scheduler.send_task = fail
    broken.run(50)
    assert later.run(50) == ["report@2026-03-04T10:08:00Z"]
    assert beat(schedule(60), **conf).run(50) == []


def test_a_claim_that_cannot_be_given_back_is_told_beside_the_failed_send(beat, store, monkeypatch, caplog):
    one = beat(schedule(60), **with_store())
    one.scheduler.send_task = fail
    monkeypatch.setattr(store, "release", fail)
    one.run(50)
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 2
    assert "10:08:00Z was not sent, and stays claimed, so that no other beat sends it" in errors[0]
    assert "it is down" in errors[1]


def test_a_store_that_cannot_be_opened_is_told_at_the_start(beat):
    with pytest.raises(ImproperlyConfigured, match="redis://:password@host"):
        beat(schedule(60), **with_store(address="redis://:pass#word@host"))


def test_applying_an_entry_at_once_keeps_the_id_out_of_the_schedule(beat):
    one = beat(schedule(60))
    one.scheduler.apply_async(one.scheduler.schedule["report"])
    assert one.keys == ["report@2026-03-04T10:07:00Z"]
    assert one.scheduler.schedule["report"].options == {}


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ({}, None),
        ({"task_default_queue": "celery"}, "two beats send twice what they send to 'celery'"),
        ({"broker_url": "memory://"}, "beat does not publish to SQS here"),
        ({"task_create_missing_queues": False, "task_routes": {"report": "unknown"}}, None),
    ],
    ids=repr,
)
def test_at_the_start_it_says_what_would_be_sent_twice(beat, caplog, conf, said):
    beat(schedule(60), **conf)
    said_at_all = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [message.startswith(said or "") for message in said_at_all] == ([True] if said else [])


def test_celerys_scheduler_and_ours_read_each_others_file(tmp_path):
    for runs, kind in enumerate([Scheduler, celery_beat.PersistentScheduler, Scheduler]):
        one = Beat(schedule(60), kind=kind, path=tmp_path / "schedule")
        entry = one.scheduler.schedule["report"]
        assert entry.total_run_count == runs
        one.scheduler.apply_async(entry)
        one.scheduler.close()
    assert one.keys[0].startswith("report@")


def failing(_task, _args, _kwargs, **_options):
    raise ConnectionError("no broker")


def test_what_has_no_due_time_is_not_claimed_nor_its_claim_given_up(beat, caplog):
    one = beat(Own(), kind=Claiming)
    one.scheduler.send_task = failing
    one.run(61)
    assert "no broker" in caplog.text
    assert not hasattr(one.scheduler, "asked")


@pytest.mark.parametrize("options", [{"task_default_queue": "celery"}, {"task_default_queue": "beat.fifo"}])
def test_what_nobody_has_claimed_has_no_claim_to_give_up(beat, caplog, options):
    one = beat(schedule(60), **options)
    one.scheduler.send_task = failing
    one.run(60)
    one.scheduler.unclaim("report@now")
    assert {record.message for record in caplog.records if "unclaim" in record.message} == set()
    assert "no broker" in caplog.text


INSTANTS = st.floats(0, 4e9)


@given(INSTANTS, st.integers(1, 10**6))
def test_an_instant_is_between_two_multiples_of_an_interval(instant, every):
    before, wait = on_grid(instant, every), until_next(instant, every)
    assert before <= instant < before + every
    assert before % every == 0
    assert 0 < wait <= every


@given(
    st.lists(st.integers(0, 10**7), min_size=1, unique=True).map(sorted),
    st.integers(0, 10**7),
    st.integers(1, 10**7),
)
def test_the_latest_occurrence_is_found_however_long_a_beat_was_down(occurrences, now, down):
    passed = [each for each in occurrences if now - down < each <= now]

    def after(instant):
        return next((each for each in occurrences if each > instant), 10**9)

    if passed:
        assert latest(after, now - down, now) == passed[-1]


def test_a_schedule_with_one_occurrence_is_asked_a_few_times():
    assert latest(lambda _instant: 500.0, 0.0, 1e9) == 500.0


@pytest.mark.parametrize(
    ("name", "due", "key"),
    [
        ("nightly-report", 1_800_000_000, "nightly-report@2027-01-15T08:00:00Z"),
        ("tick", 1_800_000_000.5, "tick@2027-01-15T08:00:00.500000Z"),
    ],
)
def test_the_key_is_the_name_and_the_instant(name, due, key):
    assert due_key(name, due) == key


@given(st.text(), INSTANTS)
def test_whatever_the_name_sqs_takes_its_key(name, due):
    key = due_key(name, due)
    assert 0 < len(key) <= 128
    assert set(key) <= set(string.ascii_letters + string.digits + string.punctuation)


def test_long_names_that_differ_have_keys_that_differ():
    assert len({due_key("x" * 200 + end, 0.0) for end in "ab"}) == 2

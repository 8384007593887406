"""JSON lines: what each has, of odd records, too; and what of Celery's is left out."""

import json
import logging
from collections import UserDict
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from celery import Celery, signals
from celery._state import _task_stack
from celery.app import trace
from celery.worker import state
from support.factories import running

from celery_sqs_visibility import JSONFormatter, VisibilityTask, events, json_logs, log_json
from celery_sqs_visibility.delivery.event_log import Fields, fields_of, listen, log_event
from celery_sqs_visibility.events import DeliveryFacts, Extended, subscribed

FACTS = DeliveryFacts("q", "m1", 2, 0.0, "tasks.add", "id-1", attempt=2)


class Unspeakable:
    """Has no text."""

    def __repr__(self):
        raise RuntimeError("no words")


def add():
    """A task."""


@contextmanager
def current(task):
    """Inside, it runs, as Celery's tracer has it."""
    _task_stack.push(task)
    yield
    _task_stack.pop()


def line_of(msg, *args, exc_info=None, **extra):
    record = logging.getLogger("shop").makeRecord("shop", 30, "f", 1, msg, args, exc_info, extra=extra)
    return json.loads(JSONFormatter().format(record), parse_constant=pytest.fail)


def test_a_line_has_the_sentence_and_the_facts_apart():
    fields = fields_of(FACTS, seconds=60)
    for msg, args in [("message hidden (%s)", (fields,)), ("message %s (%s)", ("hidden", fields))]:
        line = line_of(msg, *args, sqs=fields)
        assert (line["message"], line["seconds"], line["attempt"]) == ("message hidden", 60, 2)
        assert "group" not in line
    assert line["timestamp"].endswith("+00:00")
    assert (line["level"], line["logger"]) == ("WARNING", "shop")


def test_facts_inside_a_sentence_are_printed_there():
    fields = Fields({"queue": "orders"})
    for msg, args in [("%s: cannot be deleted", (fields,)), ("%s of %s stays", ("payload", fields))]:
        assert line_of(msg, *args)["message"] == msg % args
    assert line_of("lost: %s", "all")["message"] == "lost: all"


def test_a_line_of_a_worker_has_the_nodes_name(monkeypatch):
    monkeypatch.setattr(json_logs, "_node", {})
    assert "node" not in line_of("begins")
    signals.celeryd_init.send(sender="celery@shop", instance=None, conf=None, options={})
    assert line_of("begins")["node"] == "celery@shop"


def test_each_life_of_a_worker_begins_with_a_line(caplog):
    with caplog.at_level(logging.INFO, json_logs.OURS):
        signals.celeryd_after_setup.send(sender="celery@shop", instance=None, conf=None)
    assert caplog.messages == [json_logs.WORKER_STARTS]


def test_extras_and_the_exception_are_fields_and_celerys_arguments_are_not():
    with pytest.raises(ValueError, match="sold out") as raised:
        int("sold out")
    info = (raised.type, raised.value, raised.tb)
    line = line_of("bad", exc_info=info, price=7, data={"id": "x", "args": "hush"})
    assert (line["price"], line["exception_type"]) == (7, "ValueError")
    assert line["exception"] == repr(raised.value)
    assert line["traceback"].endswith(f"ValueError: {raised.value}")
    assert line["task_id"] == "x"
    assert "hush" not in str(line)


@pytest.mark.parametrize(
    ("msg", "args", "extra"),
    [
        ("%d %s", ("too few",), {}),
        (Unspeakable(), (), {}),
        ("ok", (), {"price": float("nan")}),
        ("ok", (), {"price": Unspeakable()}),
        ("ok", (), {"price": {(1, 2): 3}}),
        ("ok \ud800", (), {"price": b"\xff"}),
        ("ok", (), {"sqs": 7}),
        ("ok", (), {"sqs": Fields({"task_id": Unspeakable()})}),
        ("%(a)s", ({"b": 1},), {}),
    ],
)
def test_odd_values_make_a_line(msg, args, extra):
    assert "message" in line_of(msg, *args, **extra)


def test_a_value_that_contains_itself_makes_a_line():
    endless = []
    endless.append(endless)
    assert line_of("ok", price=endless)["message"] == "ok"


def test_a_line_in_a_task_has_the_tasks_ids_unless_it_is_about_another_message():
    app = Celery("logs", set_as_current=False, broker="memory://")
    task = app.task(add, name="tasks.add", shared=False, base=VisibilityTask)
    sqs = {"queue": "q", "message_id": "m7", "receive_count": 2}
    with running(task, retries=1, sqs=sqs, id="id-7"), current(task):
        line = line_of("sold")
        celerys = line_of("bad", {"id": "id-7"}, data={"id": "id-7", "name": "tasks.add"})
        other = line_of("message hidden (%s)", fields_of(FACTS), sqs=fields_of(FACTS))
    assert celerys["message_id"] == "m7"
    assert {name: line[name] for name in ("task", "task_id", "message_id", "queue", "attempt")} == {
        "task": "tasks.add",
        "task_id": "id-7",
        "message_id": "m7",
        "queue": "q",
        "attempt": 2,
    }
    assert other["message_id"] == "m1"
    assert "task" not in line_of("sold")


def test_a_line_of_celerys_about_a_request_has_its_message(monkeypatch):
    request = SimpleNamespace(id="id-1", name="tasks.add", delivery=SimpleNamespace(facts=FACTS))
    monkeypatch.setitem(state.requests, "id-1", request)
    line = line_of("Discarding revoked task: %s[%s]", "tasks.add", "id-1")
    assert (line["message_id"], line["attempt"]) == ("m1", 2)
    monkeypatch.delitem(state.requests, "id-1")
    monkeypatch.setattr(json_logs, "last_request", [lambda: request])
    assert line_of("received", {"id": "id-1"}, data={"id": "id-1"})["message_id"] == "m1"
    assert "message_id" not in line_of("received", {"id": "id-2"}, data={"id": "id-2"})


@pytest.fixture
def connected():
    yield
    for signal in (signals.after_setup_logger, signals.after_setup_task_logger):
        signal.disconnect(dispatch_uid="celery_sqs_visibility.json_logs")


@pytest.fixture
def set_up(connected, monkeypatch):
    """Celery sets up its logging; the handler of a logger of ours."""
    ours = logging.getLogger("celery_sqs_visibility")
    level = ours.level
    # pytest's handlers, which it gives the real one, are to keep their formatter.
    of_processes = logging.StreamHandler()
    logger = SimpleNamespace(handlers=[of_processes])
    monkeypatch.setattr(json_logs, "get_multiprocessing_logger", lambda: logger)

    def set_up(**options):
        log_json(**options)
        log_json(**options)
        handler = logging.StreamHandler()
        signals.after_setup_logger.send(sender=None, logger=SimpleNamespace(handlers=[handler]))
        assert isinstance(of_processes.formatter, JSONFormatter)
        return handler

    yield set_up
    ours.setLevel(level)


@pytest.fixture
def nobody_listens():
    before = events._subscriptions
    events._replace_subscriptions(())
    yield
    events._replace_subscriptions(before)


@pytest.mark.parametrize("life_cycle", [True, False])
@pytest.mark.usefixtures("nobody_listens")
def test_the_life_cycle_is_written_in_place_of_celerys_lines(set_up, life_cycle):
    handler = set_up(life_cycle=life_cycle)
    received = logging.makeLogRecord({"msg": trace.LOG_RECEIVED, "args": {"id": "x", "name": "a"}})
    assert isinstance(handler.formatter, JSONFormatter)
    assert len(handler.filters) == life_cycle
    assert handler.filter(received), "on another broker there is no other line of it"
    listen()
    assert subscribed(log_event)
    assert bool(handler.filter(received)) is not life_cycle
    assert handler.filter(logging.makeLogRecord({"msg": "sold"}))
    assert logging.getLogger("celery_sqs_visibility").isEnabledFor(logging.DEBUG) is life_cycle


def test_a_life_cycle_record_is_written_whole(caplog):
    caplog.set_level(logging.DEBUG, logger="celery_sqs_visibility")
    log_event(Extended(FACTS, 60))
    line = json.loads(JSONFormatter().format(caplog.records[-1]))
    assert (line["message"], line["message_id"], line["seconds"]) == ("message extended", "m1", 60)


def test_a_number_that_is_none_leaves_the_others_numbers():
    line = line_of("paid", price=float("nan"), count=3, ratio=0.5, items=[1], sums=[float("inf")])
    assert [line[name] for name in ("price", "count", "ratio", "items", "sums")] == [
        "nan",
        3,
        0.5,
        [1],
        "[inf]",
    ]


@pytest.mark.parametrize("created", [float("nan"), 1e30, None])
def test_a_record_of_no_time_has_that_of_its_line(created):
    record = logging.makeLogRecord({"msg": "x", "created": created})
    assert json.loads(JSONFormatter().format(record))["timestamp"].startswith("20")


def test_a_part_of_a_line_that_cannot_be_made_is_told_in_it():
    class Broken(UserDict):
        def __getitem__(self, _name):
            raise ZeroDivisionError("no value")

    line = line_of("ok", sqs=Broken(task_id="id"))
    assert line["message"] == "ok"
    assert "no value" in line["log_error"]

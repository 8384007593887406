"""A worker pauses and resumes queues by commands of remote control."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from celery import Task
from celery.worker import state
from celery.worker.control import Panel
from support import factories
from support.clock import FakeClock
from support.processes import SOON, wait_until

from celery_sqs_visibility.aws.redrive import RedriveBook
from celery_sqs_visibility.core.delivery import State, Wait
from celery_sqs_visibility.delivery.pump import Pump
from celery_sqs_visibility.delivery.receive.pauses import Pauses
from celery_sqs_visibility.events import DeliveryFacts, Released
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.policy.health import BrakeFacts, PollingFacts
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.transport.receiving import Receiving
from celery_sqs_visibility.worker import control_commands
from celery_sqs_visibility.worker.trail import MAX_TEXT, Trail


class Delivery:
    def __init__(self, queue="q"):
        self.facts = SimpleNamespace(queue=queue, attempt=1, eta=None, sent=SYSTEM_CLOCK.wall() - 64)
        self.began = None


class Request:
    name = "another task"
    visibility_timeout = None
    id = "an id"

    def __init__(self, delivery=None):
        self.delivery = delivery or Delivery()


class Batched(Task):
    Strategy = "a strategy of its own"


class QueueConsumer:
    """Consumes two queues; two messages of the first are held, one of which runs."""

    def __init__(self):
        self.noticed, self.unstarted = [], [Delivery()]
        self.asked_of = []  # queues whose waiting messages were to be given back
        self.runs = Request()

    def held(self):
        return [self.runs.delivery, *self.unstarted]

    def consumed(self):
        return ["q", "other"]

    def polling_facts(self, _now):
        return [PollingFacts("q", hidden=3)]

    def notice_pause(self, queue):
        self.noticed.append(queue)

    def give_back_unstarted(self, queue):
        self.asked_of.append(queue)
        given_back, self.unstarted = self.unstarted, []
        return given_back


@pytest.fixture
def consumer():
    return QueueConsumer()


@pytest.fixture
def panel(consumer):
    """Call a command as Celery's pidbox does; `panel.context` is the worker's."""
    receiving = Receiving(Options.parse({}), None, None, Pump(FakeClock()), None)
    receiving.pauses, receiving.paused_tasks = Pauses(FakeClock()), Pauses(FakeClock())
    receiving.worker_queue_consumers.add(consumer)
    context = SimpleNamespace(receiving=receiving)
    celerys = SimpleNamespace(
        pool=SimpleNamespace(limit=4, uses_semaphore=False),
        controller=None,
        conninfo=SimpleNamespace(transport=SimpleNamespace(context=context)),
    )
    state.active_requests.add(consumer.runs)

    def call(command, **arguments):
        app = SimpleNamespace(tasks={"task": Task(), "batched": Batched()})
        return Panel.data[command](SimpleNamespace(consumer=celerys, app=app), **arguments)

    call.context, call.pool, call.consumer = context, celerys.pool, consumer
    return call


def test_a_worker_pauses_a_queue_gives_back_what_waits_and_tells(panel, consumer, caplog):
    caplog.set_level("INFO")
    answer = panel("sqs_pause", queue="q", seconds=60)
    assert answer == {
        "ok": {
            "paused": True,
            "seconds_left": 60.0,
            "kept": False,
            "rests": False,
            "held": 2,
            "hidden": 3,
            "running": 1,
        }
    }
    wait_until(lambda: not consumer.unstarted, SOON, "what waits to be given back")
    queues = panel("sqs_queues")["queues"]
    assert queues["q"] == {**answer["ok"], "held": 1, "waited": None}
    nothing = {"held": 0, "hidden": 0, "running": 0, "waited": None}
    assert queues["other"] == {
        "paused": False,
        "seconds_left": None,
        "kept": False,
        "rests": False,
        **nothing,
    }
    assert (consumer.noticed, consumer.asked_of) == (["q"], ["q"])
    assert "queue 'q' is paused for 60 s" in caplog.text


def test_a_worker_tells_that_a_pause_is_kept(panel, caplog):
    caplog.set_level("INFO")
    assert panel("sqs_pause", queue="q", kept=True)["ok"]["kept"]
    assert panel("sqs_queues")["queues"]["q"]["kept"]
    assert "until it is resumed; a worker that starts meanwhile does not poll it either" in caplog.text
    panel("sqs_resume", queue="q")
    assert not panel("sqs_queues")["queues"]["q"]["kept"]


def test_the_queues_tell_how_long_a_first_attempt_that_runs_waited(system_clock, panel, consumer):
    consumer.runs.delivery.began = system_clock.monotonic()
    assert panel("sqs_queues")["queues"]["q"]["waited"] == 64
    consumer.runs.delivery.facts.eta = system_clock.wall() - 2
    assert panel("sqs_queues")["queues"]["q"]["waited"] == 2, "after its ETA"
    consumer.runs.delivery.facts.attempt = 2
    assert panel("sqs_queues")["queues"]["q"]["waited"] is None, "a retry waits for as long as it should"


def test_a_pause_that_cannot_tell_how_the_queue_is_changes_nothing(panel, consumer):
    consumer.held = None
    with pytest.raises(TypeError):
        panel("sqs_pause", queue="q")
    assert panel.context.receiving.pauses.get("q") is None


def test_where_there_is_no_thread_the_answer_says_that_nothing_was_given_back(panel, monkeypatch):
    monkeypatch.setattr(control_commands, "start_thread", lambda *_: None)
    assert "the queue is paused all the same" in panel("sqs_pause", queue="q")["error"]
    assert panel.context.receiving.pauses.get("q")


def test_resuming_twice_is_harmless(panel, consumer, caplog):
    caplog.set_level("INFO")
    assert panel("sqs_pause", queue="q")["ok"]["seconds_left"] is None
    assert [panel("sqs_resume", queue="q") for _ in range(2)] == [
        {"ok": {"was_paused": True}},
        {"ok": {"was_paused": False}},
    ]
    assert not panel("sqs_queues")["queues"]["q"]["paused"]
    assert "queue 'q' is paused until it is resumed" in caplog.text


def test_a_worker_pauses_a_task_tells_and_resumes_it(panel, consumer, caplog):
    caplog.set_level("INFO")
    consumer.runs.name = "task"
    assert panel("sqs_pause_task", task="task", seconds=60) == {"ok": {"seconds_left": 60, "running": 1}}
    assert panel("sqs_queues")["paused_tasks"] == {"task": 60.0}
    assert panel("sqs_pause_task", task="task") == {"ok": {"seconds_left": None, "running": 1}}
    assert panel("sqs_queues")["paused_tasks"] == {"task": None}
    assert [panel("sqs_resume_task", task="task") for _ in range(2)] == [
        {"ok": {"was_paused": True}},
        {"ok": {"was_paused": False}},
    ]
    assert panel("sqs_queues")["paused_tasks"] == {}
    assert "task 'task' is paused for 60 s" in caplog.text
    assert "task 'task' is paused until it is resumed" in caplog.text
    assert caplog.text.count("task 'task' is resumed") == 1


@pytest.mark.parametrize("command", ["sqs_pause_task", "sqs_resume_task"])
def test_a_task_that_the_worker_does_not_have_is_refused(panel, command):
    assert panel(command, task="tusk") == {"error": "has no task 'tusk'", "task": "tusk"}
    assert panel.context.receiving.paused_tasks.all() == {}


def test_a_task_that_collects_its_messages_is_not_paused(panel):
    assert "pause its queue" in panel("sqs_pause_task", task="batched")["error"]
    assert panel.context.receiving.paused_tasks.all() == {}


@pytest.mark.parametrize("command", ["sqs_pause", "sqs_resume"])
def test_a_queue_that_is_not_consumed_is_refused_with_those_that_are(panel, command):
    answer = panel(command, queue="qq")
    assert "not 'qq'" in answer["error"]
    assert answer["queues"] == ["other", "q"]
    assert panel.context.receiving.pauses.get("qq") is None


def test_the_commands_have_help_for_celery_control():
    for name in ("sqs_pause", "sqs_resume", "sqs_pause_task", "sqs_resume_task", "sqs_queues", "sqs_held"):
        assert Panel.meta[name].help == getattr(control_commands, name).__doc__.splitlines()[0]


def test_what_waits_is_given_back_by_a_thread_that_has_the_queues_name(panel, monkeypatch):
    names = []
    monkeypatch.setattr(control_commands, "start_thread", lambda _act, name, *_: names.append(name) or name)
    assert "ok" in panel("sqs_pause", queue="q")
    assert names == ["sqs-pause-q"]


@pytest.fixture
def holding(panel, consumer, monkeypatch):
    """A worker with three real deliveries: of the first a run goes on, the last is acknowledged early."""
    sqs = factories.FakeSQS(FakeClock())
    queue = factories.queue(sqs, "q")
    holder = SimpleNamespace(redrive=RedriveBook())
    runs, waits, early = (
        factories.delivery(queue, holder, handle=name, message_id=name, task_id=name, received=received)
        for name, received in (("runs", 100.0), ("waits", 50.0), ("early", 150.0))
    )
    runs.state, early.state, early.acknowledged_early = State.RUNNING, State.SETTLED, True
    consumer.held = lambda: [runs, waits]
    consumer.capacity = SimpleNamespace(usual_run_seconds=3.0)
    panel.context.options = Options.parse({"shutdown_timeout": 7})
    state.active_requests.discard(consumer.runs)
    panel.requests = [Request(runs), Request(early)]
    for request in panel.requests:
        request.time_limits, request.task = (None, None), SimpleNamespace(time_limit=None)
        state.active_requests.add(request)
    yield panel
    state.active_requests.difference_update(panel.requests)


def test_what_is_held_is_told_the_longest_first_with_runs_that_were_acknowledged_early(holding):
    answer = holding("sqs_held")
    assert [each["task_id"] for each in answer["held"]] == ["waits", "runs", "early"]
    assert (answer["messages"], answer["runs_have"], answer["usual_run_seconds"]) == (3, 7, 3.0)
    assert "history" not in answer
    assert [each["task_id"] for each in holding("sqs_held", limit=1)["held"]] == ["waits"]
    assert holding("sqs_held", limit=1)["messages"] == 3
    json.dumps(answer)


def test_what_waits_for_a_paused_task_says_so(holding):
    holding.context.receiving.paused_tasks.pause("task")
    waits = next(each for each in holding.consumer.held() if each.facts.task_id == "waits")
    waits.wait, waits.facts = Wait.START, replace(waits.facts, task="task")
    (told,) = holding("sqs_held", task_id="waits")["held"]
    assert told["waits_for"] == "resume"


BRAKES = [
    BrakeFacts("bank", "on", 12.0, 3, 2, "Down()", ("pay", "refund")),
    BrakeFacts("mail", "off", 0.0, 1, 0, "", ("send",)),
]


def test_what_waits_for_a_brake_says_so(holding):
    holding.context.receiving.brakes = lambda: BRAKES
    waits = next(each for each in holding.consumer.held() if each.facts.task_id == "waits")
    waits.wait = Wait.START
    told = []
    for task in ("refund", "send", None):
        waits.facts = replace(waits.facts, task=task)
        told += [each["waits_for"] for each in holding("sqs_held", task_id="waits")["held"]]
    assert told == ["brake 'bank'", "eta or rate", "eta or rate"]


def test_brakes_that_are_not_off_are_told(panel):
    panel.context.receiving.brakes = lambda: BRAKES
    (told,) = panel("sqs_queues")["brakes"]
    assert (told["brake"], told["stage"], told["waiting"]) == ("bank", "on", 2)
    long = replace(BRAKES[0], error="Down" * MAX_TEXT)
    panel.context.receiving.brakes = lambda: [long]
    (told,) = panel("sqs_queues")["brakes"]
    assert len(told["error"]) == MAX_TEXT


def test_a_queue_that_rests_is_told(panel):
    assert [each["rests"] for each in panel("sqs_queues")["queues"].values()] == [False, False]
    panel.context.receiving.pauses.rests["q"] = 20.0
    assert panel("sqs_queues")["queues"]["q"]["rests"]
    assert not panel("sqs_queues")["queues"]["q"]["paused"]
    del panel.context.receiving.pauses.rests["q"]
    assert not panel("sqs_queues")["queues"]["q"]["rests"]


def test_of_one_task_its_history_is_told_too(holding, monkeypatch):
    monkeypatch.setattr(control_commands, "TRAIL", trail := Trail(FakeClock()))
    trail.note(Released(DeliveryFacts("q", "m", 1, 0.0, task_id="runs")))
    answer = holding("sqs_held", task_id="runs")
    assert [each["task_id"] for each in answer["held"]] == ["runs"]
    assert [each["message"] for each in answer["history"]] == ["message released"]
    assert holding("sqs_held", task_id="never") == {
        **answer,
        "messages": 0,
        "held": [],
        "history": [],
    }


def test_a_time_limit_counts_where_the_pool_keeps_it(holding):
    runs = holding.requests[0]
    runs.time_limits = (5, None)
    runs.delivery.began = SYSTEM_CLOCK.monotonic() - 1_000
    pool = holding.pool
    (told,) = holding("sqs_held", task_id="runs")["held"]
    assert told["at_sigterm"] == "runs again"
    pool.uses_semaphore = True
    (told,) = holding("sqs_held", task_id="runs")["held"]
    assert told["at_sigterm"] == "ends in time"

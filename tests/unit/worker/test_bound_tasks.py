"""A task that is registered after the worker's start is bound when Celery learns of it, or is not run."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import pytest
from celery import Celery, Task
from celery.exceptions import ImproperlyConfigured
from celery.worker.request import Request
from support.aws_events import eventbridge, s3_notification
from support.clock import FakeClock
from support.factories import noop, sqs_queue
from support.processes import SOON, wait_until

from celery_sqs_visibility.delivery.pump import Pump
from celery_sqs_visibility.delivery.receive.pauses import Pauses
from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.policy.option_parsers import CALLABLE
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.stores.memory import MemoryStore
from celery_sqs_visibility.task.base import VisibilityTask
from celery_sqs_visibility.transport.codec import decode_message
from celery_sqs_visibility.worker import BOOTSTEPS, add_bootsteps, brakes
from celery_sqs_visibility.worker import bound_tasks as module
from celery_sqs_visibility.worker.bound_tasks import BoundTasks, bind_request_class, take_events
from celery_sqs_visibility.worker.braked_request import BrakedRequest
from celery_sqs_visibility.worker.exclusive_request import open_store
from celery_sqs_visibility.worker.key_leases import KeyLeases
from celery_sqs_visibility.worker.request import DeliveryRequest
from celery_sqs_visibility.worker.visibility_request import VisibilityRequest
from celery_sqs_visibility.worker.worker_context import WorkerContext


class World:
    def __init__(self, app):
        self.app = app
        self.learned = []
        self.worker = WorkerContext()
        self.context = SimpleNamespace(
            options=Options.parse({"when_lost": "terminate"}),
            coordination_store=None,
            release_keys=None,
            decode_for_worker=None,
        )
        self.consumer = SimpleNamespace(app=app, strategies={}, update_strategies=self.learn)
        self.bound = BoundTasks(self.consumer, self.worker, self.context)

    def learn(self):
        """Celery's own."""
        self.learned.append(1)
        self.consumer.strategies = dict.fromkeys(self.app.tasks, "strategy")

    def register(self, name, **options):
        self.app.task(noop, name=name, shared=False, **options)
        return self.app.tasks[name]

    def is_bound(self, name):
        return getattr(self.app.tasks[name].Request, "worker", None) is self.worker


@pytest.fixture
def world(app):
    app.finalized = True  # without the shared tasks that other modules have left
    return World(app)


@pytest.fixture
def starts(monkeypatch):
    """The starts of key leases, where there is a store."""
    starts = []
    monkeypatch.setattr(KeyLeases, "start", lambda _: starts.append(1))

    def open_leases(_context, tasks):
        exclusive = [each for each in tasks if getattr(each, "exclusive", False)]
        return KeyLeases(MemoryStore(), Pump(FakeClock())) if exclusive else None

    monkeypatch.setattr(module, "open_key_leases", open_leases)
    return starts


def test_all_tasks_are_bound_at_the_start_and_a_later_one_when_celery_learns_of_it(world):
    world.register("early")
    world.bound.bind()
    assert world.is_bound("early")
    world.register("late")
    assert not world.is_bound("late")
    world.consumer.update_strategies()
    assert world.is_bound("late")
    assert issubclass(world.app.tasks["late"].Request, DeliveryRequest)
    assert world.consumer.strategies["late"] == "strategy"
    assert world.learned == [1]


def test_a_task_is_bound_once(world):
    task = world.register("task")
    world.bound.bind()
    request = task.Request
    world.consumer.update_strategies()
    assert task.Request is request


def test_a_task_that_cannot_be_run_as_it_says_ends_the_start(world):
    world.register("wrong", error_visibility_timeout=[1])
    with pytest.raises(ImproperlyConfigured):
        world.bound.bind()


def test_a_later_task_that_cannot_be_run_as_it_says_stays_unknown_and_is_told_once(world, caplog):
    world.bound.bind()
    wrong = world.register("wrong", error_visibility_timeout=[1])
    for _ in range(2):
        world.consumer.update_strategies()
        assert "wrong" not in world.consumer.strategies
    assert caplog.text.count("a task that was registered after the worker's start is not run") == 1
    assert not world.is_bound("wrong")
    del type(wrong).error_visibility_timeout
    world.consumer.update_strategies()
    assert "wrong" in world.consumer.strategies
    assert world.is_bound("wrong")


def test_a_later_task_that_takes_events_of_aws_is_told_that_it_gets_none(world, caplog):
    world.bound.bind()
    world.register("events", base=VisibilityTask, sqs_event="s3:ObjectCreated:*")
    world.register("plain", base=VisibilityTask)
    world.consumer.update_strategies()
    (line,) = caplog.messages
    assert "takes events of AWS from its next start on" in line
    assert world.is_bound("events")


def test_keys_are_opened_for_the_first_exclusive_task_and_their_release_is_the_drains(world, starts):
    world.bound.bind()
    assert (starts, world.worker.key_leases, world.context.release_keys) == ([], None, None)
    for name in ("one", "two"):
        world.register(name, base=VisibilityTask, exclusive=True)
        world.consumer.update_strategies()
    assert starts == [1]
    assert world.context.release_keys == world.worker.key_leases.release_all


def test_brakes_are_opened_for_the_first_task_that_has_one(world, monkeypatch):
    opened = []
    monkeypatch.setattr(brakes, "Brakes", lambda *given: opened.append(given) or "brakes")
    world.worker.waiting = "waiting"
    world.bound.bind()
    world.register("plain", base=VisibilityTask)
    world.consumer.update_strategies()
    assert world.worker.brakes is None
    for name in ("one", "two"):
        world.register(name, base=VisibilityTask, brake_on=(OSError,))
        world.consumer.update_strategies()
    assert opened == [("waiting", world.context, None)]
    assert world.worker.brakes == "brakes"
    assert issubclass(world.app.tasks["one"].Request, BrakedRequest)
    assert not issubclass(world.app.tasks["plain"].Request, BrakedRequest)


def test_a_task_that_collects_takes_no_brake(world):
    world.register("collects", base=VisibilityTask, Strategy="its own", brake_on=(OSError,))
    with pytest.raises(ImproperlyConfigured, match=r"'collects' has brake_on=.* Remove brake_on"):
        world.bound.bind()


def test_brakes_share_the_store_that_the_options_name(world, caplog):
    world.context.coordination_store, world.context.pump = MemoryStore(), Pump()
    world.context.coordination_store.acquire("brake:bank", "another worker", 60)
    world.context.receiving = SimpleNamespace(brakes=None, pauses=Pauses())
    world.worker.waiting = "waiting"
    world.register("braked", base=VisibilityTask, brake_on=(OSError,))
    world.bound.bind()
    opened = world.worker.brakes
    opened.end("bank", opened.line("bank").brake.start(0.0), failed=True, error="Down()")
    wait_until(lambda: "brake 'bank' is applied" in caplog.text, SOON, "the answer of the store")
    opened.close()
    assert [each.stage for each in world.context.receiving.brakes()] == ["on"]


def test_a_store_that_cannot_be_opened_ends_the_start():
    class Context:
        @property
        def coordination_store(self):
            raise OptionError("redis is not installed")

    with pytest.raises(ImproperlyConfigured, match="redis is not installed"):
        open_store(Context())


def test_a_worker_with_a_task_that_collects_knows_it(world):
    world.bound.bind()
    world.register("plain")
    world.consumer.update_strategies()
    assert not world.worker.collects
    world.register("collects", Strategy="its own")
    world.consumer.update_strategies()
    world.register("another")
    world.consumer.update_strategies()
    assert world.worker.collects


def test_the_transports_when_lost_is_for_tasks_that_say_nothing(world):
    theirs, silent = (
        world.register(name, base=VisibilityTask, **own)
        for name, own in (("theirs", {"when_lost": "continue"}), ("silent", {}))
    )
    world.bound.bind()
    assert (theirs.Request.ends_when_lost, silent.Request.ends_when_lost) == (False, True)


def test_bootsteps_are_added_to_an_apps_workers(app):
    app.steps["consumer"].clear()
    add_bootsteps(app)
    assert app.steps["consumer"] == set(BOOTSTEPS)


def run(event):
    pass


def adapt(body, attributes):
    return "adapted", [body], {}


NOT_CALLABLE = 5


@pytest.fixture
def take():
    """Make the decoder of a worker with these tasks and options; `None` if it needs none."""
    apps = []

    def take(tasks, **options):
        app = Celery("events", set_as_current=False, task_cls=VisibilityTask)
        apps.append(app)
        made = [app.task(name=name, shared=False, lazy=False, **each)(run) for name, each in tasks.items()]
        # Alone: an app has the shared tasks of all modules that this process has imported, too.
        alone = SimpleNamespace(tasks={task.name: task for task in made})
        context = SimpleNamespace(
            options=Options.parse(options),
            attribute_names=("All",),
            decode_message=decode_message,
            decode_for_worker=None,
        )
        take_events(alone, context)
        return context.decode_for_worker

    yield take
    for app in apps:
        app.close()


def task_of(decode, body):
    message = {"MessageId": "m", "ReceiptHandle": "h", "Body": json.dumps(body), "Attributes": {}}
    return decode(sqs_queue(), message).task


def test_a_worker_whose_tasks_take_no_events_decodes_as_ever(take):
    assert take({"plain": {}}) is None


def test_tasks_and_adapter_take_messages(take):
    decode = take({"imports": {"sqs_event": ["s3:*", "sns:t"]}}, message_adapter=f"{__name__}:adapt")
    assert task_of(decode, s3_notification()) == "imports"
    assert task_of(decode, eventbridge()) == "adapted"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"message_adapter": f"{__name__}:missing"},
            f"expected message_adapter to be {re.escape(CALLABLE)}, got .* which cannot be imported: module",
        ),
        ({"message_adapter": f"{__name__}:NOT_CALLABLE"}, "NOT_CALLABLE', which is 5"),
    ],
)
def test_an_adapter_that_is_none_is_refused(take, options, sentence):
    with pytest.raises(ImproperlyConfigured, match=sentence):
        take({}, **options)


def test_two_tasks_for_one_event_are_refused(take):
    with pytest.raises(ImproperlyConfigured, match="the tasks 'one' and 'two' both have sqs_event='s3:\\*'"):
        take({"one": {"sqs_event": "s3:*"}, "two": {"sqs_event": "s3:*"}})


@pytest.mark.parametrize("setting", [{"sqs_event": "ObjectCreated"}, {"sqs_event_per": "batch"}])
def test_a_wrong_setting_is_refused_with_its_task(take, setting):
    (name,) = setting
    with pytest.raises(ImproperlyConfigured, match=f"task 'wrong': expected {name} to be"):
        take({"wrong": setting})


class UsersRequest(Request):
    """Knows nothing of SQS."""


class UsersVisibilityRequest(VisibilityRequest):
    """Of a task that does."""


@pytest.mark.parametrize(
    ("base", "theirs", "bases"),
    [
        (Task, Task.Request, [DeliveryRequest]),
        (VisibilityTask, VisibilityTask.Request, [VisibilityRequest]),
        (Task, UsersRequest, [UsersRequest, DeliveryRequest]),
        (VisibilityTask, UsersRequest, [UsersRequest, VisibilityRequest]),
        (VisibilityTask, UsersVisibilityRequest, [UsersVisibilityRequest]),
    ],
)
def test_a_tasks_request_class_is_ours_or_mixed_with_it_and_bound_to_the_latest_worker(base, theirs, bases):
    task = base()
    task.Request = theirs
    for worker in (WorkerContext(), WorkerContext()):
        bind_request_class(task, worker)
        assert task.Request.worker is worker
        assert [each for each in task.Request.__mro__ if each in bases] == bases
    assert len(task.Request.__mro__) <= len(bases) + len(VisibilityRequest.__mro__) + 1

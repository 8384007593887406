"""A run of an exclusive task, in the pool's child: whether it takes place, and what it leaves."""

import math
import pickle
import uuid
from contextlib import suppress
from types import SimpleNamespace

import pytest
from celery import Celery, states
from support.factories import trace

from celery_sqs_visibility import VisibilityLostError, VisibilityTask
from celery_sqs_visibility.delivery import lease_table
from celery_sqs_visibility.errors import ExclusiveKeyError, StoreError
from celery_sqs_visibility.policy.exclusive import CHECKPOINT_BYTES, TTL_SECONDS
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.stores.guarded import GuardedStore
from celery_sqs_visibility.stores.memory import MemoryStore
from celery_sqs_visibility.stores.port import Acquired, Processed, Processing
from celery_sqs_visibility.task import exclusive
from celery_sqs_visibility.task.exclusive import NotRun, Spent, broker_context, exclusive_key

KEY = "one:a"
OWNERSHIP = {"key": KEY, "owner": "run", "error": "", "published_retries": 0, "spent": False}


def nothing(*args, **kwargs):
    """A task."""


@pytest.fixture
def store(monkeypatch, clock):
    store = MemoryStore(clock)
    context = SimpleNamespace(options=Options.parse({}), coordination_store=store)
    monkeypatch.setattr(exclusive, "broker_context", lambda _app: context)
    return store


@pytest.fixture
def lease(monkeypatch, leases, system_clock):
    monkeypatch.setattr(lease_table, "lease_table", lambda: leases)
    return leases.take(system_clock.monotonic() + 30, lambda _until: None)


@pytest.fixture
def make(app, store, lease):
    """`make(body)`: what runs the task; its record and its result."""

    def make(body, **options):
        @app.task(bind=True, name="one", shared=False, exclusive=True, **options)
        def task(self):
            return body(self)

        task_id = uuid.uuid4().hex

        def run(**request):
            given = {"visibility_exclusive": OWNERSHIP, "visibility_lease": lease.key, **request}
            return trace(task, id=task_id, **given)

        return SimpleNamespace(
            run=run, state=lambda: app.backend.get_state(task_id), task=task, task_id=task_id
        )

    return make


def refusal(traced):
    assert traced.info.state == states.REJECTED
    return traced.info.retval.why


def test_a_success_is_processed_for_the_time_to_live(make, store, clock):
    made = make(lambda self: 42)
    assert made.run().info is None
    assert store.acquire(KEY, "other", 1) == Processed()
    clock.advance(TTL_SECONDS + 1)
    assert isinstance(store.acquire(KEY, "other", 1), Acquired)


def test_a_tasks_own_time_to_live_goes_first(make, store, clock):
    make(lambda self: 42, exclusive_ttl=5).run()
    clock.advance(6)
    assert isinstance(store.acquire(KEY, "other", 1), Acquired)


def test_a_success_is_processed_only_once_its_result_is_stored(make, store, monkeypatch):
    made = make(lambda self: 42)
    finish, seen = store.finish, []
    monkeypatch.setattr(store, "finish", lambda *args: seen.append(made.state()) or finish(*args))
    made.run()
    assert seen == [states.SUCCESS]


@pytest.mark.parametrize("state", [Processing(30.0, "other"), Processed()])
def test_a_key_that_is_not_free_leaves_no_trace_of_the_run(make, store, state):
    store.acquire(KEY, "other", 30)
    if state == Processed():
        store.finish(KEY, "other", 100)
    made = make(lambda self: pytest.fail("it ran"))
    assert refusal(made.run()) == state
    assert made.state() == states.PENDING


@pytest.mark.parametrize("error", [StoreError("it is down"), RuntimeError("a bug")])
def test_a_store_that_does_not_answer_runs_nothing(make, store, monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(store, "acquire", fail)
    assert str(error) in refusal(make(lambda self: pytest.fail("it ran")).run())


def test_a_store_that_is_silent_for_the_worker_is_not_asked_until_it_answers_the_worker(
    make, store, system_clock, monkeypatch
):
    started = []
    guarded = GuardedStore(store, lambda target, _name: started.append(target) or object())
    monkeypatch.setattr(exclusive.broker_context(None), "coordination_store", guarded)
    table, asked = lease_table.lease_table(), []
    monkeypatch.setattr(store, "acquire", lambda *args: asked.append(args) or Acquired())
    made = make(lambda self: 42)
    table.tell_of_store(math.inf)
    assert "not asked again until it answers" in refusal(made.run())
    guarded.unanswered("no answer here either", system_clock.monotonic())
    assert "no answer here either" in refusal(made.run())
    assert asked == []
    system_clock.advance(1)
    table.tell_of_store(system_clock.monotonic())
    assert made.run().info is None
    assert len(asked) == 1


def test_a_failure_frees_the_key_and_keeps_the_checkpoint(make, store, lease):
    def body(self):
        seen.append(self.visibility.last_checkpoint)
        self.visibility.checkpoint({"page": 7})
        assert self.visibility.last_checkpoint == {"page": 7}
        assert lease.holds_key
        raise ValueError

    seen = []
    made = make(body)
    assert made.run().info.state == states.RETRY
    assert not lease.holds_key
    made.run(visibility_exclusive={**OWNERSHIP, "owner": "second run"})
    assert seen == [None, {"page": 7}]


def test_a_run_that_goes_on_later_frees_the_key_for_its_continuation_with_the_checkpoint(
    make, app, store, lease, monkeypatch
):
    def body(self):
        seen.append(self.visibility.last_checkpoint)
        if self.visibility.last_checkpoint is None:
            self.visibility.checkpoint(7)
            self.visibility.continue_later()

    def send_task(*args, **options):  # an idle worker has it before the run is over
        sent.append((options["task_id"], store.acquire(KEY, "continuation", 30)))
        return publish(*args, **options)

    seen, sent, publish = [], [], app.send_task
    monkeypatch.setattr(app, "send_task", send_task)
    made = make(body)
    assert made.run().info.state == states.RETRY
    assert (sent, lease.holds_key) == ([(made.task_id, Acquired(7))], False)
    assert made.run(visibility_exclusive={**OWNERSHIP, "owner": "continuation"}).info is None
    assert seen == [None, 7]


@pytest.mark.parametrize(
    ("succeed", "state"),
    [
        (lambda self: self.retry(args=[]), states.RETRY),
        (lambda self: self.replace(self.s()), states.IGNORED),
    ],
    ids=["retry", "replace"],
)
def test_a_run_frees_the_key_before_the_message_of_its_successor_is_sent(
    make, app, store, monkeypatch, succeed, state
):
    def send_task(*args, **options):
        sent.append(store.acquire(KEY, "successor", 30))
        return publish(*args, **options)

    sent, publish = [], app.send_task
    monkeypatch.setattr(app, "send_task", send_task)
    assert make(succeed).run().info.state == state
    assert sent == [Acquired()]


def test_a_successor_that_cannot_be_sent_leaves_the_run_a_failed_attempt_with_its_checkpoint(
    make, app, store, monkeypatch
):
    def body(self):
        self.visibility.checkpoint(7)
        self.visibility.continue_later()

    def fail(*_args, **_options):
        raise OSError("SQS is down")

    monkeypatch.setattr(app, "send_task", fail)
    info = make(body, error_visibility_timeout=60).run().info
    assert (info.state, info.retval.delay) == (states.RETRY, 60)
    assert store.acquire(KEY, "next attempt", 30) == Acquired(7)


@pytest.mark.parametrize(("retries", "options"), [(0, {"throw": False}), (3, {})])
def test_a_run_that_goes_on_after_its_retry_keeps_the_key(make, app, store, monkeypatch, retries, options):
    def body(self):
        with suppress(self.MaxRetriesExceededError):
            self.retry(args=[], **options)

    monkeypatch.setattr(app, "send_task", nothing)
    assert make(body).run(retries=retries).info is None
    assert store.acquire(KEY, "other", 1) == Processed()


@pytest.mark.parametrize(
    ("runs", "spent", "takes_place"), [(4, True, True), (5, True, False), (5, False, True), (0, True, True)]
)
def test_only_the_key_says_that_the_runs_before_were_lost(
    make, store, lease, clock, runs, spent, takes_place
):
    """Of a message that was received often, while its result is STARTED; the task has one retry."""
    for number in range(runs):
        store.acquire(KEY, f"m/{number}", 1.0)
        clock.advance(1)
    seen = []
    made = make(lambda self: seen.append(self.request.retries), max_retries=1)
    traced = made.run(
        retries=40, visibility_exclusive={**OWNERSHIP, "owner": "m/last", "spent": spent}, lease=lease.key
    )
    if takes_place:
        assert seen == [runs or 40]
        assert lease.retries == seen[0]
    else:
        assert refusal(traced) == Spent()
        assert isinstance(store.acquire(KEY, "other", 1), Acquired), "its key is free"


def test_a_greenlet_that_is_killed_frees_the_key_itself(make, store):
    def body(self):
        raise KeyboardInterrupt  # as GreenletExit, no Exception

    with pytest.raises(KeyboardInterrupt):
        make(body).run()
    assert isinstance(store.acquire(KEY, "other", 1), Acquired)


@pytest.fixture
def lose_records(store, clock):
    """Have the store restart, as a Redis without persistence."""
    return lambda: MemoryStore.__init__(store, clock)


def test_a_run_whose_record_the_store_has_lost_saves_and_finishes(make, store, lose_records):
    def body(self):
        lose_records()
        self.visibility.checkpoint("half")
        assert self.visibility.last_checkpoint == "half"
        other = store.acquire(KEY, "other", 1)
        assert other.owner == "run"
        assert other.seconds == 30, "as long as its message is hidden"
        lose_records()

    make(body).run()
    assert store.acquire(KEY, "other", 1) == Processed()


def test_what_a_run_saves_after_the_store_has_lost_its_record_is_the_next_attempts(make, store, lose_records):
    def body(self):
        lose_records()
        self.visibility.checkpoint("half")
        raise ValueError

    make(body).run()
    assert store.acquire(KEY, "other", 1) == Acquired("half")


@pytest.mark.parametrize("lost", ["its lease has lapsed", "the store has lost its record"])
def test_a_run_whose_key_another_has_taken_saves_and_finishes_nothing(
    make, store, clock, lose_records, caplog, lost
):
    def body(self):
        clock.advance(31) if lost == "its lease has lapsed" else lose_records()
        store.acquire(KEY, "thief", 60)
        with pytest.raises(VisibilityLostError, match="'one:a'"):
            self.visibility.checkpoint(1)

    make(body).run()
    assert store.acquire(KEY, "third", 1).owner == "thief"
    assert "was lost before its run succeeded" in caplog.text


def test_a_run_without_a_lease_finishes_after_the_store_has_lost_its_record(make, store, lose_records):
    make(lambda _self: lose_records()).run(visibility_lease=None)
    assert store.acquire(KEY, "other", 1) == Processed()


def test_the_key_is_leased_until_the_message_is_visible_extensions_included(make, store, lease, monkeypatch):
    def acquire(*args):
        lease.deadline += 60  # meanwhile, the heartbeat has extended the message
        return acquired(*args)

    acquired = store.acquire
    monkeypatch.setattr(store, "acquire", acquire)

    def body(self):
        assert acquired(KEY, "other", 1).seconds == 90

    assert make(body).run().info is None


def test_an_end_that_cannot_be_noted_is_logged_and_changes_nothing(make, store, monkeypatch, caplog):
    def fail(*_):
        raise StoreError("it is down")

    monkeypatch.setattr(store, "finish", fail)
    assert make(lambda self: 42).run().info is None
    assert "was not noted, and a duplicate may run again: it is down" in caplog.text


def test_a_checkpoint_is_no_place_for_data(make):
    def body(self):
        with pytest.raises(ValueError, match=f"at most {CHECKPOINT_BYTES} bytes"):
            self.visibility.checkpoint("x" * CHECKPOINT_BYTES)

    assert make(body).run().info is None


def test_only_exclusive_tasks_have_checkpoints_and_elsewhere_none_is_kept(app):
    @app.task(bind=True, shared=False)
    def plain(self):
        self.visibility.checkpoint(1)
        return self.visibility.last_checkpoint

    assert plain() is None
    with pytest.raises(RuntimeError, match="give it exclusive=True"):
        raise trace(plain).info.retval.exc


def test_called_directly_or_eagerly_a_task_is_not_exclusive(make, store):
    store.acquire(KEY, "other", 30)
    made = make(lambda self: 42)
    assert made.task() == made.task.apply().get() == 42


def test_without_a_key_the_attempt_fails(make):
    traced = make(lambda self: pytest.fail("it ran")).run(
        visibility_exclusive={**OWNERSHIP, "error": "no key"}
    )
    assert traced.info.state == states.RETRY
    assert isinstance(traced.info.retval.exc, ExclusiveKeyError)


@pytest.mark.parametrize("why", [Processing(1.5, "m/run"), Processed(), "the store is down"])
def test_a_refusal_can_be_pickled(why):
    assert pickle.loads(pickle.dumps(NotRun(why))).why == why


class WithMethod(VisibilityTask):
    abstract = True

    def exclusive(self, args, kwargs):
        return f"{self.name} {args[0]}"


class WithStatic(VisibilityTask):
    abstract = True
    exclusive = staticmethod(lambda args, kwargs: kwargs["b"])


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"exclusive": True}, "named:task-id"),
        ({"exclusive": lambda args, kwargs: args[0] + kwargs["b"]}, "named:ab"),
        ({"exclusive": lambda args, kwargs: 7}, "named:7"),
        ({"base": WithMethod}, "named:named a"),
        ({"base": WithStatic}, "named:b"),
    ],
)
def test_a_key_is_the_tasks_id_or_made_of_its_arguments(app, options, key):
    task = app.task(name="named", shared=False, **options)(nothing)
    app.finalize()
    assert exclusive_key(app.tasks["named"], "task-id", ["a"], {"b": "b"}) == key
    assert task.exclusive


def test_a_callable_that_makes_no_key_is_named_with_what_it_returned(app):
    app.task(name="named", shared=False, exclusive=lambda args, kwargs: None)(nothing)
    app.finalize()
    with pytest.raises(ExclusiveKeyError, match=r"`exclusive` of task 'named' to return a text .*, got None"):
        exclusive_key(app.tasks["named"], "task-id", [], {})


def test_a_run_without_a_lease_has_its_key_for_its_visibility_timeout(make, store, caplog):
    found = []
    assert make(lambda task: found.append(store.acquire(KEY, "another", 30))).run(visibility_lease=None)
    assert isinstance(found[0], Processing)
    assert f"the lease of the key {KEY!r} cannot be renewed: its run has no lease" in caplog.text
    assert store.acquire(KEY, "another", 30) == Processed()


def test_an_error_of_the_callable_names_the_task(app):
    app.task(name="named", shared=False, exclusive=lambda args, kwargs: args[0])(nothing)
    app.finalize()
    with pytest.raises(ExclusiveKeyError, match=r"`exclusive` of task 'named' failed: IndexError"):
        exclusive_key(app.tasks["named"], "task-id", [], {})


@pytest.mark.parametrize(
    ("broker", "options", "kind"),
    [
        ("celery-sqs-visibility://", {"coordination_store": "redis://host"}, GuardedStore),
        ("celery-sqs-visibility://", {}, type(None)),
        ("memory://", {}, type(None)),
    ],
)
def test_the_store_of_an_app_is_that_of_its_option(broker, options, kind):
    with Celery("stores", set_as_current=False, broker=broker) as app:
        app.conf.broker_transport_options = options
        assert type(getattr(broker_context(app), "coordination_store", None)) is kind

"""A run of several messages: each hears that it begins and ends, and what may not run is taken out."""

from types import SimpleNamespace

import pytest
from celery import Task
from support.factories import AFTER_AN_ERROR, FakeHolder, held_delivery, request

from celery_sqs_visibility.core.settlements import Delete
from celery_sqs_visibility.worker.batches import BatchRun, batch_run_of, has_own_strategy
from celery_sqs_visibility.worker.pool_patches import watch_runs
from celery_sqs_visibility.worker.worker_context import WorkerContext


class Collecting(Task):
    """A task as celery-batches'."""

    Strategy = "its own"
    abstract = True


def noop():
    """A task."""


@pytest.fixture
def make(app):
    """`make("a", ...)`: the request of a message of a task that collects."""

    def make(message_id, holder=None, *, collects=True, **options):
        base, name = (Collecting, "collects") if collects else (Task, "plain")
        app.task(noop, name=name, base=base, shared=False, **{"acks_late": True, **options})
        return request(app.tasks[name], held_delivery(holder or FakeHolder(), message_id=message_id))

    return make


def member(one):
    """What a run is given of that request."""
    return SimpleNamespace(request_dict=one.request_dict)


def run(*requests):
    members = [member(each) for each in requests]
    return BatchRun(members), members


def test_a_task_with_a_strategy_of_its_own_collects(make):
    assert has_own_strategy(make("a").task)
    assert not has_own_strategy(make("a", collects=False).task)


def test_all_messages_of_a_batch_begin_and_end_with_it(make):
    requests = [make(message_id, acks_late=False) for message_id in "abc"]
    batch, members = run(*requests)
    batch.start()
    batch.end()
    assert len(members) == 3
    assert [each.delivery.holder.calls for each in requests] == [["start", "ran"]] * 3


def test_a_message_that_was_given_back_meanwhile_is_taken_out_and_hears_of_no_end(make):
    given_back, other = make("a", acks_late=False), make("b", acks_late=False)
    given_back.delivery.holder.may_run = False
    batch, members = run(given_back, other)
    batch.start()
    batch.end()
    assert [each.request_dict["sqs"]["message_id"] for each in members] == ["b"]
    assert given_back.delivery.holder.calls == ["start"]
    assert other.delivery.holder.calls == ["start", "ran"]


@pytest.mark.parametrize(("allowed", "left"), [("ab", 2), ("b", 1), ("", 0)])
def test_a_batch_says_whether_any_of_its_messages_may_run(make, allowed, left):
    batch, members = run(make("a"), make("b"))
    kept = batch.keep(lambda each: each.delivery.facts.message_id in allowed)
    assert (kept, len(members)) == (left > 0, left)


def test_a_message_whose_request_is_unknown_here_is_kept(make):
    unknown = SimpleNamespace(request_dict={"sqs": {"queue": "q", "message_id": "unknown"}})
    members = [unknown]
    batch = BatchRun(members)
    assert batch.keep(lambda _: False)
    batch.end()
    assert members == [unknown]


@pytest.mark.parametrize("settled", [True, False])
def test_a_message_that_its_task_has_not_acknowledged_comes_back(make, caplog, settled):
    one = make("a")
    batch, _ = run(one)
    batch.start()
    if settled:
        one.acknowledge()
    batch.end()
    assert one.delivery.holder.settled == [Delete() if settled else AFTER_AN_ERROR]
    assert ("comes back: its batch was lost" in caplog.text) != settled


@pytest.mark.parametrize(("acks_late", "measured"), [(True, 0), (False, 1)])
def test_a_run_that_was_acknowledged_before_is_measured_at_its_end(make, monkeypatch, acks_late, measured):
    one, calls = make("a", acks_late=acks_late), []
    monkeypatch.setattr(type(one), "measure_run", lambda _: calls.append(1))
    one.end()
    assert len(calls) == measured


def test_a_message_from_another_broker_begins_and_is_acknowledged_by_celery(make, monkeypatch):
    one = make("a")
    one.delivery = None
    assert one.start()
    monkeypatch.setattr(type(one), "acknowledged", True, raising=False)
    one.end()


def test_the_callbacks_of_a_run_tell_the_batch_too(make):
    one = make("a", acks_late=False)
    batch, _ = run(one)
    told = []
    options = batch.callbacks(
        {
            "accept_callback": lambda *args: told.append(("accepted", *args)),
            "callback": lambda *args: told.append(("done", *args)),
            "error_callback": lambda *args: told.append(("failed", *args)),
        }
    )
    options["accept_callback"](4711, 1.0)
    assert one.delivery.holder.calls == ["start"]
    options["callback"]("result")
    assert one.delivery.holder.calls == ["start", "ran"]
    options["error_callback"]("error")
    assert one.delivery.holder.calls == ["start", "ran", "ran"]
    assert told == [("accepted", 4711, 1.0), ("done", "result"), ("failed", "error")]


def test_a_batch_hears_of_its_end_though_the_tasks_own_callback_fails(make):
    one = make("a", acks_late=False)
    batch, _ = run(one)

    def fail(*_):
        raise ValueError("theirs")

    with pytest.raises(ValueError, match="theirs"):
        batch.callbacks({"callback": fail})["callback"]("result")
    assert one.delivery.holder.calls == ["ran"]


def test_a_run_without_callbacks_tells_the_batch(make):
    one = make("a", acks_late=False)
    options = run(one)[0].callbacks({})
    options["accept_callback"](4711, 1.0)
    options["callback"](None)
    assert one.delivery.holder.calls == ["start", "ran"]


def test_the_arguments_of_a_pool_are_a_batch_if_a_task_that_collects_has_messages_of_ours(make):
    one, plain = make("a"), make("a", collects=False)
    assert isinstance(batch_run_of((one.task, ([member(one)],))), BatchRun)
    assert isinstance(batch_run_of((one.task, ([member(one)],), "more")), BatchRun)
    for args in (
        (),
        (one.task,),
        (one.task, [member(one)]),
        (one.task, ((member(one),),)),
        (one.task, ([member(one)], [])),
        (one.task, ([member(one), SimpleNamespace()],)),
        (one.task, ([SimpleNamespace(request_dict=None)],)),
        (one.task, ([SimpleNamespace(request_dict={})],)),
        (plain.task, ([member(plain)],)),
        ("task", ([member(one)],)),
    ):
        assert batch_run_of(args) is None, args


def test_a_pool_of_processes_is_given_no_batch_of_which_nothing_may_run(make):
    given_back, applied = make("a"), []
    given_back.delivery.holder.may_run = False
    pool = SimpleNamespace(apply_async=lambda target, *_, **__: applied.append(target))
    worker = WorkerContext(has_processes=True)
    worker.collects = True
    watch_runs(pool, worker)
    pool.apply_async("a batch", (given_back.task, ([member(given_back)],)))
    pool.apply_async("another's", ())
    assert applied == ["another's"]

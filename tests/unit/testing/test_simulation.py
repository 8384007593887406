"""Schedules of faults: what they find out, what they leave alone, and that they are the same each time."""

import asyncio
import functools
import logging
import pickle
import re
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from unittest.mock import Mock

import pytest
from celery import Task, _state, chord
from support.app import without_shared_tasks

from celery_sqs_visibility import testing
from celery_sqs_visibility.testing import Simulation, SimulationFailedError, simulate
from celery_sqs_visibility.testing.schedule import Fault
from celery_sqs_visibility.testing.simulation import SEED_VARIABLE

SEEDS = 80


@pytest.fixture
def now(monkeypatch):
    """The simulation that runs, for tasks."""
    monkeypatch.delenv(SEED_VARIABLE, raising=False)
    return {}


@pytest.fixture
def make_pay(app, now):
    """Make the task, with these settings."""

    def make_pay(**options):
        @app.task(name="pay", **{"max_retries": 5, "error_visibility_timeout": 10, **options})
        def pay(order):
            now["sim"].effect(order)

        return pay

    return make_pay


@pytest.fixture
def pay(make_pay):
    return make_pay()


def simulated(now, task, check=lambda sim: None, **options):
    """A test that runs the task once for each seed; the simulations."""
    seen = []

    @simulate(**options)
    def test(sim):
        now["sim"] = sim
        seen.append(sim)
        sim.account = sim.run(task.s("o1"))
        check(sim)

    return test, seen


def failure(test):
    with pytest.raises(SimulationFailedError) as raised:
        test()
    return raised.value


def test_a_naive_task_is_found_out_and_the_failure_has_seed_schedule_and_replay(now, pay):
    test, seen = simulated(now, pay, lambda sim: sim.once("o1"))
    error = failure(test)
    text = str(error)
    assert error.seed == seen[-1].seed
    assert text.startswith("expected each effect once, but o1 took place 2 times\n")
    assert f"It failed under the schedule of seed {error.seed}:\n" in text
    assert seen[-1].story() in text
    assert "worker 1: effect o1" in text
    assert text.endswith(
        f"Replay it with @simulate(seed={error.seed}), or {SEED_VARIABLE}={error.seed} in the environment."
    )


def test_a_seed_replays_its_schedule(now, pay, monkeypatch):
    first = failure(simulated(now, pay, lambda sim: sim.once("o1"))[0])
    again = failure(simulated(now, pay, lambda sim: sim.once("o1"), seed=first.seed)[0])
    assert str(again) == str(first)
    monkeypatch.setenv(SEED_VARIABLE, str(first.seed))
    test, seen = simulated(now, pay, lambda sim: sim.once("o1"))
    assert str(failure(test)) == str(first)
    assert [sim.seed for sim in seen] == [None, first.seed]


def test_all_seeds_are_the_same_each_time_and_differ(now, pay):
    stories = []
    for _ in range(2):
        test, seen = simulated(now, pay, seeds=SEEDS)
        test()
        stories.append([sim.story() for sim in seen])
    assert stories[0] == stories[1]
    assert len(stories[0]) == SEEDS + 1
    assert len(set(stories[0])) > SEEDS / 4


@pytest.mark.parametrize(
    ("fault", "step"),
    [
        (Fault.DEATH, "dies, before the effect o1"),
        (Fault.DEATH, "dies, after the effect o1"),
        (Fault.DEATH, "dies, after its run and before that is settled"),
        (Fault.SECOND_DELIVERY, "SQS delivers the message a second time"),
        (Fault.LOST_DELETE, "SQS will answer the delete, and forget it"),
        (Fault.LAPSE, "stands still for 121 s"),
        (Fault.DELAY, "nobody receives the message for 13 h"),
        (Fault.REDRIVE, "an operator moves it back"),
        (Fault.DEPLOY, "gets SIGTERM, before the effect o1"),
        (Fault.DEPLOY, "hands the message back and ends"),
        (Fault.DEPLOY, "ends in order"),
    ],
)
def test_each_fault_happens(now, pay, fault, step):
    test, seen = simulated(now, pay, faults=[fault], seeds=60)
    test()
    assert any(step in sim.story() for sim in seen)
    assert all(sim.account.deleted or fault is Fault.REDRIVE for sim in seen)


def test_a_death_at_each_point_is_among_the_first_seeds(app, now):
    @app.task(max_retries=5, error_visibility_timeout=10)
    def two(_order):
        now["sim"].effect("a")
        now["sim"].effect("b")

    test, seen = simulated(now, two, seeds=10)
    test()
    deaths = [step.partition("dies, ")[2] for sim in seen[1::2] for step in sim.steps if " dies, " in step]
    assert deaths == [
        "before the effect a",
        "after the effect a",
        "before the effect b",
        "after the effect b",
        "after its run and before that is settled",
    ]


def test_without_faults_nothing_happens_twice(now, pay):
    test, seen = simulated(now, pay, lambda sim: sim.once("o1"), faults=[Fault.DELAY], seeds=20)
    test()
    assert {tuple(sim.effects) for sim in seen} == {("o1",)}


def test_an_idempotent_task_holds(app, now):
    paid = {}

    @app.task(max_retries=5, error_visibility_timeout=10)
    def pay(order):
        now["sim"].effect("pay", lambda: paid.setdefault(order, 100))

    def check(sim):
        assert paid == {"o1": 100}
        paid.clear()

    simulated(now, pay, check)[0]()


def test_an_exclusive_task_runs_once_at_a_time_and_not_again_after_its_success(make_pay, now):
    """But for a run that outlives its lease, and a death between the effect and the end."""
    pay = make_pay(exclusive=lambda args, _: args[0])
    faults = [Fault.SECOND_DELIVERY, Fault.LOST_DELETE, Fault.REDRIVE]
    simulated(now, pay, lambda sim: sim.once("o1"), faults=faults)[0]()
    assert failure(simulated(now, pay, lambda sim: sim.once("o1"), faults=[Fault.DEATH])[0])


def test_a_dead_worker_does_nothing_more(app, now):
    @app.task(max_retries=5, error_visibility_timeout=10)
    def clean(order):
        try:
            now["sim"].effect("work")
        finally:
            now["sim"].effect("clean up")

    test, seen = simulated(now, clean, faults=[Fault.DEATH], seeds=40)
    test()
    stories = {sim.story(): sim.effects for sim in seen}
    once = [effects for story, effects in stories.items() if story.count(" dies,") == 1]
    after_work = [effects for story, effects in stories.items() if "dies, after the effect work" in story]
    assert ["work", "work", "clean up"] in after_work
    assert all(effects.count("clean up") <= 2 and effects[-1] == "clean up" for effects in once)


def test_a_task_that_heeds_a_shutdown_sees_it(app, now):
    @app.task(bind=True, max_retries=None, error_visibility_timeout=10)
    def steps(task, _order):
        for number in range(3):
            now["sim"].effect(number)
            if task.visibility.stopping:
                task.visibility.release()

    test, seen = simulated(now, steps, faults=[Fault.DEPLOY], seeds=40)
    test()
    assert any("gives the message back" in sim.story() and "ends in order" in sim.story() for sim in seen)


def test_a_failure_without_a_fault_says_so(now, pay):
    test, seen = simulated(now, pay, lambda sim: sim.once("another"))
    text = str(failure(test))
    assert "none of ['another'] took place" in text
    assert "It failed without a fault:" in text
    assert "Replay" not in text
    assert len(seen) == 1


def test_calls_of_others_code_are_effects(app, now):
    class Shop:
        paid = ()

        def pay(self, order, *, cents):
            self.paid += ((order, cents),)
            return "receipt"

    shop = Shop()

    @app.task
    def pay(order):
        assert shop.pay(order, cents=5) == "receipt"

    with Simulation(None) as sim:
        sim.wrap(shop, "pay")
        sim.run(pay.s("o1"), pay.s("o2"))
        assert sim.effects == [("pay", "o1", ("cents", 5)), ("pay", "o2", ("cents", 5))]
        sim.once()
        sim.wrap(shop, "pay", key=lambda order, **_: order)
        sim.run(pay.s("o3"))
        assert sim.effects[2:] == [("pay", "o3", ("cents", 5)), "o3"]
    assert "pay" not in vars(shop)
    assert len(shop.paid) == 3


def test_a_lost_update_between_two_messages_is_found(app, now):
    """Each message is counted once, whatever is delivered again; only the sum of both is wrong."""
    stock = {}

    @app.task(max_retries=5, error_visibility_timeout=10)
    def take(order):
        if order not in stock["taken"]:
            left = stock["left"]
            now["sim"].effect("read", lambda: None)
            stock["left"] = left - 1
            stock["taken"].add(order)

    @simulate(seeds=20, faults=[Fault.OVERLAP])
    def test(sim):
        now["sim"] = sim
        stock.update(left=10, taken=set())
        sim.run(take.s("o1"), take.s("o2"))
        assert stock["left"] == 8, "an order was taken out of stock and put back"

    error = failure(test)
    assert "worker 2: receives the message" in str(error)


def test_a_coroutine_is_an_effect_when_it_was_awaited(app, now):
    class Shop:
        async def pay(self, order):
            if order == "unknown":
                raise KeyError(order)
            return "receipt"

    shop = Shop()

    @app.task(max_retries=0)
    def pay(order):
        assert asyncio.run(shop.pay(order)) == "receipt"

    with Simulation(None) as sim:
        sim.wrap(shop, "pay", key=lambda order: order)
        sim.run(pay.s("o1"), pay.s("unknown"))
        assert sim.effects == ["o1"]


def test_calls_of_a_mock_and_of_a_proxy_are_effects():
    class Proxy:
        """As a module that is loaded when it is first used."""

        def __getattr__(self, name):
            return getattr(sqlite3, name)

    bank = Mock()
    with Simulation(None) as sim:
        sim.wrap(bank, "charge")
        bank.charge("o1")
        proxy = Proxy()
        sim.wrap(proxy, "complete_statement")
        assert proxy.complete_statement("SELECT 1;")
        assert sim.effects == [("charge", "o1"), ("complete_statement", "SELECT 1;")]


def test_methods_of_a_class_are_effects_whatever_they_are(now):
    class Shop:
        @classmethod
        def named(cls, order):
            return cls.__name__, order

        @staticmethod
        def alone(order):
            return order

        def own(self, order):
            return self, order

    shop = Shop()
    with Simulation(None) as sim:
        for name in ("named", "alone", "own"):
            sim.wrap(Shop, name, key=lambda *args, name=name: (name, args[-1]))
        assert (shop.named(1), Shop.named(2), shop.alone(3), shop.own(4)) == (
            ("Shop", 1),
            ("Shop", 2),
            3,
            (shop, 4),
        )
        assert sim.effects == [("named", 1), ("named", 2), ("alone", 3), ("own", 4)]
    assert shop.named(1) == ("Shop", 1)


def test_long_keys_are_shown_in_part_and_told_apart():
    sim = Simulation(None)
    sim.effects = ["a" * 100 + "b", "a" * 100 + "c", 1, "1"]
    sim.once()
    sim.effects.append("a" * 100 + "c")
    with pytest.raises(AssertionError, match=r"but a{80}\.\.\. took place 2 times"):
        sim.once()


def test_files_are_removed(now):
    with Simulation(0) as sim:
        (sim.directory / "database").write_text("")
        directory = sim.directory
    assert not directory.exists()


def test_the_test_keeps_its_fixtures_and_needs_a_simulation(now):
    @simulate
    def test(sim, tmp_path):
        """What it is about."""

    assert list(test.__signature__.parameters) == ["tmp_path"]
    assert (test.__name__, test.__doc__) == ("test", "What it is about.")
    with pytest.raises(TypeError, match="expected a test with a parameter 'sim'"):
        simulate(lambda: None)


def test_many_seeds_log_nothing_and_one_does(app, now, caplog):
    @app.task(max_retries=1, error_visibility_timeout=10)
    def fails(_order):
        raise ValueError

    simulated(now, fails, seeds=2)[0]()
    assert not caplog.records
    simulated(now, fails, seed=1)[0]()
    assert caplog.records
    assert logging.root.manager.disable == logging.NOTSET


def test_a_failure_by_pytest_is_told_too(now, pay):
    def check(_sim):
        with pytest.raises(KeyError):
            pass

    assert "DID NOT RAISE" in str(failure(simulated(now, pay, check)[0]))


def test_a_task_that_fails_for_good_comes_back_by_a_redrive(app, now):
    @app.task(max_retries=1, error_visibility_timeout=10)
    def fails(_order):
        raise ValueError

    test, seen = simulated(now, fails, faults=[Fault.REDRIVE], seeds=20)
    test()
    redriven = [sim for sim in seen if "an operator moves the dead letters back" in sim.story()]
    assert redriven
    assert all(sim.account.runs == 4 for sim in redriven if sim.story().count("operator") == 1)


def test_who_swallows_a_death_is_dead_all_the_same(app, now):
    @app.task(max_retries=5, error_visibility_timeout=10)
    def stubborn(order):
        for number in range(2):
            with suppress(BaseException):
                now["sim"].effect(number)

    test, seen = simulated(now, stubborn, faults=[Fault.DEATH], seeds=40)
    test()
    for sim in seen:
        deaths = sim.story().count(" dies,")
        assert sim.account.receives == deaths + 1
        assert sim.account.deleted


def test_a_fifo_queue_makes_no_duplicates(app, now, pay):
    app.conf.task_default_queue = "orders.fifo"
    test, seen = simulated(now, pay, lambda sim: sim.once("o1"), faults=[Fault.SECOND_DELIVERY], seeds=30)
    test()
    assert not any("a second time" in sim.story() for sim in seen)


def test_the_public_names_are_all_there():
    assert dir(testing) == sorted(testing.__all__)
    assert all(hasattr(testing, name) for name in testing.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        testing.nothing  # noqa: B018


def test_an_exclusive_run_that_is_handed_back_runs_again_at_once(make_pay, now):
    pay = make_pay(exclusive=lambda args, _: args[0])
    test, seen = simulated(now, pay, faults=[Fault.DEPLOY], seeds=60)
    test()
    handed_back = [sim for sim in seen if "hands the message back" in sim.story()]
    assert handed_back
    assert {sim.clock.passed for sim in handed_back} == {0}


def test_a_queue_that_keeps_its_messages_has_no_redrive(app, now, pay):
    app.conf.broker_transport_options = {"dead_letter_queue": "orders"}  # its own queue is the dead letters'
    test, seen = simulated(now, pay, lambda sim: sim.once("o1"), faults=[Fault.REDRIVE], seeds=20)
    test()
    assert not any("operator" in sim.story() for sim in seen)


@pytest.mark.parametrize("fault", [Fault.DEATH, Fault.DEPLOY])
def test_a_task_that_is_acknowledged_before_it_runs_is_lost_with_its_worker(app, now, fault):
    @app.task(name="early", base=Task, acks_late=False)
    def early(order):
        now["sim"].effect(order)
        now["sim"].effect("told")

    error = failure(simulated(now, early, lambda sim: sim.once("o1", "told"), faults=[fault])[0])
    assert "took place" in str(error)
    assert "dies, before the effect o1" in str(error) or "ends, and its run with it" in str(error)
    assert "receive 2" not in str(error)


@pytest.mark.parametrize("fault", [Fault.SECOND_DELIVERY, Fault.LAPSE])
def test_sqs_has_nothing_to_deliver_again_of_it(make_pay, now, fault):
    early = make_pay(base=Task, acks_late=False, error_visibility_timeout=None)
    simulated(now, early, lambda sim: sim.once("o1"), faults=[fault])[0]()


def test_a_replay_has_the_faults_of_its_simulation(now, pay):
    error = failure(simulated(now, pay, lambda sim: sim.once("o1"), faults=[Fault.LAPSE])[0])
    assert f"@simulate(seed={error.seed}, faults=[Fault.LAPSE])" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


async def coroutine(sim):
    raise AssertionError("never run")


def generator(sim):
    yield


@pytest.mark.parametrize(
    ("decorate", "error", "said"),
    [
        (lambda: simulate(coroutine), TypeError, "got coroutine, which a call does not run"),
        (lambda: simulate(generator), TypeError, "got generator, which a call does not run"),
        (lambda: simulate(200), TypeError, r"got 200: is it @simulate\(seeds=200\)"),
        (lambda: simulate(seeds=0), ValueError, "expected a number of seeds above 0 as seeds, got 0"),
        (lambda: simulate(seed="5"), ValueError, "expected a number from 0 on as seed, got '5'"),
        (
            lambda: simulate(faults=[]),
            ValueError,
            r"a list of celery_sqs_visibility\.testing\.Fault as faults",
        ),
        (lambda: simulate(faults={"death"}), ValueError, "got {'death'}"),
        (lambda: simulate(faults=Fault.DEATH), ValueError, "got <Fault.DEATH"),
        (lambda: simulate(functools.partial(print)), TypeError, "a parameter 'sim', got functools"),
    ],
)
def test_what_would_test_nothing_is_refused(decorate, error, said):
    with pytest.raises(error, match=said):
        decorate()


@pytest.mark.parametrize("test", [coroutine, generator])
def test_what_only_returns_something_to_be_run_is_refused(test):
    def decorated(sim):
        return test(sim)

    with pytest.raises(TypeError, match="and did not run"):
        simulate(decorated)()


def test_a_seed_in_the_environment_is_a_number(now, pay, monkeypatch):
    monkeypatch.setenv(SEED_VARIABLE, "abc")
    with pytest.raises(ValueError, match=f"as {SEED_VARIABLE}, got 'abc'"):
        simulated(now, pay)[0]()


def test_what_is_not_there_or_takes_no_attributes_is_not_replaced():
    with Simulation(None) as sim, closing(sqlite3.connect(":memory:")) as database:
        with pytest.raises(AttributeError, match="chrage"):
            sim.replace(testing, "chrage", 1)
        with pytest.raises(TypeError, match="replace the name by which the code finds it"):
            sim.wrap(database, "execute")


class Slotted:
    __slots__ = ("stored",)

    def __init__(self):
        self.stored = "own"


class Derived:
    of_class = "own"

    @property
    def derived(self):
        return vars(self).get("_derived", "own")

    @derived.setter
    def derived(self, value):
        vars(self)["_derived"] = value


@pytest.mark.parametrize(
    ("owner", "name"),
    [(Slotted(), "stored"), (Derived(), "of_class"), (Derived(), "derived"), (Derived, "of_class")],
)
def test_what_was_replaced_is_as_it_was(owner, name):
    with Simulation(None) as sim:
        sim.replace(owner, name, "another")
        assert getattr(owner, name) == "another"
    assert getattr(owner, name) == "own"


def test_an_attribute_of_a_mock_and_a_setting_are_as_they_were(app):
    mock = Mock()
    child = mock.child
    with Simulation(None) as sim:
        sim.replace(mock, "child", 1)
        sim.replace(app.conf, "task_always_eager", True)
        assert app.conf.task_always_eager
    assert mock.child is child
    assert not app.conf.task_always_eager


def test_once_needs_an_effect():
    with Simulation(None) as sim, pytest.raises(AssertionError, match="and none took place"):
        sim.once()


@pytest.mark.parametrize("backend", ["cache+memory://", "file://{}"], ids=["it counts ends", "it is polled"])
def test_a_correct_chord_whose_members_run_twice_raises_no_alarm(app, backend, tmp_path, monkeypatch):
    monkeypatch.delenv(SEED_VARIABLE, raising=False)
    app.conf.result_backend = backend.format(tmp_path)

    @app.task(max_retries=20)
    def member(number):
        simulations[-1].effect(number)
        return number

    @app.task(max_retries=20)
    def body(numbers):
        simulations[-1].sums.append(sum(numbers))

    simulations = []

    @simulate(seeds=80)
    def test(sim):
        simulations.append(sim)
        sim.sums = []
        sim.run(chord([member.s(1), member.s(2)], body.s()))
        assert set(sim.sums) == {3}

    test()
    again = [sim for sim in simulations if len(sim.effects) > 2]
    assert len(again) > 10


PAGE = Path(__file__).parents[3] / "docs/testing.md"


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)


def test_the_failure_on_the_page_is_that_of_its_example(monkeypatch):
    monkeypatch.setattr(_state._tls, "current_app", None)
    without_shared_tasks(monkeypatch)
    shown = []
    (example,) = [block for block in blocks("python") if "SimulationFailedError" in block]
    told = example.replace("as failure:\n", "as failure:\n    shown.append(str(failure))\n")
    names = {"__name__": "testing_1", "shown": shown}
    exec(compile(told, PAGE.name, "exec"), names)
    assert blocks("text") == [f"{shown[0]}\n"]
    names["app"].close()

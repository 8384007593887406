"""Delays, deaths and ends of tasks in turned time."""

import time

import pytest
from celery import Celery, Task, chord, group
from celery.exceptions import ImproperlyConfigured

from celery_sqs_visibility import ExponentialBackoff
from celery_sqs_visibility.delivery.settle.dead_letters import described
from celery_sqs_visibility.policy.clock import SYSTEM_CLOCK
from celery_sqs_visibility.testing import turned_time, world
from celery_sqs_visibility.testing.account import Accounts
from celery_sqs_visibility.testing.world import World


def quick():
    """A task."""


@pytest.fixture
def fails(app):
    @app.task(error_visibility_timeout=[10, 60, 300], max_retries=3)
    def fails():
        raise ValueError("no")

    return fails


def test_a_task_backs_off_as_its_delays_say_and_becomes_a_dead_letter(fails):
    with turned_time() as turned:
        account = turned.run(fails.s())
        letters = turned.dead_letters()
    assert account.runs == account.receives == 4
    assert account.hidden == [10, 60, 300]
    assert account.failures == ["ValueError('no')"] * 4
    assert account.dead_letter.reason == "failed at its last attempt"
    assert account.dead_letter.queue == "orders"
    assert account.ended
    assert turned.passed == 370
    assert [described(letter["MessageAttributes"])["reason"] for letter in letters] == [
        "failed at its last attempt"
    ]


def test_the_account_is_a_story(fails):
    with turned_time() as turned:
        account = turned.run(fails.s())
    lines = str(account).splitlines()
    assert lines[0] == "Received (receive 1, seconds 120)"
    assert lines[3] == "Hidden (receive 1, seconds 10, kept False)"
    assert repr(account) == (
        "<account: 4 runs, hidden for [10, 60, 300] s, deleted, dead letter: 'failed at its last attempt'>"
    )


def test_a_success_is_deleted_and_what_it_publishes_runs_too(app):
    ran = []

    @app.task
    def second(number):
        ran.append(number)

    @app.task
    def first():
        ran.append(second.apply_async([7], countdown=3600))

    with turned_time() as turned:
        account = turned.run(first.s())
        assert turned.passed == 3600
        later = turned.account(ran[0])
    assert (account.runs, account.deleted, account.dead_letter) == (1, True, None)
    assert ran[1:] == [7]
    assert (later.runs, later.deleted) == (1, True)


def test_a_long_run_keeps_its_message(app):
    with turned_time() as turned:

        @app.task(bind=True)
        def long(task):
            turned.turn(3600)
            assert task.visibility.remaining() > 0

        account = turned.run(long.s())
    assert (account.runs, account.receives, account.deleted) == (1, 1, True)
    assert [type(event).__name__ for event in account.events].count("Extended") > 10


def test_delays_with_jitter_are_the_same_each_time(app):
    @app.task(error_visibility_timeout=ExponentialBackoff(base=10), max_retries=3)
    def jittery():
        raise ValueError

    hidden = []
    for _ in range(2):
        with turned_time() as turned:
            hidden.append(turned.run(jittery.s()).hidden)
    assert hidden[0] == hidden[1]
    assert len(hidden[0]) == 3


def test_tasks_of_celerys_own_class_are_retried_by_new_messages(app):
    @app.task(bind=True, base=Task, max_retries=2)
    def plain(task):
        raise task.retry(countdown=100)

    with turned_time() as turned:
        account = turned.run(plain.s())
        assert turned.passed == 200
    assert (account.runs, account.hidden, account.deleted) == (3, [], True)
    assert len({event.delivery.message_id for event in account.events}) == 3


def test_results_are_in_the_apps_own_backend(app):
    app.conf.result_backend = "cache+memory://"

    @app.task
    def add(a, b):
        return a + b

    with turned_time() as turned:
        results = [turned.send(add.s(1, number)) for number in range(3)]
        turned.work()
        assert [result.get(timeout=1) for result in results] == [1, 2, 3]
        (chord_result,) = [turned.send(chord([add.s(1, 1), add.s(2, 2)], total(app).s()))]
        turned.work()
        assert chord_result.get(timeout=1) == 6


def total(app):
    @app.task
    def total(numbers):
        return sum(numbers)

    return total


def test_a_request_expires_by_the_turned_clock(app):
    @app.task
    def late():
        raise AssertionError("it has expired")

    with turned_time() as turned:
        account = turned.run(late.s().set(countdown=100, expires=60))
    assert (account.runs, account.deleted) == (0, True)


def test_the_machines_clock_and_the_apps_own_broker_are_back_afterwards(app, fails):
    with turned_time() as turned:
        turned.run(fails.s())
        assert SYSTEM_CLOCK.wall() == turned.now()
    assert abs(SYSTEM_CLOCK.wall() - time.time()) < 5
    assert "now" not in vars(app)
    with app.connection_for_read() as connection:
        assert connection.transport.context.worker_name == ""


def test_a_task_that_comes_back_for_ever_is_told(app, monkeypatch):
    monkeypatch.setattr(world, "MAX_RECEIVES", 50)

    @app.task(max_retries=None, error_visibility_timeout=1)
    def endless():
        raise ValueError

    app.conf.broker_transport_options = {"sqs-creation-attributes": {"RedrivePolicy": ""}}
    with turned_time() as turned, pytest.raises(AssertionError, match="still comes back after 50 receives"):
        turned.run(endless.s())


def test_an_app_on_another_broker_and_a_second_app_are_refused(app, fails):
    other = Celery("other", broker="memory://", set_as_current=False)
    with turned_time() as turned, pytest.raises(ImproperlyConfigured, match="expected an app on SQS"):
        turned.run(other.task(quick).s())
    second = Celery("second", broker="celery_sqs_visibility://", set_as_current=False)
    with turned_time() as turned:
        turned.run(fails.s())
        with pytest.raises(ImproperlyConfigured, match="tasks of one app"):
            turned.run(second.task(quick).s())


def test_before_the_first_task_no_worker_can_start():
    with World() as empty, pytest.raises(RuntimeError, match="no app is known: call open"):
        empty.new_worker()


def test_what_the_code_publishes_itself_comes_here_once_the_app_is_open(app, fails):
    with turned_time() as turned:
        turned.open(app)
        account = turned.account(fails.delay())
        turned.work()
    assert account.runs == 4


@pytest.mark.parametrize("act", ["work", "dead_letters"])
def test_nothing_is_published_to_the_apps_own_broker_or_done_before_an_app_is_known(fails, act):
    with turned_time() as turned:
        with pytest.raises(RuntimeError, match="no app is known: call open"):
            fails.delay()
        with pytest.raises(RuntimeError, match="no app is known: call open"):
            getattr(turned, act)()


def test_what_publishes_nothing_or_not_to_sqs_is_not_refused(app):
    other = Celery("other", broker="memory://", set_as_current=False)
    with turned_time(), app.connection_for_read() as connection:
        assert connection.as_uri().startswith("sqs://")
        other.task(quick).delay()
    other.close()


def test_tasks_that_are_run_eagerly_are_refused(app, fails):
    app.conf.task_always_eager = True
    with turned_time() as turned, pytest.raises(ImproperlyConfigured, match="task_always_eager of app 'kit-"):
        turned.run(fails.s())


def test_the_account_of_a_group_is_that_of_its_first_task(app):
    with turned_time() as turned:
        account = turned.run(group(app.task(quick).s(), app.task(quick).s()))
    assert (account.runs, account.deleted) == (1, True)


def test_many_messages_are_worked_off_and_one_that_publishes_itself_is_told(app, monkeypatch):
    monkeypatch.setattr(world, "MAX_RECEIVES", 5)
    task = app.task(quick)

    @app.task
    def again():
        again.delay()

    with turned_time() as turned:
        accounts = [turned.account(turned.send(task.s())) for _ in range(20)]
        turned.work()
        assert [account.runs for account in accounts] == [1] * 20
        monkeypatch.setattr(world, "MAX_MESSAGES", 30)
        with pytest.raises(AssertionError, match="after 30 receives: a task publishes itself"):
            turned.run(again.s())


def test_all_dead_letters_are_told_each_time(app, fails):
    with turned_time() as turned:
        for _ in range(12):
            turned.send(fails.s())
        turned.work()
        assert len(turned.dead_letters()) == len(turned.dead_letters()) == 12


def test_an_app_that_could_not_be_opened_is_not_known(app, fails):
    app.conf.broker_transport_options = {}

    @app.task(exclusive=True)
    def exclusive():
        """Its keys have no store."""

    with turned_time() as turned:
        for _ in range(2):
            with pytest.raises(ImproperlyConfigured, match="no store is named for its keys"):
                turned.run(fails.s())
        with pytest.raises(RuntimeError, match="no app is known"):
            turned.work()


def test_time_does_not_go_back():
    with turned_time() as turned, pytest.raises(ValueError, match="expected 0 or more seconds, got -5"):
        turned.turn(-5)


def test_waits_are_bounded_by_the_machines_time():
    with turned_time(), pytest.raises(TimeoutError, match=r"waited 0\.01 s"):
        Accounts().of("a task that nobody sent", timeout=0.01)


def test_without_dead_letters_none_is_moved_back(app):
    with World() as empty:
        empty.send(app.task(quick).s())
        empty.work()
        assert empty.redrive() == 0
        assert [call for call in empty.sqs.calls if call[0] == "StartMessageMoveTask"] == []


def test_a_large_message_goes_by_a_bucket_in_memory(app):
    app.conf.broker_transport_options = {"payload_store": "s3://payloads/celery/"}
    sizes = []

    @app.task
    def measure(text):
        sizes.append(len(text))

    with World() as small:
        small.send(measure.s("x" * 2_000_000))
        (body,) = small.sqs.bodies(small.queues[0].url)
        assert len(body) < 1000
        small.work()
    assert sizes == [2_000_000]


def test_a_large_message_whose_payload_is_gone_is_a_dead_letter(app):
    app.conf.broker_transport_options = {"payload_store": "s3://payloads/celery/"}

    @app.task
    def measure(text): ...

    with World() as small:
        small.send(measure.s("x" * 2_000_000))
        small._objects.objects.clear()
        small.work()
        (letter,) = small.dead_letters()
    assert "is gone" in described(letter["MessageAttributes"])["reason"]

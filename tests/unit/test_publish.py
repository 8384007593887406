"""Which block a publication goes into, from which thread, and what is left alone."""

import asyncio
import contextvars
import gc
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial

import pytest
from celery.exceptions import Ignore, Reject, Retry
from support.app import close_app, make_app
from support.processes import SOON

import celery_sqs_visibility.publish
from celery_sqs_visibility import PublishError, publish_batch
from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.aws.queues import Queues
from celery_sqs_visibility.core import pending
from celery_sqs_visibility.delivery.payloads.outgoing import OutgoingMessages
from celery_sqs_visibility.delivery.publish.blocks import batched, blocks_around
from celery_sqs_visibility.delivery.publish.sender import Sender
from celery_sqs_visibility.errors import AccessDeniedError
from celery_sqs_visibility.task.retries import VisibilityRetry

broker_of = celery_sqs_visibility.publish._broker_of


class Site:
    """Brokers, one for each app, and what reached them."""

    def __init__(self):
        self.sqs = FakeSQS()
        self._brokers = {}
        self._queues = {}

    def broker(self, app):
        return self._brokers.setdefault(app, partial(Sender, outgoing=OutgoingMessages()))

    def publish(self, name, app="app", queue="q"):
        """As `Channel._put` does; whether it went into a block."""
        queues = self._queues.setdefault(app, Queues(self.sqs, prefix=f"{app}-"))
        target = queues.find_or_create(queue)
        group = {"group_id": "g", "deduplication_id": name} if target.fifo else {}
        message = OutgoingMessage(name, **group)
        if batched(self.broker(app), target, message, {"headers": {"id": name}}):
            return True
        target.sqs.send(target.url, message)
        return False

    def requests(self):
        sent = [(action, arguments) for action, arguments in self.sqs.calls if action.startswith("Send")]
        return [
            [message.body for message in arguments.get("messages", [arguments.get("message")])]
            for _, arguments in sent
        ]


@pytest.fixture(autouse=True)
def window(monkeypatch):
    """So long that no batch is sent half-full because this process had to wait."""
    monkeypatch.setattr(pending, "LINGER_SECONDS", 60.0)


@pytest.fixture
def site(monkeypatch):
    site = Site()
    monkeypatch.setattr(celery_sqs_visibility.publish, "_broker_of", site.broker)
    return site


def test_leaving_the_block_means_sent_and_outside_of_it_publishing_does(site):
    assert not site.publish("x")
    with publish_batch("app"):
        assert all([site.publish("a"), site.publish("b")])
    assert not site.publish("y")
    assert site.requests() == [["x"], ["a", "b"], ["y"]]


def test_a_block_that_is_never_opened_is_told_where_it_is_forgotten(site):
    with pytest.warns(RuntimeWarning, match=r"write 'with publish_batch\(app\):' around") as warned:
        publish_batch("app")
    assert warned[0].filename == __file__
    assert not site.publish("a")


async def coroutine():
    pass


def generator():
    yield


async def asynchronous_generator():
    yield


@pytest.mark.parametrize("function", [coroutine, generator, asynchronous_generator])
def test_as_a_decorator_it_refuses_a_function_whose_call_only_begins_its_body(function):
    with pytest.raises(TypeError, match=f"{function.__name__}.*write 'with publish_batch"):
        publish_batch("app")(function)


def test_as_a_decorator_it_opens_a_block_for_each_call(site):
    @publish_batch("app")
    def publish_two():
        return [site.publish("a"), site.publish("b")]

    assert publish_two() == publish_two() == [True, True]
    assert site.requests() == [["a", "b"]] * 2


def test_a_block_is_for_one_app_and_leaves_another_and_its_block_alone(site):
    with publish_batch("app"):
        with publish_batch("other"):
            assert site.publish("a")
            assert site.publish("b", app="other")
        assert not site.publish("c", app="other")
        assert site.requests() == [["b"], ["c"]]
    assert site.requests() == [["b"], ["c"], ["a"]]


@pytest.mark.parametrize(
    ("queue", "first", "second"), [("q", [["b"]], [["a", "c"]]), ("q.fifo", [["a"], ["b"]], [["c"]])]
)
def test_leaving_an_inner_block_means_sent_too_and_overtakes_nothing_in_a_fifo_queue(
    site, queue, first, second
):
    with publish_batch("app"):
        site.publish("a", queue=queue)
        with publish_batch("app"):
            site.publish("b", queue=queue)
        assert site.requests() == first
        site.publish("c", queue=queue)
    assert site.requests() == first + second


def test_a_call_in_a_copy_of_the_context_takes_part_in_any_thread(site):
    with ThreadPoolExecutor(4) as pool, publish_batch("app"):
        calls = [pool.submit(contextvars.copy_context().run, site.publish, name) for name in "abcd"]
        assert all(call.result(SOON) for call in calls)
    assert [sorted(names) for names in site.requests()] == [["a", "b", "c", "d"]]


def test_asyncios_tasks_take_part_in_an_open_block_and_its_executor_where_the_context_is_copied(site):
    async def main():
        closed = asyncio.Event()
        closed.set()
        with publish_batch("app"):
            await asyncio.gather(publish("a", closed), asyncio.to_thread(site.publish, "b"))
            loop = asyncio.get_running_loop()
            assert not await loop.run_in_executor(None, site.publish, "another request's")
            closed.clear()
            late = asyncio.create_task(publish("late", closed))
            await asyncio.sleep(0)
        closed.set()
        assert not await late

    async def publish(name, go_on):
        await go_on.wait()
        return site.publish(name)

    asyncio.run(main())
    assert [sorted(names) for names in site.requests()] == [["another request's"], ["a", "b"], ["late"]]


def publish_one_by_one(site, names):
    with publish_batch("app"):
        for name in names:
            yield site.publish(name)


def test_what_a_generator_that_holds_a_block_calls_takes_part_or_is_sent_at_the_end_of_its_own_block(site):
    def publish_by_others():
        with publish_batch("app"):
            yield all(list(map(site.publish, "ab")))
            yield from publish_all_of("cd")
            yield publish_in_a_block("e") == ["e"]

    def publish_all_of(names):
        for name in names:
            yield site.publish(name)

    def publish_in_a_block(name):
        with publish_batch("app"):
            site.publish(name)
        return site.requests()[-1]

    assert all(publish_by_others())
    assert site.requests() == [["e"], ["a", "b", "c", "d"]]


def test_a_generators_block_takes_what_its_caller_publishes_until_it_ends(site):
    generator = publish_one_by_one(site, "ab")
    assert next(generator)
    assert site.publish("the caller's")
    assert list(generator) == [True]
    assert not site.publish("after")
    assert site.requests() == [["a", "the caller's", "b"], ["after"]]


def test_generators_with_blocks_end_in_any_order(site):
    one, other = publish_one_by_one(site, "ab"), publish_one_by_one(site, "cd")
    with publish_batch("app"):
        next(one)
        next(other)
        assert list(one) == [True]
        assert site.requests() == [["a"]]
        assert list(other) == [True]
        assert site.requests() == [["a"], ["c", "b", "d"]]
        assert site.publish("x")
    assert site.requests()[-1] == ["x"]
    assert blocks_around() == []


@contextmanager
def a_block_and_more():
    with publish_batch("app") as batch:
        yield batch


class BlockOfTheUsers:
    def __enter__(self):
        self.block = publish_batch("app")
        return self.block.__enter__()

    def __exit__(self, *error):
        return self.block.__exit__(*error)


@contextmanager
def a_block_on_a_stack():
    with ExitStack() as stack:
        yield stack.enter_context(a_block_and_more())


@pytest.mark.parametrize(
    "manager", [partial(publish_batch, "app"), a_block_and_more, BlockOfTheUsers, a_block_on_a_stack]
)
def test_a_context_manager_opens_the_block_for_whom_it_manages(site, manager):
    with manager():
        assert site.publish("a")
    assert not site.publish("b")
    assert site.requests() == [["a"], ["b"]]


def test_an_async_context_manager_may_open_the_block_for_whom_it_manages(site):
    @asynccontextmanager
    async def an_async_block():
        with a_block_and_more() as batch:
            yield batch

    async def main():
        async with an_async_block():
            return site.publish("a")

    assert asyncio.run(main())


def test_a_block_that_ends_in_another_context_is_over_in_the_one_where_it_was_opened(site):
    generator = publish_one_by_one(site, "ab")
    opener = contextvars.Context()
    assert opener.run(next, generator)
    contextvars.Context().run(generator.close)
    assert not opener.run(site.publish, "b")
    assert site.requests() == [["a"], ["b"]]


def test_who_joins_twice_is_in_the_block_until_the_end_of_the_outer_one(site):
    with publish_batch("app") as batch:
        with batch.joined():
            assert site.publish("a")
        assert site.publish("b")
    assert site.requests() == [["a", "b"]]


def test_a_generator_that_is_forgotten_sends_what_it_has_published(site):
    next(publish_one_by_one(site, "ab"))
    gc.collect()
    assert site.requests() == [["a"]]
    assert not site.publish("b")


@pytest.mark.parametrize("starts_inside", [True, False])
def test_a_thread_means_sent_unless_it_joins_a_block_that_is_open(site, starts_inside):
    """The pool's thread starts when it is first needed, as those of asyncio's default executor."""

    def publish_joining(batch, name):
        with batch.joined():
            return site.publish(name)

    with ThreadPoolExecutor(1) as pool:
        if not starts_inside:
            pool.submit(bool).result(SOON)
        with publish_batch("app") as batch:
            pool.submit(bool).result(SOON)
            assert not pool.submit(site.publish, "plain").result(SOON)
            assert pool.submit(publish_joining, batch, "joined").result(SOON)
            assert not pool.submit(site.publish, "plain again").result(SOON)
            assert site.requests() == [["plain"], ["plain again"]]
        assert site.requests()[-1] == ["joined"]
        assert not pool.submit(publish_joining, batch, "late").result(SOON)


def test_blocks_in_two_threads_have_nothing_to_do_with_each_other(site):
    inside = threading.Barrier(2)

    def block(name):
        with publish_batch("app"):
            site.publish(name)
            inside.wait(SOON)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(block, "ab"))
    assert sorted(site.requests()) == [["a"], ["b"]]


@pytest.mark.parametrize("error", [ZeroDivisionError(), Ignore()], ids=repr)
def test_an_exception_goes_on_after_what_was_published_is_sent(site, error):
    with pytest.raises(type(error)):
        publish_and_raise(site, error)
    assert site.requests() == [["a"]]
    assert blocks_around() == []


def test_what_could_not_be_sent_raises_one_error(site):
    denied = AccessDeniedError("no")
    site.sqs.fail_next("SendMessageBatch", denied, 1)
    with pytest.raises(PublishError) as caught, publish_batch("app"):
        list(map(site.publish, "abc"))
    assert caught.value.failures == [("b", denied)]
    assert caught.value.published == 3


@pytest.mark.parametrize(
    "predicate", [Ignore(), Retry("published anew"), Reject("of no use", requeue=False)], ids=repr
)
def test_a_predicate_of_celerys_does_not_carry_away_what_could_not_be_sent(site, predicate):
    site.sqs.fail_next("SendMessageBatch", AccessDeniedError("no"))
    with pytest.raises(PublishError) as caught:
        publish_and_raise(site, predicate)
    assert caught.value.__cause__ is predicate


@pytest.mark.parametrize(
    "error", [ZeroDivisionError(), VisibilityRetry(when=5), Reject("later", requeue=True)], ids=repr
)
def test_an_error_or_a_message_that_comes_back_by_itself_goes_on_and_tells_what_was_not_sent(
    site, error, caplog
):
    site.sqs.fail_next("SendMessageBatch", AccessDeniedError("no"))
    with pytest.raises(type(error)) as caught:
        publish_and_raise(site, error)
    assert caught.value is error
    assert caught.value.__notes__ == ["1 of 1 messages could not be sent: a: no"]
    assert "1 of 1 messages could not be sent" in caplog.text


def test_a_generator_that_is_closed_early_tells_what_could_not_be_sent(site):
    site.sqs.fail_next("SendMessageBatch", AccessDeniedError("no"))
    generator = publish_one_by_one(site, "a")
    next(generator)
    with pytest.raises(PublishError):
        generator.close()


def test_ctrl_c_while_the_block_is_left_tells_how_much_was_not_sent(site, caplog):
    """Twelve messages in two batches that are not full, and so are sent when the block is left."""
    interrupted = threading.Event()
    send_batch = site.sqs.send_batch

    def interrupt_once_and_send_later(*arguments, **options):
        if not interrupted.is_set():
            interrupted.set()
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        assert told.wait(SOON)
        return send_batch(*arguments, **options)

    told = threading.Event()
    site.sqs.send_batch = interrupt_once_and_send_later
    with pytest.raises(KeyboardInterrupt) as caught, publish_batch("app"):
        _ = [site.publish(f"{number}", queue="pq"[number % 2]) for number in range(12)]
    told.set()
    sentence = "12 of 12 messages were not sent yet: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more"
    assert caught.value.__notes__ == [sentence]
    assert sentence in caplog.text


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # of what other tests' threads may do
def test_a_forked_child_leaves_its_parents_block_alone(site):
    with publish_batch("app"):
        site.publish("a")
        pid = os.fork()
        if not pid:
            try:
                sent_by_itself = not site.publish("b")
                with publish_batch("app"):
                    batched_by_itself = site.publish("c")
                os._exit(0 if sent_by_itself and batched_by_itself else 1)
            finally:
                os._exit(2)
        assert os.waitpid(pid, 0)[1] == 0
    assert site.requests() == [["a"]]


@pytest.mark.parametrize("settings", [{"broker_url": "memory://"}, {"task_always_eager": True}])
def test_elsewhere_a_block_changes_nothing(settings):
    # A queue of the test's own: kombu's memory is that of the process.
    config = {"broker_transport": None, "task_default_queue": "elsewhere", **settings}
    app = make_app("elsewhere", config, set_as_current=False)
    ran = []

    @app.task(shared=False)
    def task():
        ran.append(True)

    with publish_batch(app):
        task.delay()
    if settings.get("task_always_eager"):
        assert ran
    else:
        with app.connection_for_read() as connection:
            assert connection.default_channel._size("elsewhere") == 1
    close_app(app)


def test_a_retry_policy_makes_no_other_context():
    """kombu notes the policy of a publication among the connection's transport options."""
    app = make_app("app", {"broker_url": "sqs://k:s@127.0.0.1:9"}, set_as_current=False)
    with app.connection_for_write() as one, app.connection_for_write() as another:
        one.transport_options.update(app.conf.task_publish_retry_policy, retry_errors=(OSError,))
        assert one.transport.context is another.transport.context
        assert one.transport.context.new_sender is broker_of(app)
    close_app(app)


def publish_and_raise(site, error):
    with publish_batch("app"):
        site.publish("a")
        raise error


def test_in_a_fifo_queue_a_block_waits_for_nothing_where_none_was_published_around_it(site):
    with publish_batch("app"), publish_batch("app"):
        assert site.publish("a", queue="q.fifo")
    assert site.requests() == [["a"]]


def test_a_block_that_is_closed_takes_nothing_and_is_closed_once(site):
    with publish_batch("app") as batch:
        site.publish("a")
    assert not batch.put(Queues(site.sqs).find("app-q"), OutgoingMessage("b"), "b")
    assert batch.close() is None
    assert site.requests() == [["a"]]

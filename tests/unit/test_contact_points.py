"""Where we touch what Celery, kombu and botocore keep to themselves: a test each, to fail when it moves."""

from __future__ import annotations

import contextlib
import inspect
import subprocess
import sys
from datetime import datetime, timedelta, timezone

import billiard.pool
import botocore.credentials
import botocore.endpoint
import botocore.parsers
import botocore.session
import botocore.signers
import celery._state
import celery.app.autoretry
import celery.app.trace
import celery.apps.worker
import celery.bootsteps
import celery.concurrency.asynpool
import celery.concurrency.base
import celery.concurrency.prefork
import celery.concurrency.thread
import celery.events.dispatcher
import celery.events.event
import celery.worker.consumer.connection
import celery.worker.consumer.consumer
import celery.worker.consumer.tasks
import celery.worker.request
import celery.worker.state
import celery.worker.strategy
import celery.worker.worker
import kombu.asynchronous.hub
import kombu.common
import kombu.connection
import kombu.message
import kombu.messaging
import kombu.pidbox
import kombu.serialization
import kombu.transport
import kombu.transport.virtual
import kombu.transport.virtual.exchange
import kombu.utils.limits
import pytest
from celery import Celery
from celery.app.task import Context, Task
from celery.backends.redis import RedisBackend
from support.ends import CELERY

from celery_sqs_visibility.aws.client_factory import Purpose, new_client
from celery_sqs_visibility.aws.client_settings import ClientSettings
from celery_sqs_visibility.policy.retry_delays import CELERY_RETRY_DELAY_SECONDS
from celery_sqs_visibility.task.context import DeliveryContext
from celery_sqs_visibility.transport import channel, exchanges
from celery_sqs_visibility.transport.codec import eta_of
from celery_sqs_visibility.transport.temporary_queues import temporary


def noop():
    """A task."""


def calls(function, *names):
    """Assert that the source of a function of Celery's still mentions what we rely on."""
    source = inspect.getsource(function)
    for name in names:
        assert name in source, (
            f"{function.__module__}.{function.__qualname__} no longer mentions {name!r}: "
            "see which module of celery_sqs_visibility names it in its docstring, and adapt that one"
        )


def test_kombu_loads_the_entry_points_we_hide_behind():
    calls(kombu.serialization, "entrypoints('kombu.serializers')")
    assert kombu.transport.TRANSPORT_ALIASES["celery_sqs_visibility"] == "celery_sqs_visibility:Transport"


ETAS = [datetime(2030, 1, 1, 12), datetime(2030, 7, 1, 12, tzinfo=timezone(timedelta(hours=-5)))]  # noqa: DTZ001
JAPAN = {"timezone": "Asia/Tokyo"}


@pytest.mark.parametrize("eta", ETAS, ids=["naive", "aware"])
@pytest.mark.parametrize("settings", [{}, {"enable_utc": False}, JAPAN, {**JAPAN, "enable_utc": False}])
def test_celery_takes_an_eta_for_the_instant_that_we_take_it_for(settings, eta):
    with Celery("test", set_as_current=False, broker="memory://") as app:
        app.conf.update(settings)
        task = app.task(noop, name="task", shared=False)
        sent = app.amqp.as_task_v2("id-1", "task", eta=eta)
        message = kombu.message.Message(headers=sent.headers, properties=sent.properties, delivery_tag="tag")
        request = celery.worker.request.Request(message, app=app, task=task, body=sent.body, decoded=True)
    instant = eta.replace(tzinfo=eta.tzinfo or timezone.utc).timestamp()
    assert request.eta.timestamp() == eta_of(sent.headers) == instant


def test_importing_kombu_imports_nothing_heavy_of_ours():
    code = (
        "import kombu.serialization, sys;"
        "ours = {m for m in sys.modules if m.startswith('celery_sqs_visibility')};"
        "assert ours == {'celery_sqs_visibility', 'celery_sqs_visibility.alias'}, ours;"
        "assert 'boto3' not in sys.modules and 'celery' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_worker_has_its_bootsteps_before_it_builds_its_blueprints():
    source = inspect.getsource(celery.worker.worker.WorkController.setup_instance)
    assert source.index("worker_init.send") < source.index("Blueprint(")
    source = inspect.getsource(celery.worker.consumer.consumer.Consumer.__init__)
    assert source.index("self.conninfo.connection_errors") < source.index("self.app.steps['consumer']")
    app = celery.Celery("app", set_as_current=False)
    assert app in celery._state._get_active_apps()
    app.close()


def test_a_request_keeps_its_facts_where_we_complete_them():
    calls(celery.worker.request.Request.__init__, "self._request_dict", "self._delivery_info")
    calls(
        celery.worker.request.Request,
        "def acknowledge",
        "def reject",
        "self.acknowledged",
        "_already_cancelled",
    )
    calls(
        celery.worker.request.create_request_cls, "def on_success", "def execute_using_pool", "self.revoked()"
    )


def test_a_run_is_ended_by_its_process_and_then_called_terminated():
    calls(
        celery.worker.request.Request.cancel,
        "pool.terminate_job(self.worker_pid, signal)",
        "self._announce_cancelled(",
    )
    calls(celery.worker.request.Request._announce_cancelled, "task_ready(self)", "task-cancelled")
    calls(celery.worker.request.Request.terminate, "pool.terminate_job", "self._terminate_on_ack")
    calls(celery.worker.request.Request.on_failure, "isinstance(exc, Terminated)", "self._announce_revoked(")
    calls(celery.worker.state.task_ready, "active_requests")
    calls(kombu.asynchronous.hub.Hub.call_soon, "self._ready_lock", "self._ready.add(callback)")


def test_the_consumer_turns_bad_messages_away_in_the_four_methods_we_replace():
    calls(
        celery.worker.consumer.consumer.Consumer.create_task_handler,
        "self.on_unknown_message",
        "self.on_unknown_task",
        "self.on_invalid_task",
        "self.on_decode_error",
    )


def test_the_tracer_records_a_retry_and_runs_what_we_wrap():
    calls(
        celery.app.trace.build_tracer,
        "except Retry as exc",
        "task.run",
        "task_before_start(uuid, args, kwargs)",
        "Info=TraceInfo",
        "I, R, state, retval = on_error(",
        "return trace_ok_t(R, I, T, Rstr)",
    )
    calls(celery.app.trace.TraceInfo.handle_error_state, "self.handle_retry", "self.handle_failure")
    calls(celery.app.trace.fast_trace_task, "tasks[task].__trace__(")


@pytest.mark.skipif(CELERY < (5, 7), reason="Celery claims the body of a chord since 5.7")
def test_the_body_of_a_chord_is_claimed_for_a_while():
    calls(
        RedisBackend.on_chord_part_return,
        "claim_expires = max(5, int(join_timeout * 2))",
        "self._chord_publish_claim_expires(",
        "_retry_publish(callback.delay, resl)",
    )
    calls(celery.worker.request.Request.on_failure, "self._success_was_stored()")


def test_a_retry_that_cannot_be_published_is_rejected_in_celerys_own_file():
    calls(Task.retry, "S.apply_async()", "raise Reject(exc, requeue=False)")


def test_a_shutdown_tells_how_and_prefork_alone_has_a_semaphore():
    calls(celery.apps.worker._shutdown_handler, "worker_shutting_down.send", "how=how", "sig=sig")
    calls(celery.apps.worker._shutdown_handler, "_handle_request.__name__ = str(f'worker_{how}')")
    calls(celery.worker.worker.WorkController.__init__, "self.setup_instance(")
    calls(celery.apps.worker.Worker.on_start, "self.install_platform_tweaks(self)")
    calls(celery.worker.worker.WorkController.signal_consumer_close, "self.consumer.close()")
    calls(celery.worker.worker.WorkController.on_stopped, "self.consumer.shutdown()")
    calls(celery.bootsteps.Blueprint.send_all, "reverse=True")
    calls(celery.worker.worker.WorkController._process_task, "self._quick_release()")
    assert celery.concurrency.prefork.TaskPool.uses_semaphore
    assert not celery.concurrency.thread.TaskPool.uses_semaphore
    calls(celery.concurrency.base.apply_target, "accept_callback(pid or getpid(), monotonic())")


def test_at_a_consumers_end_the_pool_forgets_what_no_child_has_accepted():
    calls(celery.worker.consumer.consumer.Consumer.on_close, "self.pool.flush()")
    calls(celery.concurrency.asynpool.AsynPool.flush, "self._cache", "job._accepted", "_state == RUN:")
    calls(celery.concurrency.asynpool.AsynPool._flush_writer, "self._active_writers.discard(writer)")
    calls(celery.concurrency.asynpool._get_job_writer, "writer = job._writer", "return writer()")
    calls(celery.concurrency.asynpool.AsynPool.on_job_process_lost, "self.mark_as_worker_lost(job, exitcode)")
    calls(billiard.pool.ApplyResult._ack, "self._worker_pid = pid")
    calls(billiard.pool.Pool._join_exited_workers, "self._cache.values()", "job.worker_pids()")
    calls(celery.concurrency.asynpool.AsynPool._create_write_handlers, "job._write_to = proc")


def test_celery_makes_a_task_of_a_base_that_is_a_class():
    calls(Celery._task_from_fun, "type(fun.__name__, (base,)")


def test_autoretry_lets_a_retry_pass():
    calls(
        celery.app.autoretry.add_autoretry_behaviour,
        "except Retry:",
        "task._orig_run, task.run = task.run, run",
    )


def test_pools_without_processes_give_a_lost_run_to_the_callback():
    calls(celery.concurrency.base.apply_target, "except BaseException", "callback(ExceptionInfo())")


def test_a_hard_time_limit_is_told_to_on_failure_before_on_timeout():
    source = inspect.getsource(billiard.pool.TimeoutHandler.on_hard_timeout)
    assert source.index("job._set(") < source.index("job.handle_timeout(soft=False)")


def test_what_context_knows_is_not_sent_along_as_a_header():
    assert issubclass(DeliveryContext, Context)
    assert Context({"sqs": {"queue": "q"}, "mine": 1}).headers == {"mine": 1}


def test_celerys_default_retry_delay_is_what_the_docs_say():
    assert Task.default_retry_delay == CELERY_RETRY_DELAY_SECONDS == 180


@pytest.mark.parametrize("name", ["_consumers", "_tag_to_queue", "_active_queues"])
def test_the_virtual_channel_keeps_its_consumers_where_we_look(name):
    calls(kombu.transport.virtual.Channel.__init__, name)


def test_the_virtual_channel_tells_its_qos_of_a_message_before_its_consumer():
    source = inspect.getsource(kombu.transport.virtual.Channel.basic_consume)
    assert source.index("self.qos.append(message, message.delivery_tag)") < source.index(
        "return callback(message)"
    )


def test_a_consumer_connects_before_it_consumes_and_an_exit_code_ends_the_worker():
    calls(celery.worker.consumer.connection.Connection.start, "c.connection = c.connect()")
    calls(celery.worker.worker.WorkController.start, "except SystemExit as exc", "exitcode=exc.code")
    calls(celery.worker.state.maybe_shutdown, "should_stop", "should_terminate")


def test_boto3s_clients_have_the_parts_that_requests_are_made_with():
    assert callable(botocore.endpoint.convert_to_response_dict)
    assert callable(botocore.parsers.create_parser)
    client = new_client(ClientSettings("eu-west-1", access_key_id="a", secret_access_key="b"), Purpose.SETTLE)
    assert callable(client._endpoint.http_session.send)
    assert isinstance(client._endpoint.http_session._socket_options, list)
    calls(botocore.signers.RequestSigner.sign, "'before-sign.", "request=request", "request_signer=self")
    calls(botocore.session.Session.get_credentials, "self._credentials")
    assert callable(botocore.credentials.create_assume_role_refresher)


def test_kombu_connects_anew_before_it_publishes_again_and_says_how_long_to_wait():
    calls(
        kombu.connection.Connection.ensure,
        "conn_errors = self.recoverable_connection_errors",
        "if max_retries is not None and retries >= max_retries:",
    )
    source = inspect.getsource(kombu.connection.Connection.ensure)
    assert source.index("self.collect()") < source.index("self._ensure_connection(")
    calls(kombu.connection.Connection._connection_factory, "self._establish_connection()")
    calls(kombu.messaging.Producer.publish, "self.connection.transport_options.update(retry_policy)")
    calls(kombu.connection.Connection._do_close_transport, "self._transport = None")


def test_a_generator_has_one_frame_and_contextlib_enters_from_its_own_module():
    def generator():
        yield sys._getframe()
        yield sys._getframe()

    one, again = generator_frames = list(generator())
    assert one is again
    assert all(frame.f_code.co_flags & inspect.CO_GENERATOR for frame in generator_frames)
    assert contextlib._GeneratorContextManager.__enter__.__globals__["__name__"] == "contextlib"
    assert contextlib.ExitStack.enter_context.__globals__["__name__"] == "contextlib"


def test_celery_publishes_unasked_to_the_exchanges_that_we_let_through():
    assert kombu.pidbox.Mailbox.exchange_fmt.endswith(exchanges.CONTROL_SUFFIX)
    assert kombu.pidbox.Mailbox.reply_exchange_fmt.endswith(exchanges.CONTROL_SUFFIX)
    assert celery.events.event.EVENT_EXCHANGE_NAME == exchanges.EVENT_EXCHANGE
    calls(celery.events.dispatcher.EventDispatcher, "name=self.app.conf.event_exchange")


def test_a_workers_consumer_is_known_by_what_it_does_with_bad_messages():
    calls(celery.worker.consumer.tasks.Tasks.start, "on_decode_error=c.on_decode_error")
    on_decode_error = celery.worker.consumer.consumer.Consumer.on_decode_error
    assert on_decode_error.__module__ == channel.CELERYS_CONSUMER


def test_a_client_of_rpc_has_a_temporary_queue():
    app = celery.Celery("rpc", set_as_current=False, backend="rpc://")
    queue = app.backend.binding
    attributes = temporary(queue.name, auto_delete=queue.auto_delete, arguments={"x-expires": 3_600_000})
    assert attributes == {"MessageRetentionPeriod": "3600"}
    assert temporary(queue.name, auto_delete=queue.auto_delete, arguments={}) == {}
    app.close()


def test_the_virtual_channel_deletes_what_is_bound_which_we_do_not():
    calls(kombu.transport.virtual.Channel.exchange_delete, "self.queue_delete(")
    calls(kombu.transport.virtual.Channel.queue_declare, "self._size(queue)", "self._has_queue(")
    calls(kombu.transport.virtual.exchange.DirectExchange.deliver, "self.channel._lookup")


def test_celery_holds_what_exceeds_a_rate_in_buckets_that_we_stand_before():
    calls(
        celery.worker.strategy.default, "consumer._limit_task", "consumer._limit_post_eta", "limit_task(req"
    )
    consumer = celery.worker.consumer.consumer.Consumer
    calls(consumer._schedule_bucket_request, "self._limit_move_to_pool(request)", "bucket.can_consume")
    calls(consumer._limit_post_eta, "self.qos.decrement_eventually()", "bucket.add((request, tokens))")
    bucket = kombu.utils.limits.TokenBucket(2)
    assert (bucket.fill_rate, len(bucket.contents), bucket.expected_time(1)) == (2, 0, 0)
    qos = kombu.common.QoS(print, 2)
    assert (qos.increment_eventually(), qos.value) == (3, 3)

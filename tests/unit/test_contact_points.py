"""Where we touch what Celery, kombu and botocore keep to themselves: a test each, to fail when it moves."""

import inspect
import json
import pkgutil
import re
import subprocess
import sys
import sysconfig
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace

import botocore.credentials
import botocore.endpoint
import botocore.parsers
import celery._state
import celery.app.trace
import celery.concurrency.prefork
import celery.concurrency.thread
import celery.events.event
import kombu.common
import kombu.message
import kombu.pidbox
import kombu.pools
import kombu.transport
import kombu.transport.memory
import kombu.utils.limits
import kombu.utils.url
import pytest
from celery import Celery
from celery.app.task import Context, Task
from celery.worker.consumer.consumer import Consumer
from celery.worker.request import Request
from kombu.transport import SQS
from support.ends import CELERY
from support.private_names import PACKAGE, modules, names_of_others, replaced_methods

from celery_sqs_visibility.aws import topics
from celery_sqs_visibility.aws.client_factory import ClientPurpose, new_client
from celery_sqs_visibility.aws.client_settings import ClientSettings
from celery_sqs_visibility.aws.topics import allow_topics
from celery_sqs_visibility.contacts.botocore import registrations_of
from celery_sqs_visibility.operate.doctor.kombu_changes import DEFAULTS
from celery_sqs_visibility.policy.control_names import Use, replies_of, use_of
from celery_sqs_visibility.policy.retries import CELERY_RETRY_DELAY_SECONDS
from celery_sqs_visibility.task.context import DeliveryContext
from celery_sqs_visibility.transport import channel, transport
from celery_sqs_visibility.transport.encoding import eta_of
from celery_sqs_visibility.transport.temporary_queues import temporary

#: Sources that we rely on and what they mention; with " ... " between, in that order.
MENTIONED = [
    # Kombu's backoff policy is for rejected messages, by the receives that SQS counts.
    ("kombu.transport.SQS:QoS.apply_backoff_policy", "policy_value = backoff_policy.get(number_of_retries)"),
    ("kombu.transport.SQS:QoS.extract_task_name_and_number_of_retries", "['ApproximateReceiveCount']"),
    ("celery.worker.request:Request.on_failure", "self.reject(requeue=False)"),
    # A doctor reads settings without defaults, and an app of kombu's transport by ours.
    ("celery.app.base:Celery._connection", "transport or conf.broker_transport"),
    ("celery.app.routes:Router.expand_destination", "raise QueueNotFound"),
    # A pool's process deletes its control queues as it ends, without exit hooks.
    ("billiard.pool:Worker._do_exit", "self.on_exit(pid, exitcode)", "os._exit(exitcode)"),
    ("celery.concurrency.prefork:process_destructor", "signals.worker_process_shutdown.send("),
    # Settings are shown without secrets, by our function in the place of Celery's.
    ("celery.app.utils:Settings.table", "filter_hidden_settings if censored"),
    # Kombu loads the entry points we hide behind.
    ("kombu.serialization", "entrypoints('kombu.serializers')"),
    # Kombu decompresses by the header that we keep from it.
    ("kombu.message:Message.__init__", "self.headers.get('compression')"),
    # Kombu asks us how to show a connection, though it parses the URL.
    ("kombu.connection:Connection.__init__", "get_transport_cls(transport).can_parse_url"),
    ("kombu.connection:Connection.__init__", "urlparse(hostname).scheme"),
    (
        "kombu.connection:Connection.as_uri",
        "if self.transport.can_parse_url:",
        "return self.transport.as_uri(",
    ),
    ("kombu.transport:resolve_transport", "transport = TRANSPORT_ALIASES[transport]", "callable(transport)"),
    # What a Lambda function does in place of Celery's consumer and pool.
    ("celery.worker.request:create_request_cls", "trace=None, app=", "if self.revoked():", "apply_async("),
    ("celery.worker.strategy:default", "hybrid_to_proto2(message,", "proto1_to_proto2(message, body)"),
    ("celery.worker.strategy:default", "on_ack=ack", "body=body, headers=headers, decoded=decoded, utc=utc"),
    ("celery.app.trace:trace_task_ret", "app=None", "trace_task(app.tasks[name],"),
    ("celery.concurrency.base:apply_target", "accept_callback(pid or getpid(), ", "callback(ret)"),
    # Apps of this process, and settings that an app shows.
    ("celery._state:_get_active_apps", "return _apps"),
    # What a request does not know is sent along.
    ("celery.app.task:Context._get_custom_headers", "Context.__dict__.keys()"),
    # A limit that was given to one retry stays on the task.
    ("celery.app.task:Task.retry", "self.override_max_retries = max_retries"),
    # Billiard's pool is in Celery's, its processes in that, and each ends so at SIGTERM.
    ("celery.concurrency.prefork:TaskPool.on_start", "P = self._pool = Pool("),
    ("celery.concurrency.prefork:TaskPool.num_processes.fget", "return self._pool._processes"),
    ("billiard.pool:Pool.__init__", "self._pool = []"),
    # A pool of greenlets that has grown has a pool of another size.
    ("celery.concurrency.gevent:TaskPool.grow", "self._pool.size"),
    ("celery.concurrency.eventlet:TaskPool.on_start", "self._pool = "),
    ("billiard.common:reset_signals", "handler=_shutdown_cleanup"),
    # A thread says that it has started by an event of its own.
    ("threading:Thread.start", "self._started.wait()"),
    # A codec knows whether it makes text.
    ("codecs:CodecInfo", "_is_text_encoding = True", "self._is_text_encoding = _is_text_encoding"),
    # Celery makes a task of a base that is a class.
    ("celery.app.base:Celery._task_from_fun", "type(fun.__name__, (base,)"),
    # Beat looks at its transport, and says that it starts, before anything is due.
    ("celery.apps.beat:Beat.startup_info", "self.app.connection().as_uri()"),
    (
        "celery.beat:Service.start",
        "signals.beat_init.send(sender=self) ... try: ... self.scheduler.tick()",
    ),
    ("celery.utils.dispatch.signal:Signal.send", "except Exception as exc"),  # and no SystemExit
    ("celery.beat:Scheduler.apply_entry", "exc_info=True"),
    # An entry is counted as run, and then sent with its old time; its interval starts at `last_run_at`.
    (
        "celery.beat:Scheduler.tick",
        "self.is_due(entry) ... next_entry = self.reserve(entry) ... self.apply_entry(entry,",
    ),
    ("celery.beat:Scheduler.populate_heap", "self.schedule.values() ... entry.is_due()"),
    ("celery.beat:Scheduler.reserve", "new_entry = self.schedule[entry.name] = next(entry)"),
    ("celery.beat:Scheduler.apply_async", "self.reserve(entry) if advance else entry ... entry.options"),
    ("celery.beat:ScheduleEntry.is_due", "self.schedule.is_due(self.last_run_at)"),
    # The ETA of protocol 1 is in the body.
    ("celery.app.amqp:AMQP.as_task_v1", "body={ ... 'eta': eta"),
    ("celery.apps.worker:Worker.startup_info", "self.app.connection().as_uri()"),
    # A worker has its bootsteps before it builds its blueprints.
    ("celery.worker.worker:WorkController.setup_instance", "worker_init.send ... Blueprint("),
    (
        "celery.worker.consumer.consumer:Consumer.__init__",
        "self.conninfo.connection_errors ... self.app.steps['consumer']",
    ),
    # A request keeps its facts where we complete them.
    ("celery.worker.request:Request", "__slots__ = ( ... '_eta', '_expires', '_request_dict', "),
    ("celery.worker.request:Request.eta.fget", "return self._eta"),
    (
        "celery.worker.request:Request.__init__",
        "self._request_dict = ",
        "'delivery_info': self._delivery_info",
    ),
    ("celery.worker.request:Request", "def _context(self): ... return Context(request)"),
    ("celery.worker.request:Request", "def acknowledge", "def reject", "self.acknowledged"),
    ("celery.worker.request:Request", "_already_cancelled"),
    ("celery.worker.request:create_request_cls", "def on_success", "def execute_using_pool"),
    ("celery.worker.request:create_request_cls", "self.revoked()"),
    # Celery reads of a message what we look at and frees the slot of what was revoked.
    ("celery.worker.request:Request.__init__", "'id'", "'task'", "'shadow'", "'root_id'", "'parent_id'"),
    ("celery.worker.request:Request.__init__", "'timelimit'", "'eta'", "'expires'"),
    # A consumer is made with what gives requests to the pool, which frees the slot of what was revoked.
    (
        "celery.worker.worker:WorkController._process_task",
        "req.execute_using_pool(self.pool) ... except TaskRevokedError: ... self._quick_release()",
    ),
    ("celery.worker.worker:WorkController._process_task_sem", "self._quick_acquire(self._process_task, req)"),
    (
        "celery.worker.components:Pool.create",
        "w.semaphore = LaxBoundedSemaphore( ... w._quick_acquire = w.semaphore.acquire",
        "if w.pool_putlocks and w.pool_cls.uses_semaphore: ... w.process_task = w._process_task_sem",
    ),
    ("celery.worker.components:Consumer.create", "w.consumer_cls, w.process_task"),
    ("celery.worker.strategy:default", "handle = consumer.on_task_request ... handle(req)"),
    ("celery.worker.consumer.consumer:Consumer._limit_move_to_pool", "self.on_task_request(request)"),
    ("celery.worker.consumer.consumer:Consumer.apply_eta_task", "self.on_task_request(task)"),
    # A run is ended by its process and then called terminated.
    ("celery.worker.request:Request.cancel", "pool.terminate_job(self.worker_pid, signal)"),
    ("celery.worker.request:Request.cancel", "self._announce_cancelled("),
    ("celery.worker.request:Request._announce_cancelled", "task_ready(self)", "task-cancelled"),
    ("celery.worker.request:Request.terminate", "pool.terminate_job", "self._terminate_on_ack"),
    ("celery.worker.request:Request.on_failure", "isinstance(exc, Retry)", "return self.on_retry(exc_info)"),
    ("celery.worker.request:Request.on_failure", "isinstance(exc, Terminated)", "self._announce_revoked("),
    ("celery.worker.request:Request.on_failure", "not self._already_cancelled and not self._already_revoked"),
    ("celery.worker.request:Request._announce_revoked", "self._already_revoked = True"),
    # Its class has the pool's method that we replace.
    ("celery.worker.request:create_request_cls", "apply_async = pool.apply_async"),
    ("celery.concurrency.base:BasePool.apply_async", "self.on_apply("),
    ("celery.worker.state:task_ready", "active_requests"),
    ("kombu.asynchronous.hub:Hub.call_soon", "self._ready_lock", "self._ready.add(callback)"),
    # The loop comes round every ten seconds at the least, and says so.
    ("kombu.asynchronous.hub:Hub.fire_timers", "max_delay=10"),
    ("kombu.asynchronous.hub:Hub.fire_timers", "min(delay or min_delay, max_delay)"),
    ("kombu.asynchronous.hub:Hub.create_loop", "fire_timers = self.fire_timers"),
    ("kombu.asynchronous.hub:Hub.create_loop", "else 1 ... for tick_callback in copy(self.on_tick)"),
    ("celery.worker.loops:synloop", "connection.drain_events(timeout=2.0)"),
    # What watches a worker starts before it connects, and ends after its pool has.
    ("celery.worker.consumer.connection:Connection.start", "c.connect()"),
    (
        "celery.worker.worker:WorkController.stop",
        "self._shutdown(warm=True) ... self._send_worker_shutdown()",
    ),
    ("celery.worker.worker:WorkController._send_worker_shutdown", "worker_shutdown.send(sender=self)"),
    # Celery makes its handler of messages where we wrap it.
    ("celery.worker.loops:asynloop", "obj.create_task_handler()"),
    ("celery.worker.loops:synloop", "obj.create_task_handler()"),
    # The consumer turns bad messages away in the four methods we replace.
    ("celery.worker.consumer.consumer:Consumer.create_task_handler", "self.on_unknown_message"),
    ("celery.worker.consumer.consumer:Consumer.create_task_handler", "self.on_unknown_task"),
    ("celery.worker.consumer.consumer:Consumer.create_task_handler", "self.on_invalid_task"),
    ("celery.worker.consumer.consumer:Consumer.create_task_handler", "self.on_decode_error"),
    # The tracer records a retry and runs what we wrap.
    ("celery.app.trace:build_tracer", "except Retry as exc", "task.run"),
    ("celery.app.trace:build_tracer", "task_before_start(uuid, args, kwargs)", "Info=TraceInfo"),
    ("celery.app.trace:build_tracer", "I, R, state, retval = on_error(", "return trace_ok_t(R, I, T, Rstr)"),
    ("celery.app.trace:TraceInfo.handle_error_state", "self.handle_retry", "self.handle_failure"),
    ("celery.app.trace:fast_trace_task", "tasks[task].__trace__("),
    # A run that does not take place ends as one that was rejected.
    ("celery.app.trace:fast_trace_task", "return (1, R, T) if I else (0, Rstr, T)"),
    ("celery.worker.request:create_request_cls", "if failed:", "self.on_failure(retval, return_ok=True)"),
    ("celery.app.trace:TraceInfo.handle_failure", "self._log_error(task, req, einfo)"),
    # A worker sets the root logger's level, unless somebody else sets up logging.
    (
        "celery.app.log:Logging.setup_logging_subsystem",
        "signals.setup_logging.send( ... if not receivers:",
    ),
    ("celery.app.log:Logging._configure_logger", "logger.setLevel(loglevel)"),
    # A retry that cannot be published is rejected in Celery's own file.
    ("celery.app.task:Task.retry", "S.apply_async()", "raise Reject(exc, requeue=False)"),
    # A retry is published as the task it was, and eagerly called again.
    ("celery.app.task:Task.signature_from_request", "request.as_execution_options()", "**extra_options"),
    ("celery.app.task:Context.as_execution_options", "'chain'", "'chord'", "'link_error'", "'headers'"),
    ("celery.app.task:Task.apply", "retval.sig.apply(retries=retries + 1)"),
    # A shutdown tells how.
    ("celery.apps.worker:_shutdown_handler", "worker_shutting_down.send", "how=how", "sig=sig"),
    ("celery.apps.worker:_shutdown_handler", "_handle_request.__name__ = str(f'worker_{how}')"),
    # What keeps a worker whose time is up from ending.
    ("celery.concurrency.thread:TaskPool.on_stop", "self.executor.shutdown("),
    ("celery.concurrency.base:apply_target", "except (WorkerShutdown, WorkerTerminate):", "raise"),
    ("concurrent.futures.thread:ThreadPoolExecutor", "self._threads = set()"),
    ("concurrent.futures.thread:_python_exit", "t.join()"),
    ("threading:_register_atexit", "_threading_atexits.append("),
    ("threading:_shutdown", "reversed(_threading_atexits)"),
    # SIGHUP, and the status after SIGINT.
    ("celery.apps.worker:install_worker_restart_handler", "def restart_worker_sig_handler("),
    ("celery.apps.worker:_reload_current_worker", "[sys.executable] + sys.argv"),
    ("celery.worker.worker:WorkController.start", "self.stop(exitcode=exc.code)"),
    ("celery.worker.worker:WorkController.__init__", "self.setup_instance("),
    ("celery.apps.worker:Worker.on_start", "self.install_platform_tweaks(self)"),
    ("celery.worker.worker:WorkController.signal_consumer_close", "self.consumer.close()"),
    ("celery.worker.worker:WorkController.on_stopped", "self.consumer.shutdown()"),
    ("celery.bootsteps:Blueprint.send_all", "reverse=True"),
    ("celery.concurrency.base:apply_target", "accept_callback(pid or getpid(), monotonic())"),
    # At a consumer's end the pool forgets what no child has accepted, and we what no child was sent.
    ("celery.worker.consumer.consumer:Consumer.on_close", "self.pool.flush()"),
    ("celery.concurrency.asynpool:AsynPool.flush", "self._cache", "self.outbound_buffer.clear()"),
    ("celery.concurrency.asynpool:AsynPool.flush", "self.maintain_pool()", "self._active_writers"),
    ("celery.concurrency.asynpool:AsynPool._flush_writer", "self._active_writers.discard(writer)"),
    ("celery.concurrency.asynpool:_get_job_writer", "writer = job._writer", "return writer()"),
    (
        "celery.concurrency.asynpool:AsynPool._create_write_handlers",
        "outbound = self.outbound_buffer",
        "job = pop_message() ... job._write_to = proc",
        "outbound.appendleft(job)",
    ),
    # A child that ends before it has read what it was sent leaves that to another, by another pipe.
    ("billiard.pool:Pool.maintain_pool", "self._state == RUN: ... self._maintain_pool()"),
    ("billiard.pool:Pool._join_exited_workers", "self._cache.values() ... self.on_job_process_down(job, "),
    (
        "celery.concurrency.asynpool:AsynPool.on_job_process_down",
        "not job._write_to._is_alive(): ... self.on_partial_read(job, job._write_to)",
    ),
    (
        "celery.concurrency.asynpool:AsynPool.on_partial_read",
        "self._put_back(job) ... self.destroy_queues(queues, proc)",
    ),
    # At a shutdown it sleeps at each child that has nothing to say.
    ("billiard.pool:Pool.__init__", "self._result_handler = self.create_result_handler()"),
    (
        "celery.concurrency.asynpool:ResultHandler.on_stop_not_started",
        "for fd in outqueues",
        "self._flush_outqueue",
    ),
    ("celery.concurrency.asynpool:ResultHandler._flush_outqueue", "sleep(0.5)", "remove(fd)"),
    ("billiard.pool:ApplyResult._ack", "self._accept_callback(pid,"),
    ("billiard.common:_shutdown_cleanup", "sys.exit("),
    # A run's MemoryError would end the worker.
    ("celery.worker.request:Request.on_failure", "raise MemoryError(f'Process got: {exc}')"),
    # The loss of a run tells the status of its process in its text alone.
    ("billiard.pool:Pool.mark_as_worker_lost", "'Worker exited prematurely: {0} Job: {1}.'"),
    (
        "billiard.common:_shutdown_cleanup",
        "os._exit(EX_SOFTWARE) ... _should_have_exited[0] = True ... sys.exit(-(256 - signum))",
    ),
    # A job that was not sent can be taken back.
    ("billiard.pool:ApplyResult", "self._accepted", "self._callback", "def discard"),
    ("billiard.pool:ApplyResult", "self._cache.pop(self._job, None)"),
    # Autoretry lets a retry pass.
    ("celery.app.autoretry:add_autoretry_behaviour", "except Retry:"),
    ("celery.app.autoretry:add_autoretry_behaviour", "task._orig_run, task.run = task.run, run"),
    # Pools without processes give a lost run to the callback.
    ("celery.concurrency.base:apply_target", "except BaseException", "callback(ExceptionInfo())"),
    # A hard time limit is told to on_failure before on_timeout, and the process killed after that.
    (
        "billiard.pool:TimeoutHandler.on_hard_timeout",
        "job._set( ... self._process_by_pid(job._worker_pid) ... job.handle_timeout(soft=False)",
        "self._trywaitkill(process)",
    ),
    (
        "celery.concurrency.asynpool:AsynPool.__init__",
        "self.on_hard_timeout = getattr( ... self._timeout_handler, 'on_hard_timeout'",
    ),
    ("celery.concurrency.asynpool:AsynPool._on_hard_timeout", "self.on_hard_timeout(result)"),
    # Our channel keeps its consumers itself, and does with a message what the virtual channel does.
    ("kombu.transport.virtual:Channel.__init__", "_consumers", "_tag_to_queue", "_active_queues"),
    (
        "kombu.transport.virtual:Channel.basic_consume",
        "self.qos.append(message, message.delivery_tag) ... return callback(message)",
    ),
    # A message is made as kombu's constructors make it, and read by its decoders.
    ("kombu.transport.virtual:Message.__init__", "self._raw = payload"),
    ("kombu.message:Message.__init__", "self._decoded_cache = None", "self._state = 'RECEIVED'"),
    ("kombu.message:Message.acknowledged.fget", "self._state in ACK_STATES"),
    ("kombu.message:Message.payload.fget", "self._decoded_cache if self._decoded_cache else self.decode()"),
    ("kombu.message:Message._decode", "return loads(self.body"),
    ("kombu.serialization:SerializerRegistry.register", "self._decoders[content_type] ="),
    ("kombu.serialization:SerializerRegistry.loads", "self._decoders.get(content_type)"),
    # The virtual channel asks an exchange where a message goes, if there is a table of its bindings.
    (
        "kombu.transport.virtual:Channel._lookup",
        "default = self.deadletter_queue ... self.typeof(exchange).lookup( ... self.get_table(exchange),",
    ),
    # The virtual channel deletes what is bound, which we do not.
    ("kombu.transport.virtual:Channel.exchange_delete", "self.queue_delete("),
    ("kombu.transport.virtual:Channel.queue_declare", "self._size(queue)", "self._has_queue("),
    ("kombu.transport.virtual.exchange:DirectExchange.deliver", "self.channel._lookup"),
    # The virtual channel leaves fanout to us.
    (
        "kombu.transport.virtual.exchange:FanoutExchange.deliver",
        "if self.channel.supports_fanout: ... self.channel._put_fanout(",
    ),
    ("kombu.transport.virtual:Channel.queue_bind", "if self.supports_fanout: ... self._queue_bind("),
    ("kombu.transport.virtual:Channel.basic_publish", "self.typeof(exchange).deliver("),
    # Remote control: which queues there are, when they are declared, where a shutdown goes.
    ("celery.worker.consumer.control:Control.include_if", "c.conninfo.supports_exchange_type('fanout')"),
    ("kombu.connection:Connection.supports_exchange_type", "self.transport.implements.exchange_type"),
    ("kombu.pidbox:Mailbox.get_queue", "f'{hostname}.{self.namespace}.pidbox'"),
    ("kombu.pidbox:Mailbox.get_reply_queue", "f'{oid}.{self.reply_exchange.name}'", "routing_key=oid"),
    (
        "kombu.pidbox:Mailbox._publish",
        "maybe_declare(self.reply_queue(chan)) ... reply_to={'exchange': ... 'routing_key': self.oid}",
        "'expires': time() + timeout if timeout else 0",
    ),
    (
        "kombu.pidbox:Mailbox._collect",
        "self.connection.drain_events(timeout=timeout)",
        "chan.after_reply_message_received(queue.name)",
    ),
    ("kombu.pidbox:Node.dispatch", "except SystemExit: ... raise"),
    ("kombu.pidbox:Node.handle_call", "return self.handle(method, arguments)"),
    ("kombu.pidbox:Node.dispatch", "reply_to and self.handle_call", "reply = {'error': repr(exc)}"),
    ("celery.apps.worker:install_worker_restart_handler", "atexit.register(_reload_current_worker)"),
    ("celery.worker.control:shutdown", "raise WorkerShutdown(EX_OK)"),
    ("celery.worker.state:maybe_shutdown", "raise WorkerShutdown(should_stop)"),
    ("celery.worker.pidbox:Pidbox.start", "c.connection.channel() ... self.node.listen("),
    # A Broadcast has a queue of its own, which Celery declares nowhere but where it consumes.
    ("kombu.common:Broadcast.__init__", "'{}.{}'.format(queue or 'bcast', uuid()) ... f'bcast.{uuid()}'"),
    ("celery.app.amqp:AMQP._create_task_sender", "not isinstance(queue, Broadcast)"),
    # A consumer connects before it consumes and an exit code ends the worker.
    ("celery.worker.consumer.connection:Connection.start", "c.connection = c.connect()"),
    ("celery.worker.worker:WorkController.start", "except SystemExit as exc", "exitcode=exc.code"),
    ("celery.worker.state:maybe_shutdown", "should_stop", "should_terminate"),
    # JSON logs leave out two lines of Celery's, and look up the request that another is about.
    ("celery.worker.strategy:default", "info(_app_trace.LOG_RECEIVED, context, extra={'data': context})"),
    ("celery.app.log:Logging.setup_logging_subsystem", "get_multiprocessing_logger(),"),
    ("celery.app.trace:build_tracer", "info(LOG_SUCCESS, {"),
    ("celery.worker.state:task_reserved", "add_request(request.id, request)"),
    # Botocore signs and finds credentials where we stand before it.
    ("botocore.signers:RequestSigner.sign", "'before-sign.", "request=request", "request_signer=self"),
    (
        "botocore.session:Session.get_credentials",
        "self._components.get_component( ... 'credential_provider' ... ).load_credentials()",
    ),
    ("botocore.client:BaseClient.__init__", "self._endpoint = endpoint"),
    ("botocore.client:BaseClient", "def _make_api_call("),
    ("botocore.httpsession:URLLib3Session.__init__", "self._socket_options = socket_options"),
    ("botocore.httpsession:URLLib3Session.__init__", "self._manager = PoolManager", "self._proxy_config ="),
    ("botocore.httpsession:URLLib3Session.send", "self._proxy_config.proxy_url_for(request.url)"),
    ("botocore.hooks:EventAliaser.__init__", "self._emitter = event_emitter"),
    ("botocore.hooks:HierarchicalEmitter._register_section", "self._lookup_cache = {}"),
    ("botocore.hooks:HierarchicalEmitter.unregister", "self._lookup_cache = {}"),
    ("botocore.hooks:HierarchicalEmitter._emit", "self._handlers.prefix_search(event_name)"),
    ("botocore.stub:Stubber.activate", "'before-call.*.*',", "self._get_response_handler"),
    ("botocore.auth:SigV4Auth.string_to_sign", "request.context['timestamp']"),
    (
        "botocore.auth:SigV4Auth._inject_signature_to_request",
        "', '.join(auth_str)",
        "f'Signature={signature}'",
    ),
    ("urllib3.connectionpool:HTTPConnectionPool._get_conn", "self.pool.get(", "is_connection_dropped(conn)"),
    ("urllib3.connectionpool:HTTPConnectionPool._put_conn", "self.pool.put(conn, block=False)"),
    # Kombu connects anew before it publishes again and says how long to wait.
    ("kombu.connection:Connection.ensure", "conn_errors = self.recoverable_connection_errors"),
    ("kombu.connection:Connection.ensure", "if max_retries is not None and retries >= max_retries:"),
    ("kombu.connection:Connection.ensure", "self.collect() ... self._ensure_connection("),
    ("kombu.connection:Connection._connection_factory", "self._establish_connection()"),
    ("kombu.messaging:Producer.publish", "self.connection.transport_options.update(retry_policy)"),
    ("kombu.connection:Connection._do_close_transport", "self._transport = None"),
    # A worker's metrics are of the queues that it consumes; a stock task's retry deletes its message.
    ("celery.app.amqp:Queues", "def consume_from(self): ... return self._consume_from"),
    ("celery.worker.request:Request.on_retry", "if self.task.acks_late: ... self.acknowledge()"),
    # Celery publishes its events where its settings say.
    ("celery.events.dispatcher:EventDispatcher", "name=self.app.conf.event_exchange"),
    # A worker's consumer is told to turn bad messages away by itself.
    ("celery.worker.consumer.tasks:Tasks.start", "on_decode_error=c.on_decode_error"),
    # Methods are wrapped once a class is annotated, and within autoretry, which looks its inner one up.
    ("celery.app.task:Task.bind", "cls.annotate()"),
    ("celery.app.autoretry:add_autoretry_behaviour", "task._orig_run(*args", "task._orig_run, task.run ="),
    ("celery.app.base:Celery._task_from_fun", "task.bind(self) ... add_autoretry_behaviour(task"),
    ("celery.app.base:Celery.register_task", "add_autoretry_behaviour(task ... task.bind(self)"),
    # Requests are made of tasks that are registered late where strategies are.
    ("celery.worker.consumer.tasks:Tasks.start", "c.update_strategies()"),
    ("celery.worker.worker:WorkController.reload", "self.consumer.update_strategies()"),
    ("celery.worker.strategy:default", "Request = symbol_by_name(task.Request)"),
    # What adds a queue is called by the event loop, which an error would end.
    ("celery.worker.control:add_consumer", "state.consumer.call_soon( ... state.consumer.add_task_queue,"),
    ("celery.worker.consumer.consumer:Consumer.cancel_task_queue", "queues.deselect(queue)"),
    # Celery holds what exceeds a rate in buckets that we stand before.
    ("celery.worker.strategy:default", "consumer._limit_task", "consumer._limit_post_eta", "limit_task(req"),
    (
        "celery.worker.consumer.consumer:Consumer._schedule_bucket_request",
        "self._limit_move_to_pool(request)",
    ),
    ("celery.worker.consumer.consumer:Consumer._schedule_bucket_request", "bucket.can_consume"),
    ("celery.worker.consumer.consumer:Consumer._schedule_bucket_request", "self.timer.call_after("),
    ("celery.worker.consumer.consumer:Consumer._limit_task", "self._schedule_bucket_request(bucket)"),
    ("celery.worker.consumer.consumer:Consumer._limit_post_eta", "self.qos.decrement_eventually()"),
    ("celery.worker.consumer.consumer:Consumer._limit_post_eta", "bucket.add((request, tokens))"),
    # A task with an ETA waits until where we stand. For one that we put off we lower the prefetch count.
    (
        "celery.worker.strategy:default",
        "apply_eta_task = consumer.apply_eta_task",
        "eta, apply_eta_task, (req",
    ),
    ("celery.worker.strategy:default", "consumer.qos.increment_eventually()"),
    ("celery.worker.consumer.consumer:Consumer.apply_eta_task", "self.qos.decrement_eventually()"),
    # It lowers its prefetch count by what still runs, and raises it where we do not come by.
    (
        "celery.worker.consumer.consumer:Consumer.on_connection_error_after_connected",
        "if self.app.conf.worker_enable_prefetch_count_reduction: ... self.initial_prefetch_count = ",
    ),
    (
        "celery.worker.consumer.consumer:Consumer.create_task_handler",
        "ack_log_error_promise.then(self._restore",
    ),
    # Our control commands are among its own.
    ("celery.worker.pidbox:Pidbox.__init__", "handlers=control.Panel.data", "consumer=c"),
    ("celery.worker.consumer.control:Control.include_if", "supports_exchange_type('fanout')"),
    # A member of a chord that was counted is hidden from backends that count ends.
    (
        "celery.backends.base:BaseKeyValueStoreBackend.on_chord_part_return",
        "if not self.implements_incr: ... val = self.incr(key)",
    ),
    (
        "celery.backends.base:Backend.mark_as_done",
        "if request and request.chord: ... self.on_chord_part_return(request, state, result)",
    ),
    ("celery.backends.base:Backend.mark_as_failure", "if request.chord: ... self.on_chord_part_return("),
    ("celery.backends.redis:RedisBackend", "def _chord_zset("),
    # `celery sqs` is one of Celery's commands, has its app, and refuses the arguments that it refuses.
    ("celery.bin.base:CLIContext.__init__", "self.app = app"),
    ("celery.app.task:Task.apply_async", "if self.typing:", "check_arguments = self.__header__"),
    ("celery.app.base:Celery._task_from_fun", "'__header__': self.type_checker("),
]

#: The same, of what Celery 5.7 brought.
SINCE_5_7 = [
    # The body of a chord is claimed for a while.
    (
        "celery.backends.redis:RedisBackend.on_chord_part_return",
        "claim_expires = max(5, int(join_timeout * 2))",
    ),
    ("celery.backends.redis:RedisBackend.on_chord_part_return", "self._chord_publish_claim_expires("),
    ("celery.backends.redis:RedisBackend.on_chord_part_return", "_retry_publish(callback.delay, resl)"),
    ("celery.worker.request:Request.on_failure", "self._success_was_stored()"),
    # An exception while it is published counts as published.
    (
        "celery.backends.redis:RedisBackend.on_chord_part_return",
        "_retry_publish(callback.delay, resl) ... finally: ... self._chord_cleanup_script(",
    ),
]
PRESENT = [*MENTIONED, *(SINCE_5_7 if CELERY >= (5, 7) else [])]


@pytest.mark.parametrize(("source", "phrases"), [(row[0], row[1:]) for row in PRESENT], ids=str)
def test_what_we_rely_on_is_where_it_was(source, phrases):
    text = inspect.getsource(pkgutil.resolve_name(source))
    for phrase in phrases:
        places = [text.find(part) for part in phrase.split(" ... ")]
        assert -1 not in places, (
            f"{source} no longer mentions {phrase!r}: "
            "see which module of celery_sqs_visibility names it in its docstring, and adapt that one"
        )
        assert places == sorted(places), f"{source}: the order of {phrase!r} is another"


def test_topics_and_queue_policies_are_those_of_kombus_own_transport():
    sns = pytest.importorskip("kombu.transport.SQS.SNS", reason="kombu 5.7 brought fanout")
    made = []

    def create_topic(**parameters):
        made.append(parameters)
        return {"TopicArn": "arn", "ResponseMetadata": {"HTTPStatusCode": 200}}

    kombus = sns.SNS(SimpleNamespace(canonical_queue_name=str))
    kombus._client = SimpleNamespace(create_topic=create_topic)
    kombus._create_sns_topic("news")
    tags = {tag["Key"]: tag["Value"] for tag in made[0]["Tags"]}
    assert (made[0]["Attributes"], tags) == ({"FifoTopic": "false"}, topics.TAGS)
    policy = kombus.subscriptions._generate_new_sqs_policy({}, "topic", "queue")
    assert json.loads(allow_topics(None, "queue", ["topic"])) == policy


def noop():
    """A task."""


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
        request = Request(message, app=app, task=task, body=sent.body, decoded=True)
    instant = eta.replace(tzinfo=eta.tzinfo or UTC).timestamp()
    assert request.eta.timestamp() == eta_of(sent.headers) == instant


def test_importing_kombu_finds_our_alias_and_imports_nothing_heavy_of_ours():
    assert kombu.transport.TRANSPORT_ALIASES["celery_sqs_visibility"] == "celery_sqs_visibility:Transport"
    code = (
        "import kombu.serialization, sys;"
        "ours = {m for m in sys.modules if m.startswith('celery_sqs_visibility')};"
        "assert ours == {'celery_sqs_visibility', 'celery_sqs_visibility.alias'}, ours;"
        "assert 'boto3' not in sys.modules and 'celery' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_misspelt_transport_is_told_by_kombu_as_troubleshooting_says():
    """Only names that are in kombu's table reach us."""
    with pytest.raises(KeyError) as told:
        kombu.transport.resolve_transport("celery_sqs_visiblity")
    page = (PACKAGE.parent / "docs/troubleshooting.md").read_text()
    assert f"`KeyError: {told.value}`" in page


def test_kombus_defaults_are_those_that_doctor_tells():
    theirs = {
        "visibility_timeout": SQS.Channel.default_visibility_timeout,
        "wait_time_seconds": SQS.Channel.default_wait_time_seconds,
        "polling_interval": SQS.Transport.polling_interval,
    }
    assert {name: kombus for name, kombus, _ in DEFAULTS} == theirs
    with Celery(broker="sqs://", set_as_current=False).connection_for_read() as connection:
        assert connection.transport_cls == "sqs"


def test_celery_knows_its_apps_and_which_pools_have_a_semaphore():
    with Celery("app", set_as_current=False) as app:
        assert app in celery._state._get_active_apps()
    assert celery.concurrency.prefork.TaskPool.uses_semaphore
    assert not celery.concurrency.thread.TaskPool.uses_semaphore


def test_celerys_record_of_a_retry_has_no_step_that_ours_leaves_out():
    source = inspect.getsource(celery.app.trace.TraceInfo.handle_retry)
    # What 5.6 added last frees the frames; `build_tracer` does so, too.
    assert set(re.findall(r"^ +(?:\w+ = )?([a-z_.]+[a-z])\(", source, re.MULTILINE | re.IGNORECASE)) <= {
        "sys.exc_info",
        "ExceptionInfo",
        "task.backend.mark_as_retry",
        "task.on_retry",
        "signals.task_retry.send",
        "info",
        "traceback_clear",
    }


def test_what_context_knows_is_not_sent_along_as_a_header():
    assert issubclass(DeliveryContext, Context)
    assert Context({"sqs": {"queue": "q"}, "mine": 1}).headers == {"mine": 1}


def test_celerys_names_and_its_default_retry_delay_are_what_we_say():
    assert Task.default_retry_delay == CELERY_RETRY_DELAY_SECONDS == 180
    commands = kombu.pidbox.Mailbox.exchange_fmt % "celery"
    assert use_of(commands) is Use.COMMANDS
    assert use_of(kombu.pidbox.Mailbox.reply_exchange_fmt % "celery") is Use.REPLIES
    assert kombu.pidbox.Mailbox.reply_exchange_fmt % "celery" == replies_of(commands)
    assert use_of(celery.events.event.EVENT_EXCHANGE_NAME) is Use.EVENTS
    assert Consumer.on_decode_error.__module__ == channel.CELERYS_CONSUMER


def test_boto3s_clients_have_the_parts_that_requests_are_made_with():
    assert callable(botocore.endpoint.convert_to_response_dict)
    assert callable(botocore.parsers.create_parser)
    assert callable(botocore.credentials.create_assume_role_refresher)
    client = new_client(
        ClientSettings("eu-west-1", access_key_id="a", secret_access_key="b"), ClientPurpose.SETTLE
    )
    assert callable(client._endpoint.http_session.send)
    assert isinstance(client._endpoint.http_session._socket_options, list)
    assert registrations_of(client) is client.meta.events._emitter._lookup_cache


def test_kombus_parser_sees_no_scheme_in_one_with_underscores():
    assert kombu.utils.url.urlparse("celery_sqs_visibility://").scheme == ""


def test_pools_have_celerys_default_limit_and_may_grow_while_they_are_used():
    with Celery("pools", set_as_current=False, broker="memory://") as app:
        assert app.conf.broker_pool_limit == transport.CELERYS_POOL_LIMIT
        producers = kombu.pools.producers[app.connection_for_write()]
        with producers.acquire(block=True):
            producers.connections.limit = producers.limit = transport.POOL_LIMIT
            with producers.acquire(block=True):
                assert (
                    producers.connections.connection.get_transport_cls() is kombu.transport.memory.Transport
                )
        assert len(producers.connections._resource.queue) == transport.POOL_LIMIT


def test_a_client_of_rpc_has_a_temporary_queue():
    with Celery("rpc", set_as_current=False, backend="rpc://") as app:
        queue = app.backend.binding
        attributes = temporary(queue.name, auto_delete=queue.auto_delete, arguments={"x-expires": 3_600_000})
        assert attributes == {"MessageRetentionPeriod": "3600"}
        assert temporary(queue.name, auto_delete=queue.auto_delete, arguments={}) == {}


def test_kombus_buckets_and_counts_are_read_as_we_read_them():
    bucket = kombu.utils.limits.TokenBucket(2)
    assert (bucket.fill_rate, len(bucket.contents), bucket.expected_time(1)) == (2, 0, 0)
    qos = kombu.common.QoS(print, 2)
    assert (qos.increment_eventually(), qos.value) == (3, 3)


def test_a_receiver_of_events_takes_lists_of_them_and_wakes_workers_by_a_command(monkeypatch):
    with Celery("events", set_as_current=False, broker="memory://") as app, app.connection() as connection:
        heard, commands = [], []
        receiver = app.events.Receiver(connection, handlers={"*": heard.append})
        receiver._receive(
            [{"type": "worker-heartbeat", "clock": 1}, {"type": "task-started", "clock": 2}], None
        )
        assert [event["type"] for event in heard] == ["worker-heartbeat", "task-started"]
        monkeypatch.setattr(app.control, "broadcast", lambda command, **_: commands.append(command))
        receiver.on_consume_ready(connection, receiver.channel, [])
        assert commands == ["heartbeat"]


CONTACTS_PAGE = PACKAGE.parent / "docs" / "contributing" / "contacts.md"

#: Before the names of Python's own files.
STDLIB = f"{sysconfig.get_path('stdlib')}/"

#: Contacts without a source to read.
WRITTEN_IN_C = ["atexit:_run_exitfuncs"]


@pytest.mark.parametrize("name", WRITTEN_IN_C)
def test_what_we_call_is_there(name):
    assert callable(pkgutil.resolve_name(name))


def test_private_names_of_others_are_used_in_contacts_alone():
    found = {
        str(path): names_of_others(path) | set(replaced_methods(path)) for path in modules(contacts=False)
    }
    assert {path: names for path, names in found.items() if names} == {}


def test_a_method_is_replaced_at_one_place():
    replaced = [name for path in modules(contacts=True) for name in replaced_methods(path)]
    assert sorted(replaced) == sorted(set(replaced))


def test_each_contact_has_a_row():
    names = {
        name
        for path in modules(contacts=True)
        for name in names_of_others(path).union(replaced_methods(path))
    }
    rows = [part for row in [*MENTIONED, *SINCE_5_7] for part in row] + WRITTEN_IN_C
    assert [name for name in sorted(names) if not any(name in part for part in rows)] == []


def test_each_row_leads_to_what_relies_on_it():
    """A file that no docstring and no line of contacts.md names would leave nothing to adapt."""
    named = "".join(path.read_text() for path in [*PACKAGE.rglob("*.py"), CONTACTS_PAGE])
    files = {inspect.getsourcefile(pkgutil.resolve_name(row[0])) for row in PRESENT}
    told = {file.rpartition("/site-packages/")[2].removeprefix(STDLIB) for file in files}
    # kombu's transport is a package since 5.7.
    assert {file for file in told if file.removesuffix(".py").removesuffix("/__init__") not in named} == set()

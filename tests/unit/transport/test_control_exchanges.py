"""kombu's mailboxes on our channel: a node that answers, a caller, and what is refused."""

import contextlib
import logging
import threading

import pytest
from celery import Celery
from kombu import Exchange, Queue
from kombu.pidbox import Mailbox
from support.factories import requests
from support.processes import SOON, wait_until

from celery_sqs_visibility.aws import attempts
from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.control import remote
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    CommandNotSentError,
    CredentialsRefusedError,
    RemoteControlError,
    RequestRefusedError,
    SQSError,
    ThrottledError,
    UnavailableError,
)
from celery_sqs_visibility.events import ReplyDropped, subscribe
from celery_sqs_visibility.transport.control_exchanges import ControlExchanges

ON = {"remote_control": True}


class Nodes:
    """Nodes of a mailbox, each answered for in a thread of its own."""

    def __init__(self, site):
        self.site = site
        self.heard = []
        self._ended = threading.Event()
        self._threads = []

    def start(self, *names, shutdown=None):
        for name in names:
            connection = self.site.connect(**ON)
            connection.transport.context.on_remote_shutdown = shutdown
            node = Mailbox("celery", type="fanout")(connection).Node(name, handlers=self.handlers(name))
            node.channel = connection.channel()
            node.listen()
            self._threads.append(threading.Thread(target=self._drain, args=[connection]))
            self._threads[-1].start()
        wait_until(lambda: len(self.queues()) == len(names), SOON, "the nodes' queues")

    def handlers(self, name):
        def note(_state, **arguments):
            self.heard.append((name, arguments))
            return arguments

        def end(_state):
            raise SystemExit

        return {"note": note, "end": end, "large": lambda _state: "x" * 2**20}

    def queues(self):
        return self.site.sqs.list_queues("celery-control-celery-pidbox")

    def _drain(self, connection):
        while not self._ended.is_set():
            with contextlib.suppress(TimeoutError):
                connection.drain_events(timeout=0.05)

    def end(self):
        self._ended.set()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def nodes(site):
    nodes = Nodes(site)
    yield nodes
    nodes.end()


@pytest.fixture
def mailbox(site):
    return Mailbox("celery", type="fanout")(site.connect(**ON))


def test_every_node_answers_and_a_caller_has_one_queue(site, nodes, mailbox):
    nodes.start("a@host", "b@host")
    for _ in range(3):
        replies = mailbox.multi_call("note", {"x": 1}, limit=2, timeout=SOON)
        assert sorted(replies, key=str) == [{"a@host": {"x": 1}}, {"b@host": {"x": 1}}]
    assert len(requests(site.sqs, "CreateQueue")) == 3
    prefixes = [each["prefix"] for each in requests(site.sqs, "ListQueues")]
    assert len(prefixes) - prefixes.count("celery-control-celery-pidbox") == 1


def test_a_command_counts_no_reply_to_the_one_before(nodes, mailbox):
    nodes.start("a@host", "b@host", "c@host")
    for number in range(50):
        (reply,) = mailbox.multi_call("note", {"x": number}, limit=1, timeout=SOON)
        assert [*reply.values()] == [{"x": number}]


def test_what_waits_for_a_consumer_that_has_gone_is_no_event(nodes, mailbox):
    nodes.start("a@host", "b@host")
    buffer = mailbox.connection.transport.buffer
    mailbox.multi_call(
        "note",
        limit=1,
        timeout=SOON,
        callback=lambda _: wait_until(lambda: buffer.callbacks, SOON, "another"),
    )
    with pytest.raises(TimeoutError):
        mailbox.connection.drain_events(timeout=0)


def test_a_command_comes_where_another_consumer_of_the_queue_was_cancelled(site, mailbox):
    connection, heard = site.connect(**ON), []
    node = Mailbox("celery", type="fanout")(connection).Node("a@host")
    channel = connection.channel()
    _, other = (node.listen(channel, callback=lambda body, _: heard.append(body["method"])) for _ in range(2))
    other.cancel()
    wait_until(lambda: site.sqs.list_queues("celery-control-celery-pidbox"), SOON, "the node's queue")
    mailbox.cast(["a@host"], "note", {})
    connection.drain_events(timeout=SOON)
    assert heard == ["note"]


def test_a_command_for_a_node_goes_to_its_queue_alone(site, nodes, mailbox):
    nodes.start("a@host", "b@host")
    assert mailbox.call(["b@host"], "note", {"x": 2}, timeout=SOON) == [{"b@host": {"x": 2}}]
    assert len(requests(site.sqs, "SendMessage")) == 2
    mailbox.cast(["a@host"], "note", {"x": 3})
    wait_until(lambda: ("a@host", {"x": 3}) in nodes.heard, SOON, "the cast")


def test_a_reply_that_sqs_does_not_take_is_an_error_in_its_place(nodes, mailbox):
    nodes.start("a@host")
    ((reply,),) = (each.values() for each in mailbox.multi_call("large", limit=1, timeout=SOON))
    assert "the reply cannot be sent" in reply["error"]


def test_a_reply_to_no_address_is_counted(site):
    dropped = []
    control = site.connect(**ON).transport.context.control
    end = subscribe(dropped.append, ReplyDropped)
    control.reply("reply.celery.pidbox", "no-address.of-a-caller", {})
    end()
    assert dropped == [ReplyDropped()]


def test_a_shutdown_ends_the_worker_in_its_own_way(nodes, mailbox):
    asked = threading.Event()
    nodes.start("a@host", shutdown=asked.set)
    mailbox.cast(["a@host"], "end")
    assert asked.wait(SOON)


def test_a_command_whose_caller_has_gone_is_dropped_but_not_one_without_a_reply(site, nodes, caplog):
    caplog.set_level(logging.INFO)
    nodes.start("a@host")
    late = Mailbox("celery", type="fanout")(site.connect(**ON))
    assert late.multi_call("note", {"x": 1}, timeout=-1) == []
    wait_until(lambda: "no longer waits for the reply" in caplog.text, SOON, "the line")
    late._broadcast("note", {"x": 2}, timeout=-1)
    wait_until(lambda: nodes.heard == [("a@host", {"x": 2})], SOON, "the second")


def test_what_is_not_json_is_dropped_unread_and_told_once(site, nodes, mailbox, caplog):
    nodes.start("a@host")
    for body in ("gASVBQAAAAAAAABLAS4=", "{}"):
        site.sqs.send(nodes.queues()[0], OutgoingMessage(body))
    assert mailbox.multi_call("note", {}, limit=1, timeout=SOON)
    assert caplog.text.count("dropped a message in a control queue unread") == 1


@pytest.mark.parametrize("action", ["CreateQueue", "ListQueues", "ReceiveMessage"])
def test_a_right_that_is_missing_is_the_callers_error(site, mailbox, action):
    for _ in range(2):
        site.sqs.fail_next(action, AccessDeniedError(f"allow sqs:{action}"))
    with pytest.raises(SQSError, match=f"allow sqs:{action}"):
        mailbox.multi_call("ping")


def test_a_command_that_sqs_refuses_is_the_callers_error(site, mailbox):
    site.sqs.fail_next("ListQueues", RequestRefusedError("no such parameter"))
    with pytest.raises(RequestRefusedError, match="no such parameter"):
        mailbox.cast(["a@host"], "note", {})


def test_a_command_that_fails_leaves_its_node_in_its_loop(nodes, mailbox, monkeypatch, caplog):
    def fail(*_):
        raise ZeroDivisionError

    nodes.start("a@host")
    monkeypatch.setattr(ControlExchanges, "_handle", fail)
    mailbox.cast(["a@host"], "note", {})
    wait_until(lambda: "a command of remote control failed" in caplog.text, SOON, "the line")
    monkeypatch.undo()
    assert mailbox.multi_call("note", {"x": 1}, limit=1, timeout=SOON)


def test_predefined_queues_do_not_name_control_queues(site):
    predefined = {"q": {"url": "https://sqs.eu-west-1.amazonaws.com/123456789012/q"}}
    connection = site.connect(**ON, predefined_queues=predefined)
    mailbox = Mailbox("celery", type="fanout")(connection)
    assert mailbox.multi_call("ping", timeout=0) == []
    assert site.sqs.list_queues("celery-control-reply-")


def test_a_queue_of_events_has_an_inbox_too(site, monkeypatch):
    monkeypatch.setattr(remote, "KEPT_SECONDS", 0.1)
    connection = site.connect(**ON)
    channel = connection.channel()
    got = []
    channel.exchange_declare("celeryev", "topic")
    channel.queue_declare("celeryev.1", auto_delete=True)
    channel.queue_bind("celeryev.1", "celeryev", "#")
    channel.basic_consume("celeryev.1", True, got.append, "tag")
    wait_until(lambda: site.sqs.list_queues("celery-control-celeryev-"), SOON, "its queue")
    channel.close()
    wait_until(lambda: not site.sqs.list_queues("celery-control-celeryev-"), SOON, "its end")


@pytest.mark.parametrize("error", [UnavailableError, ThrottledError, CredentialsRefusedError])
@pytest.mark.parametrize("reply", [True, False])
def test_a_command_that_sqs_does_not_take_is_an_error_after_a_few_attempts(site, monkeypatch, error, reply):
    monkeypatch.setattr(remote, "BROADCAST_SECONDS", 0.5)
    for _ in range(1000):
        site.sqs.fail_next("ListQueues", error("not now"))
    mailbox = Mailbox("celery", type="fanout")(site.connect(**ON))
    with pytest.raises(CommandNotSentError, match="was not sent: not now"):
        mailbox._broadcast("note", {}, reply=reply)
    assert len(requests(site.sqs, "ListQueues")) <= 6


def test_a_command_is_tried_until_its_time_is_over_and_then_waits_for_its_replies(site, nodes, monkeypatch):
    monkeypatch.setattr(remote, "BROADCAST_SECONDS", 1.0)
    monkeypatch.setattr(attempts, "pause", lambda _: 60.0)
    nodes.start("a@host")
    site.sqs.fail_next("ListQueues", UnavailableError("not now"))
    mailbox = Mailbox("celery", type="fanout")(site.connect(**ON))
    assert mailbox.multi_call("note", {"x": 1}, limit=1, timeout=0.9) == [{"a@host": {"x": 1}}]


def test_a_command_whose_answer_was_lost_is_carried_out_once(site, nodes, mailbox, monkeypatch):
    nodes.start("a@host")
    send, lost = site.sqs.send, []

    def lossy(url, message):
        send(url, message)
        if len(lost) < 3:
            lost.append(url)
            raise UnavailableError("read timeout")

    monkeypatch.setattr(site.sqs, "send", lossy)
    mailbox.cast(["a@host"], "note", {"x": 1})
    assert mailbox.multi_call("note", {"x": 2}, limit=1, timeout=SOON)
    assert [arguments["x"] for _, arguments in nodes.heard] == [1, 2]


@pytest.mark.parametrize("name", ["celeryev.mail", "mail.pidbox", "proj.mail"])
def test_a_task_queue_may_be_named_like_one_of_celerys(site, name):
    with Celery("prefix", set_as_current=False) as app:
        app.conf.event_queue_prefix = "proj"
        assert app.conf.event_queue_prefix == "proj"
        channel = site.connect().channel()
        for queue in (Queue(name, Exchange(name), name), Queue(name)):
            queue(channel).declare()
            assert site.sqs.list_queues("")
            channel.queue_delete(name)
            assert not site.sqs.list_queues("")


def test_a_consumer_that_comes_back_has_its_queue_and_what_came_meanwhile(site, mailbox, monkeypatch):
    monkeypatch.setattr(remote, "KEPT_SECONDS", SOON)
    connection, got = site.connect(**ON), []
    node = Mailbox("celery", type="fanout")(connection).Node("a@host", handlers={})
    node.channel = connection.channel()
    node.listen()
    wait_until(lambda: site.sqs.list_queues("celery-control-celery-pidbox"), SOON, "its queue")
    mailbox.cast(["a@host"], "first")
    connection.transport.buffer.wait(SOON)
    node.channel.close()
    with pytest.raises(TimeoutError):
        connection.drain_events(timeout=0)
    mailbox.cast(["a@host"], "second")
    node.channel = connection.channel()
    node.listen(callback=lambda body, _: got.append(body["method"]))
    while len(got) < 2:
        connection.drain_events(timeout=SOON)
    assert got == ["first", "second"]
    assert len(requests(site.sqs, "CreateQueue")) == 1


@pytest.mark.parametrize("action", ["CreateQueue", "ListQueues"])
def test_a_task_that_asks_workers_without_a_permission_gets_no_replies(site, caplog, action):
    app = Celery("asking", set_as_current=False)
    app.connection_for_write = lambda: site.connect(**ON)
    for _ in range(2):
        site.sqs.fail_next(action, AccessDeniedError(f"allow sqs:{action}"))

    @app.task(shared=False)
    def ask():
        return app.control.inspect(timeout=0.01).ping()

    assert ask() is None
    assert caplog.text.count(f"gets no replies, since a permission is missing: allow sqs:{action}") == 1
    app.close()


def test_off_a_task_that_asks_workers_gets_no_replies_and_one_warning(site, caplog, monkeypatch):
    monkeypatch.setattr(ControlExchanges, "_has_warned", False)  # by a test before this one
    app = Celery("asking", set_as_current=False)
    app.connection_for_write = site.connect

    @app.task(shared=False)
    def ask():
        inspect = app.control.inspect(timeout=0.01)
        return inspect.ping(), inspect.active(), app.control.ping(timeout=0.01)

    assert ask() == (None, None, [])
    assert caplog.text.count("remote control is off here") == 1
    assert site.sqs.calls == []
    with pytest.raises(RemoteControlError):
        app.control.ping(timeout=0.01)
    app.close()

"""`task_publish_retry_policy` means what it says, and a broker that is not there is told as others are."""

from itertools import pairwise

import pytest
from kombu.exceptions import OperationalError
from support.faults import error, reset_connection

from celery_sqs_visibility.aws import boto
from celery_sqs_visibility.errors import UnreachableError

SENDS = "SendMessage"
LOOK_UPS = "GetQueueUrl"

#: Waits of 0.4, 0.8 and 1 s.
POLICY = {"max_retries": 3, "interval_start": 0.4, "interval_step": 0.4, "interval_max": 1}
WAITS = [0.4, 0.8, 1.0]

SERVER_ERROR = error("InternalError", 500)
PASSING_ERRORS = {
    "throttled": error("RequestThrottled"),
    "5xx": SERVER_ERROR,
    "no answer": reset_connection(),
    "refused by a gateway": error("", 400),
    "credentials that are being rotated": error("ExpiredToken"),
}
REFUSALS = {
    "access denied": error("AccessDenied"),
    "bad content": error("InvalidMessageContents"),
    "bad parameter": error("InvalidParameterValue"),
}

#: What meets an attempt, how a publication asks to be retried, and the waits it then has.
PUBLICATIONS = {
    **{name: (fault, {}, WAITS) for name, fault in PASSING_ERRORS.items()},
    **{name: (fault, {}, []) for name, fault in REFUSALS.items()},
    "with a policy of its own": (
        SERVER_ERROR,
        {"retry_policy": {"max_retries": 1, "interval_start": 0.6}},
        [0.6],
    ),
    "without retries": (SERVER_ERROR, {"retry": False}, []),
}


@pytest.fixture
def make_known(make_site):
    """`make_known(task_publish_retry=False)`: a producer that knows its queue, with that policy."""

    def make(**settings):
        site = make_site({"task_publish_retry_policy": POLICY, **settings})
        site.send("quick", "first")
        site.proxy.clear()
        return site

    return make


def assert_waits(site, action, expected):
    """As many attempts as were to be, and none too early; a slow machine may be late."""
    calls = site.proxy.calls(action)
    waits = [later.started - earlier.finished for earlier, later in pairwise(calls)]
    assert len(calls) == len(expected) + 1
    assert all(waited > wanted - 0.02 for waited, wanted in zip(waits, expected, strict=True))


@pytest.mark.parametrize(("fault", "options", "expected"), PUBLICATIONS.values(), ids=PUBLICATIONS.keys())
def test_a_publication_is_attempted_as_often_and_as_far_apart_as_it_says_and_the_next_begins_anew(
    make_known, fault, options, expected
):
    site = make_known()
    with site.proxy.inject(fault, SENDS), pytest.raises(OperationalError, match=SENDS):
        site.app.send_task("work.quick", ("a",), **options)
    assert_waits(site, SENDS, expected)
    site.proxy.clear()
    with site.proxy.inject(SERVER_ERROR, SENDS, times=2):
        site.send("quick", "b")
    assert_waits(site, SENDS, WAITS[:2])
    assert site.counts() == (2, 0)


def test_without_retries_in_the_settings_there_is_one_attempt(make_known):
    site = make_known(task_publish_retry=False)
    with site.proxy.inject(SERVER_ERROR, SENDS), pytest.raises(OperationalError, match=SENDS):
        site.send("quick", "a")
    assert_waits(site, SENDS, [])


@pytest.mark.parametrize("retry", [True, False])
def test_a_queue_that_was_deleted_is_made_anew(make_known, retry):
    site = make_known()
    site.sqs.delete_queue(QueueUrl=site.url)
    site.app.send_task("work.quick", ("a",), retry=retry)
    of_letters = [LOOK_UPS, "GetQueueAttributes"]
    of_queue = [LOOK_UPS, "CreateQueue", SENDS]
    assert [call.action for call in site.proxy.calls()] == [SENDS, of_queue[0], *of_letters, *of_queue[1:]]
    assert site.counts() == (1, 0)


AT_ONCE = {"interval_start": 0, "interval_step": 0, "max_retries": 1}


@pytest.fixture
def app(make_site, monkeypatch):
    # Another test of this process may have reached the same port within the last seconds.
    monkeypatch.setattr(boto, "REACHED_SECONDS", 0)
    return make_site(**AT_ONCE).app


@pytest.mark.parametrize(
    ("connect", "error"),
    [
        (lambda connection: connection.connect(), ConnectionError),
        (lambda connection: connection.connection, UnreachableError),
        (lambda connection: connection.ensure_connection(max_retries=1, interval_start=0), OperationalError),
        (lambda connection: connection.default_channel, OperationalError),
    ],
    ids=["connect", "connection", "ensure_connection", "default_channel"],
)
def test_a_dead_broker_does_not_look_alive(app, proxy, connect, error):
    proxy.refuse()
    with app.connection() as connection:
        with pytest.raises(error, match=rf"SQS cannot be reached at 127.0.0.1:{proxy.port}: .*refused"):
            connect(connection)
        assert not connection.connected
        proxy.accept()
        connect(connection)
        assert connection.connected
    assert proxy.calls() == []


def test_a_connection_is_waited_for_while_the_broker_comes(app, proxy):
    proxy.refuse()
    told = []

    def errback(error, _interval):
        told.append(error)
        proxy.accept()

    with app.connection() as connection:
        connection.ensure_connection(errback, interval_start=0)
        assert connection.connected
    assert [type(error) for error in told] == [UnreachableError]

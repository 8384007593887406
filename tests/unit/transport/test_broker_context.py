"""What connections share: attributes, limits, access by the settings, and how long a context lives."""

import gc
import json
import os
import uuid
from weakref import ref

import kombu
import pytest
from kombu import Connection, Consumer
from support.kombu_site import declared_queue, publish
from support.processes import SOON, wait_until

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import OutgoingMessage
from celery_sqs_visibility.aws.queues import Queue
from celery_sqs_visibility.policy.eta import DelayLimits
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.stores import guarded
from celery_sqs_visibility.stores.memory import MemoryStore
from celery_sqs_visibility.stores.port import Acquired
from celery_sqs_visibility.transport import broker_clients, broker_context
from celery_sqs_visibility.transport.broker_context import KEPT_CONTEXTS, shared_context
from celery_sqs_visibility.transport.connection_settings import BrokerURL

BODY = json.dumps({"body": "", "headers": {"task": "t", "id": "1"}, "properties": {"delivery_info": {}}})
ROLE = "arn:aws:iam::123456789012:role/worker"
ATTRIBUTES = {name: {"DataType": "String", "StringValue": "x"} for name in ("trace", "tenant.name")}


def new_context(**given):
    given["region"] = "eu-west-1"
    return shared_context(given, BrokerURL(), Options.parse(given))


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (None, []),
        (["SentTimestamp"], []),
        ({"MessageAttributeNames": ["trace"]}, ["trace"]),
        ({"MessageAttributeNames": ["tenant.*"]}, ["tenant.name"]),
        ({"MessageAttributeNames": ["All"]}, ["trace", "tenant.name"]),
    ],
)
def test_a_task_sees_the_message_attributes_that_were_asked_for(wanted, names):
    context, sqs = new_context(fetch_message_attributes=wanted), FakeSQS()
    queue = Queue("q", sqs.create_queue("q", {}, {}), sqs)
    sqs.send(queue.url, OutgoingMessage(BODY, ATTRIBUTES))
    (message,) = sqs.receive(queue.url, 1, 0, context.receive_options)
    assert message["MessageAttributes"] == ATTRIBUTES
    payload = context.decode_message(queue, message).payload
    seen = payload["properties"]["delivery_info"]["sqs_message"]
    assert list(seen.get("MessageAttributes", {})) == names
    assert seen["MessageId"]


@pytest.mark.parametrize("wanted", ["ALL", ["all"], {"MessageSystemAttributeNames": ["All"]}], ids=repr)
def test_all_system_attributes_are_received_where_all_are_asked_for(wanted):
    asked = new_context(fetch_message_attributes=wanted).receive_options.system_attributes
    assert asked == ("All",)


def test_a_system_attribute_is_received_with_those_that_are_needed():
    asked = new_context(fetch_message_attributes="SenderId").receive_options.system_attributes
    assert {"SenderId", "ApproximateReceiveCount", "MessageGroupId", "SentTimestamp"} < set(asked)


def test_a_queue_has_its_own_timeout_and_dead_letter_queue(monkeypatch):
    monkeypatch.setattr(broker_clients, "shared_sqs", lambda _settings: FakeSQS())
    queues = {"reports": {"visibility_timeout": 600, "dead_letter_queue": "reports-dead"}}
    context = new_context(queues=queues)
    for name in ("reports", "other"):
        context.queues.find_or_create(name)
    reports, other = map(context.queues.find, ("reports", "other"))
    for queue, seconds in ((reports, 600), (other, 120)):
        assert context.receive_options_of(queue.name).visibility_timeout == seconds
        made = queue.sqs.queue_attributes(queue.url, ["VisibilityTimeout"])
        assert made == {"VisibilityTimeout": str(seconds)}
    assert context.redrive.dead_letter_queue(reports).name == "reports-dead"
    assert context.redrive.dead_letter_queue(other) is None
    assert not context.redrive.has_dead_letter_queue(other)


def test_a_queues_own_options_say_how_far_an_eta_may_be_and_when_its_delay_ends():
    own = {"polling_interval_max": 40, "visibility_timeout": 600}
    context = new_context(queues={"reports": own}, polling_interval_max=5)
    limits = [context.delay_limits(Queue(name, name, FakeSQS())) for name in ("reports", "other")]
    assert limits == [DelayLimits(40, None, 600), DelayLimits(5, None, 120)]
    assert [each.delay_for(100) for each in limits] == [60, 95]


def test_connections_with_equal_settings_share_a_context():
    assert new_context(polling_interval=7) is new_context(polling_interval=7)
    assert new_context(polling_interval=7) is not new_context(polling_interval=8)


PREDEFINED = {
    "plain": {},
    "elsewhere": {"region": "eu-north-1"},
    "keys": {"access_key_id": "AKIA", "secret_access_key": "hush", "session_token": "token"},
    "role": {"sts_role_arn": ROLE, "external_id": "42"},
    "same role": {"sts_role_arn": ROLE, "external_id": "42"},
    "other id": {"sts_role_arn": ROLE, "external_id": "43"},
}


def settings_of(**given):
    queues = {name: {"url": f"https://sqs/1/{name}", **own} for name, own in PREDEFINED.items()}
    found = new_context(predefined_queues=queues, **given).queues
    return {name: found.find(name).sqs for name in PREDEFINED}


def test_a_predefined_queue_has_the_access_of_its_own_and_shares_it_with_its_equals():
    accesses = settings_of()
    assert accesses["role"] is accesses["same role"]
    assert len({id(access) for access in accesses.values()}) == len(PREDEFINED) - 1
    settings = {name: access.settings for name, access in accesses.items()}
    assert settings["elsewhere"].region == "eu-north-1"
    assert settings["plain"].region == settings["role"].region == "eu-west-1"
    keys = settings["keys"]
    assert (keys.access_key_id, keys.secret_access_key, keys.session_token) == ("AKIA", "hush", "token")
    assert (settings["role"].role_arn, settings["role"].role_external_id) == (ROLE, "42")
    assert settings["role"].access_key_id is settings["plain"].role_arn is None


def test_a_role_of_the_connection_is_for_the_queues_without_one_and_its_times_are_for_all():
    times = {"sts_token_timeout": 3600, "sts_token_buffer_time": 300}
    accesses = settings_of(sts_role_arn=ROLE + "-of-all", external_id="1", **times)
    roles = {name: (a.settings.role_arn, a.settings.role_external_id) for name, a in accesses.items()}
    assert roles["plain"] == roles["keys"] == (ROLE + "-of-all", "1")
    assert roles["other id"] == (ROLE, "43")
    assert {(a.settings.role_seconds, a.settings.role_buffer_seconds) for a in accesses.values()} == {
        (3600, 300)
    }


@pytest.mark.parametrize(
    ("secure", "host", "endpoint"),
    [
        (False, "localhost", "http://localhost:4566"),
        (True, "localhost", "https://localhost:4566"),
        (False, None, None),
        (True, None, None),
    ],
)
def test_tls_is_an_option_where_the_url_names_an_endpoint(secure, host, endpoint):
    options = Options.parse({"is_secure": secure})
    context = shared_context({"is_secure": secure}, BrokerURL(host, 4566 if host else None), options)
    settings = context.queues.sqs.settings
    assert (settings.endpoint_url, settings.use_ssl) == (endpoint, True)


@pytest.mark.parametrize(
    ("given", "sleep", "retention"),
    [
        ({}, 0, None),
        ({"polling_interval": 30}, 30, None),
        ({"polling_interval_max": 60}, 60, None),
        ({"sqs-creation-attributes": {"MessageRetentionPeriod": "7200"}}, 0, 7200),
    ],
    ids=repr,
)
def test_a_publisher_knows_the_retention_that_it_states_until_sqs_says_another(given, sleep, retention):
    context, sqs = new_context(visibility_timeout=77, **given), FakeSQS()
    queue = Queue("q", sqs.create_queue("q", {"MessageRetentionPeriod": "3600"}, {}), sqs)
    assert context.delay_limits(queue) == DelayLimits(sleep, retention, 77)
    context.redrive.get(queue, now=0.0)
    assert context.delay_limits(queue) == DelayLimits(sleep, 3600, 77)


def test_the_keys_of_exclusive_tasks_and_beats_begin_with_the_prefix_of_the_queues(monkeypatch):
    keys = MemoryStore()
    monkeypatch.setattr(guarded, "open_store", lambda *_: keys)
    for prefix in ("staging-", "production-"):
        given = {"queue_name_prefix": prefix, "coordination_store": "redis://127.0.0.1:1"}
        store = new_context(**given).coordination_store
        assert store.acquire("task:key", prefix, 60) == Acquired()
        assert keys.acquire(f"{prefix}task:key", "another", 60).owner == prefix


def connect(key, **options):
    return Connection(
        f"sqs://{key}:secret@",
        transport="celery_sqs_visibility",
        transport_options=options or {"region": "eu-west-1"},
    )


def context_of(key):
    """The context of a connection with that key, which is closed."""
    connection = connect(key)
    context = connection.transport.context
    connection.transport.close_connection(connection)
    return context


def use_others():
    """Connect to as many other brokers as are kept."""
    for _ in range(KEPT_CONTEXTS):
        context_of(uuid.uuid4())


@pytest.fixture
def uncollected():
    """Only a count of references frees objects."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
def test_the_context_of_a_closed_connection_is_gone_after_those_of_a_few_other_brokers():
    context, sqs = ref(context_of("rare")), ref(context_of("rare").queues.sqs)
    assert context_of("rare") is context()
    use_others()
    assert (context(), sqs()) == (None, None)


@pytest.mark.usefixtures("uncollected")
def test_of_the_contexts_that_are_not_in_use_those_that_were_used_last_are_kept():
    contexts = [ref(context_of(number)) for number in range(KEPT_CONTEXTS)]
    assert context_of(0) is contexts[0]()
    context_of("another")
    kept = [context() is not None for context in contexts]
    assert kept == [True, False, *[True] * (KEPT_CONTEXTS - 2)]


def test_an_open_connection_shares_its_context_with_a_later_one_after_any_number_of_others():
    connection = connect("shared")
    context = connection.transport.context
    use_others()
    gc.collect()
    assert context_of("shared") is context


def test_what_comes_after_the_end_of_a_connection_finds_the_context_again(site):
    connection = site.connect()
    channel, context = connection.channel(), connection.transport.context
    connection.close()
    assert channel.context is context
    channel.basic_reject("unknown")


def test_a_message_that_is_in_hand_keeps_the_context_of_its_closed_connection(site):
    key = site.connect().userid
    first = site.connect()
    channel = first.channel()
    declared_queue(channel)
    publish(channel, "runs")
    taken = []
    with Consumer(channel, [kombu.Queue("q")], callbacks=[lambda _, message: taken.append(message)]):
        first.drain_events(timeout=SOON)
    (message,) = taken
    assert message.delivery.start()
    context = ref(first.transport.context)
    first.close()
    site.forget()
    del first, channel
    use_others()
    gc.collect()
    second = connect(key, wait_time_seconds=1)
    assert second.transport.context is context()
    (consumer,) = second.transport.context.receiving.queue_consumers
    assert consumer.held() == [message.delivery]
    message.ack()
    wait_until(lambda: site.counts() == (0, 0, 0), SOON, "it to be deleted")
    del message, consumer, second
    taken.clear()
    use_others()

    def is_gone():
        gc.collect()
        return context() is None

    wait_until(is_gone, SOON, "its threads to end")


def test_a_predefined_queues_access_is_kept_with_the_context():
    queues = {"q": {"url": "https://sqs.eu-north-1.amazonaws.com/123456789012/q", "region": "eu-north-1"}}
    context = connect("key", predefined_queues=queues).transport.context
    access = ref(context.queues.find("q").sqs)
    context.queues.forget("q")
    gc.collect()
    assert context.queues.find("q").sqs is access()


def test_a_forked_child_keeps_what_it_inherits(monkeypatch):
    monkeypatch.setattr(broker_context, "_inherited", kept := [])
    context = connect("parents").transport.context
    if not (pid := os.fork()):
        os._exit(0 if context in kept else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert kept == []

"""The facts of an app and its queues."""

import json

import pytest
from celery import Celery, Task
from celery.beat import ScheduleEntry
from kombu import Queue
from support.clock import FakeClock
from support.exclusive_stores import Refusing
from support.factories import counts, queue, send

from celery_sqs_visibility import VisibilityTask
from celery_sqs_visibility.aws.client_settings import ClientSettings
from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.port import ReceiveOptions
from celery_sqs_visibility.aws.queues import Queues
from celery_sqs_visibility.errors import (
    AccessDeniedError,
    StoreError,
    StoreUnavailableError,
    ThrottledError,
    UnavailableError,
)
from celery_sqs_visibility.operate.doctor import checks, gathering
from celery_sqs_visibility.operate.doctor.checks import findings_of
from celery_sqs_visibility.operate.doctor.facts import ProbeResult
from celery_sqs_visibility.operate.doctor.gathering import (
    gather,
    permissions_on,
    permissions_on_key,
    settings_of,
)
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.queue_names import AMAZONS_KEY
from celery_sqs_visibility.stores import guarded
from celery_sqs_visibility.stores.memory import MemoryStore
from celery_sqs_visibility.transport import broker_context
from celery_sqs_visibility.transport.broker_context import BrokerContext
from celery_sqs_visibility.transport.connection_settings import BrokerURL

ARN = "arn:aws:sqs:us-east-1:000000000000:"


def redrive(name, receives=5):
    return {"RedrivePolicy": json.dumps({"deadLetterTargetArn": ARN + name, "maxReceiveCount": receives})}


def nothing():
    pass


@pytest.fixture
def app():
    app = Celery(task_cls=VisibilityTask, set_as_current=False)
    app.conf.update(
        broker_transport="celery_sqs_visibility",
        task_queues=[Queue("proj")],
        task_default_queue="proj",
        task_time_limit=600,
    )
    yield app
    app.close()


@pytest.fixture
def sqs():
    return FakeSQS(FakeClock())


def facts_of(app, sqs, chosen=(), **options):
    app.conf.broker_transport_options = options
    broker = BrokerContext(BrokerURL(), Options.parse(options))
    broker.queues = Queues(sqs, prefix=broker.options.queue_name_prefix)
    return gather(app, broker, chosen)


def test_tasks_have_their_queues_limits_and_delays(app, sqs):
    app.conf.task_routes = [{"t.routed": {"queue": "other"}, "t.stock": "mine"}]
    app.task(name="t.plain", shared=False)(nothing)
    app.task(name="t.routed", error_visibility_timeout=[10, 60], max_retries=4, time_limit=30, shared=False)(
        nothing
    )
    app.task(
        name="t.odd", error_visibility_timeout=lambda retries, exc: exc.args[0], max_retries=1, shared=False
    )(nothing)
    app.task(name="t.stock", base=Task, shared=False)(nothing)
    found = {task.name: task for task in facts_of(app, sqs).tasks}
    assert not [name for name in found if name.startswith("celery.")]
    assert found["t.plain"].delays == (120, 120, 120)
    assert found["t.plain"].queue == "proj"
    routed = found["t.routed"]
    assert (routed.queue, routed.delays, routed.time_limit) == ("other", (10, 60, 60, 60), 30)
    assert found["t.odd"].delays == (120,)  # the rule failed with a plain Exception, and the next decides
    stock = found["t.stock"]
    assert (stock.comes_back, stock.acks_late, stock.queue, stock.priority) == (False, False, "mine", None)
    assert stock.time_limit == 600


def test_tasks_that_only_the_apps_task_class_repeats_are_told_apart(app, sqs):
    app.task(name="t.default")(nothing)
    app.task(name="t.slow", error_visibility_timeout=5)(nothing)
    app.task(name="t.some", autoretry_for=(OSError,))(nothing)
    app.task(name="t.but", dont_autoretry_for=(ValueError,))(nothing)
    app.task(name="t.twice", max_retries=1)(nothing)
    app.task(name="t.stock", base=Task)(nothing)
    app.conf.task_annotations = {"t.annotated": {"max_retries": 2}}
    app.task(name="t.annotated")(nothing)
    repeating = {each.name for each in facts_of(app, sqs).tasks if each.repeats_by_default}
    assert {name for name in repeating if name.startswith("t.")} == {"t.default", "t.slow"}
    assert {each.name for each in facts_of(app, sqs).tasks if each.chooses} == {"t.some"}


def test_a_task_whose_own_base_is_ours_is_repeated_on_purpose(sqs):
    with Celery(broker="memory://", set_as_current=False) as app:
        app.task(name="t.own", base=VisibilityTask)(nothing)
        assert not any(each.repeats_by_default for each in facts_of(app, sqs).tasks)


def test_entries_of_beat_have_their_tasks(app, sqs):
    app.conf.beat_schedule = {
        "well": {"task": "celery.backend_cleanup", "schedule": 9},
        "entry": ScheduleEntry("entry", "t.nosuch", schedule=9, app=app),
        "none": {"schedule": 9},
    }
    facts = facts_of(app, sqs)
    assert facts.scheduled == {"well": "celery.backend_cleanup", "entry": "t.nosuch", "none": None}
    assert "celery.backend_cleanup" in facts.task_names


@pytest.mark.parametrize("is_consumed", [False, True])
def test_a_predefined_dead_letter_queue_is_an_apps_queue_only_where_that_consumes_it(app, sqs, is_consumed):
    dead = sqs.create_queue("proj-dead", {"MessageRetentionPeriod": "1209600"}, {})
    urls = {"proj": sqs.create_queue("proj", redrive("proj-dead"), {}), "proj-dead": dead}
    if is_consumed:
        app.conf.task_queues = [Queue("proj"), Queue("proj-dead")]
    options = {"predefined_queues": {name: {"url": url} for name, url in urls.items()}}
    app.conf.broker_transport_options = options
    broker = BrokerContext(BrokerURL(), Options.parse(options))
    broker.queues = Queues(sqs, predefined=broker.options.predefined_queues, sqs_for=lambda _: sqs)
    facts = gather(app, broker)
    assert [each.name for each in facts.queues] == (["proj", "proj-dead"] if is_consumed else ["proj"])
    things = [each.thing for each in findings_of(facts) if "dead" in each.thing]
    assert things == (["queue 'proj-dead'", "dead-letter queue 'proj-dead'"] if is_consumed else [])


def test_a_task_that_cannot_be_routed_is_told_apart(app, sqs):
    app.conf.task_create_missing_queues = False
    app.conf.task_routes = {"t.lost": "nowhere"}
    app.task(name="t.lost", shared=False)(nothing)
    facts = facts_of(app, sqs, ["proj"])
    assert "nowhere" in facts.unbound["t.lost"]
    assert "t.lost" not in {task.name for task in facts.tasks}


def test_a_router_that_wants_the_arguments_is_let_be(app, sqs):
    app.conf.task_routes = [lambda name, args, *_, **__: {"queue": args[0]}]
    app.task(name="t.plain", shared=False)(nothing)
    assert {task.queue for task in facts_of(app, sqs, ["proj"]).tasks} == {"proj"}


def test_queues_have_attributes_permissions_and_dead_letters(app, sqs):
    sqs.create_queue("dead", {"MessageRetentionPeriod": "60"}, {})
    sqs.create_queue("proj", redrive("dead"), {})
    (proj,) = facts_of(app, sqs).queues
    assert (proj.redrive.name, proj.letters.retention, proj.retention) == ("dead", 60, 345_600)
    assert proj.permissions["sqs:DeleteMessage"] is ProbeResult.ALLOWED
    assert proj.letters.permissions == {"sqs:SendMessage": ProbeResult.NOT_KNOWN}


def test_a_key_is_asked_for_as_whoever_uses_the_queue(app, sqs, monkeypatch):
    asked = []
    monkeypatch.setattr(
        gathering,
        "permissions_on_key",
        lambda known, own, _: asked.append((known.get("KmsMasterKeyId"), own)) or {},
    )
    sqs.create_queue("dead", {"KmsMasterKeyId": "of-letters"}, {})
    sqs.create_queue("proj", {**redrive("dead"), "KmsMasterKeyId": "of-queue"}, {})
    role = "arn:aws:iam::1:role/own"
    url = "https://sqs.us-east-1.amazonaws.com/1/proj"
    facts_of(app, sqs, predefined_queues={"proj": {"url": url, "sts_role_arn": role}})
    assert [(key, own.role_arn) for key, own in asked] == [("of-queue", role), ("of-letters", role)]


def test_what_is_missing_is_not_created(app, sqs):
    sqs.create_queue("proj", {}, {})
    calls = len(sqs.calls)
    facts = facts_of(app, sqs, ["proj", "absent"], dead_letter_queue="dead")
    proj, absent = facts.queues
    assert (absent.exists, absent.may_be_created, absent.permissions) == (False, True, {})
    assert proj.letters.exists is False
    assert "CreateQueue" not in {action for action, _ in sqs.calls[calls:]}


def test_a_queue_that_may_not_be_looked_at_is_not_known(app, sqs):
    sqs.create_queue("proj", redrive("dead"), {})
    sqs.fail_next("GetQueueAttributes", AccessDeniedError("GetQueueAttributes was answered AccessDenied"))
    (proj,) = facts_of(app, sqs).queues
    assert (proj.exists, proj.attributes, proj.letters, proj.denied) == (None, None, None, True)


def test_with_remote_control_its_right_is_looked_at_and_its_queues_are_not_the_apps(app, sqs):
    for name in ("proj", "celery-control-celery-pidbox-1"):
        sqs.create_queue(name, {}, {})
    assert facts_of(app, sqs).control_permissions == {}
    facts = facts_of(app, sqs, remote_control=True)
    assert facts.control_permissions == {"sqs:ListQueues": ProbeResult.ALLOWED}
    assert [each.name for each in facts.queues] == ["proj"]
    sqs.fail_next("ListQueues", AccessDeniedError("ListQueues was answered AccessDenied"))
    assert facts_of(app, sqs, remote_control=True).control_permissions == {
        "sqs:ListQueues": ProbeResult.DENIED
    }


def test_the_machine_says_how_it_ends(app, sqs, monkeypatch):
    for name, value in {
        "TERMINATION_GRACE_PERIOD_SECONDS": "90",
        "KUBERNETES_SERVICE_HOST": "10.0.0.1",
        "REMAP_SIGTERM": "SIGQUIT",
    }.items():
        monkeypatch.setenv(name, value)
    machine = facts_of(app, sqs, ["proj"]).machine
    assert (machine.grace, machine.kubernetes, machine.remapped, machine.clock_offset) == (
        90,
        True,
        True,
        None,
    )


def test_settings_are_those_that_the_user_gave(app):
    given = settings_of(app)
    assert given["task_time_limit"] == 600
    assert "worker_prefetch_multiplier" not in given


@pytest.mark.parametrize(
    ("store", "problem"),
    [
        (None, ""),
        (MemoryStore(), ""),
        (Refusing(StoreUnavailableError("Redis: TimeoutError")), "Redis: TimeoutError"),
        (Refusing(StoreError("UpdateItem was refused")), "UpdateItem was refused"),
    ],
    ids=["none", "well", "unreachable", "refusing"],
)
def test_a_store_that_cannot_be_used_is_found(app, sqs, monkeypatch, store, problem):
    monkeypatch.setattr(guarded, "open_store", lambda _address, _settings: store)
    monkeypatch.setattr(broker_context, "start_thread", lambda _target, _name: None)
    options = {} if store is None else {"coordination_store": "redis://keys"}
    assert facts_of(app, sqs, **options).store_problem == problem


@pytest.mark.parametrize(
    ("url", "region"), [("dynamodb://keys", "us-east-1"), ("dynamodb://keys?region=eu-west-3", "eu-west-3")]
)
def test_of_a_table_that_is_missing_the_commands_are_told_that_create_it(app, sqs, monkeypatch, url, region):
    missing = Refusing(StoreError("ResourceNotFoundException: no such table"))
    monkeypatch.setattr(guarded, "open_store", lambda _address, _settings: missing)
    (finding,) = checks.check_store(facts_of(app, sqs, coordination_store=url))
    create, wait, expire = finding.remedy.split(" && ")
    assert create.startswith(f"aws dynamodb create-table --region {region} --table-name keys ")
    assert wait == f"aws dynamodb wait table-exists --region {region} --table-name keys"
    assert expire.endswith("--time-to-live-specification Enabled=true,AttributeName=expires")


ACTIONS = {
    "sqs:ReceiveMessage": "ReceiveMessage",
    "sqs:DeleteMessage": "DeleteMessageBatch",
    "sqs:ChangeMessageVisibility": "ChangeMessageVisibilityBatch",
    "sqs:SendMessage": "SendMessageBatch",
}


def test_what_sqs_has_looked_at_is_allowed_and_the_queue_stays_as_it_is(sqs):
    probed = queue(sqs)
    send(probed, "a", "b")
    assert permissions_on(probed) == {
        "sqs:ReceiveMessage": ProbeResult.NOT_KNOWN,
        "sqs:DeleteMessage": ProbeResult.ALLOWED,
        "sqs:ChangeMessageVisibility": ProbeResult.ALLOWED,
        "sqs:SendMessage": ProbeResult.NOT_KNOWN,
    }
    assert counts(probed) == (2, 0)
    (message, *_) = sqs.receive(probed.url, 1, 0, ReceiveOptions(0, ("All",)))
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"


@pytest.mark.parametrize(
    ("permission", "position"),
    [*((each, None) for each in ACTIONS), ("sqs:DeleteMessage", 0), ("sqs:ChangeMessageVisibility", 0)],
)
@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (AccessDeniedError("no"), ProbeResult.DENIED),
        (ThrottledError("slow down"), ProbeResult.NOT_KNOWN),
        (UnavailableError("no answer"), ProbeResult.NOT_KNOWN),
    ],
)
def test_a_refusal_shows_that_a_permission_is_missing_or_nothing(sqs, permission, position, error, shown):
    probed = queue(sqs)
    sqs.fail_next(ACTIONS[permission], error, position=position)
    assert permissions_on(probed)[permission] is shown


@pytest.mark.parametrize("key", ["", AMAZONS_KEY, f"arn:aws:kms:eu-west-1:123456789012:{AMAZONS_KEY}"])
def test_sqs_own_key_takes_no_permission(key):
    assert permissions_on_key({"KmsMasterKeyId": key}, ClientSettings(), "eu-west-1") == {}

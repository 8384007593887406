"""The ARNs of an app, from what SQS tells and what the options name."""

import json

import pytest
from celery import Celery
from kombu import Exchange, Queue
from kombu.common import Broadcast
from support.clock import FakeClock

from celery_sqs_visibility.aws.fake import FakeSQS
from celery_sqs_visibility.aws.queues import Queues
from celery_sqs_visibility.errors import AccessDeniedError
from celery_sqs_visibility.operate.app_queues import queue_names
from celery_sqs_visibility.operate.permissions import AppResources, permissions
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.policy.provisioning import plan_queues
from celery_sqs_visibility.transport.broker_context import BrokerContext
from celery_sqs_visibility.transport.connection_settings import BrokerURL

ACCOUNT = "123456789012"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/worker"
OWN_URL = f"https://sqs.eu-west-1.amazonaws.com/{ACCOUNT}/proj"


class AccountSQS(FakeSQS):
    """A fake whose queues have URLs as Amazon's."""

    def queue_url(self, name, owner=None):
        super().queue_url(name, None if owner == ACCOUNT else owner)
        return f"https://sqs.us-east-1.amazonaws.com/{ACCOUNT}/{name}"

    def queue_attributes(self, queue_url, names):
        return super().queue_attributes(
            f"memory://us-east-1/000000000000/{queue_url.rpartition('/')[2]}", names
        )


def resources(
    queues=("proj",), *, create=False, fail=None, task_queues=None, settings=(), planned=False, **options
):
    """Of an app with these queues; each has the attributes that it is given with."""
    app = Celery(set_as_current=False)
    app.conf.update(settings)
    app.conf.task_queues = task_queues or [Queue(name) for name in queues]
    parsed = Options.parse(options)
    broker = BrokerContext(BrokerURL(), parsed)
    sqs = AccountSQS(FakeClock())
    for name, attributes in dict(queues).items() if isinstance(queues, dict) else ():
        sqs.create_queue(name, attributes, {})
    if fail:
        sqs.fail_next(fail, AccessDeniedError(f"{fail} was answered AccessDenied"))
    broker.queues = Queues(
        sqs, prefix=parsed.queue_name_prefix, predefined=parsed.predefined_queues, owner=parsed.queue_owner
    )
    plans = plan_queues(queues, parsed, {}) if planned else None
    found = AppResources(app, broker, create=create, plans=plans)
    found.add(queue_names(app, broker.options))
    app.close()
    assert not (planned and sqs.calls)
    return found


def arn(name, service="sqs", account=ACCOUNT, region="us-east-1"):
    return f"arn:aws:{service}:{region}:{account}:{name}"


def test_a_queue_with_dead_letters_and_a_key():
    policy = json.dumps({"deadLetterTargetArn": arn("dead"), "maxReceiveCount": 5})
    found = resources({"proj": {"RedrivePolicy": policy, "KmsMasterKeyId": "1234-abcd"}})
    assert found.arns == {
        "queues": [arn("proj")],
        "queues_without_url": [arn("proj")],
        "dead_letters": [arn("dead")],
        "keys": [arn("key/1234-abcd", "kms")],
        "ages": ["*"],
    }
    assert found.notes == []


@pytest.mark.parametrize(
    ("key", "in_policy", "aliases"),
    [
        ("alias/aws/sqs", None, []),
        (arn("key/1", "kms"), arn("key/1", "kms"), []),
        ("alias/mine", arn("key/*", "kms"), ["alias/mine"]),
        (arn("alias/mine", "kms"), arn("key/*", "kms"), ["alias/mine"]),
    ],
)
def test_keys_have_arns_ids_or_aliases(key, in_policy, aliases):
    found = resources({"proj": {"KmsMasterKeyId": key}})
    assert found.arns.get("keys") == ([in_policy] if in_policy else None)
    assert found.aliases == aliases


def test_what_is_not_known_is_said_and_has_an_asterisk():
    absent = resources(["proj"], queue_name_prefix="p-")
    assert absent.arns["queues"] == [arn("p-proj", account="*")]
    denied = resources({"proj": {}}, fail="GetQueueUrl")
    assert denied.arns["queues"] == [arn("proj", account="*")]
    assert "the account of queue 'proj' is not known" in denied.notes[0]
    unread = resources({"proj": {}}, fail="GetQueueAttributes")
    assert "the dead-letter queue and the KMS key of queue 'proj'" in unread.notes[0]


def test_predefined_queues_need_no_look_up_with_a_url():
    own = resources(
        predefined_queues={"proj": {"url": OWN_URL, "sts_role_arn": ROLE}}, fail="GetQueueAttributes"
    )
    assert own.arns == {"queues": [arn("proj", region="eu-west-1")], "roles": [ROLE], "ages": ["*"]}
    assert "on queue 'proj'" in own.notes[1]
    others = resources(predefined_queues={"proj": {"QueueOwnerAWSAccountId": "210987654321"}})
    assert others.arns["queues_of_others"] == [arn("proj", account="210987654321")]
    assert "queues_without_url" not in others.arns


def test_options_name_things():
    found = resources(
        {"proj": {}, "dead": {}},
        task_queues=[Queue("proj")],
        create=True,
        queue_tags={"team": "a"},
        dead_letter_queue="dead",
        payload_store="s3://payloads/celery/",
        coordination_store="dynamodb://keys?region=eu-west-1",
        sts_role_arn=ROLE,
    )
    assert found.arns == {
        "queues": [arn("proj")],
        "queues_without_url": [arn("proj")],
        "plain_dead_letters": [arn("dead")],
        "created": [arn("proj"), arn("dead")],
        "tagged": [arn("proj"), arn("dead"), arn("dead")],
        "created_letters": [arn("dead")],
        "dead_letters": [arn("dead")],
        "buckets": ["arn:aws:s3:::payloads"],
        "payloads": ["arn:aws:s3:::payloads/celery/*"],
        "key_tables": [arn("table/keys", "dynamodb", region="eu-west-1")],
        "roles": [ROLE],
        "ages": ["*"],
        "planned": [arn("dead"), arn("proj")],
    }


@pytest.mark.parametrize("options", [{"metrics": ["emf"]}, {"http_address": ":9540"}])
def test_metrics_count_dead_letters_and_ask_for_ages(options):
    policy = {"RedrivePolicy": json.dumps({"deadLetterTargetArn": arn("dead"), "maxReceiveCount": 5})}
    found = resources({"proj": policy}, **options)
    assert (found.arns["sampled"], found.arns["sampled_ages"]) == ([arn("dead")], ["*"])
    assert "sampled" not in resources({"proj": policy}).arns


def test_remote_control_takes_queues_of_a_prefix():
    found = resources(
        {"p-proj": {}}, task_queues=[Queue("proj")], remote_control=True, queue_name_prefix="p-"
    )
    assert found.arns["control_queues"] == [arn("p-celery-control-*")]
    assert found.arns["lists"] == ["*"]
    assert "monitors" not in found.arns


def test_a_producer_that_tells_what_it_sent_may_send_to_monitors_alone():
    found = resources({"proj": {}}, settings={"task_send_sent_event": True}, remote_control=True)
    assert found.arns["monitors"] == [arn("celery-control-celeryev-518dfd-*")]
    assert found.arns["monitor_lists"] == ["*"]


def test_fanout_takes_topics_and_queues_whose_names_are_made_up():
    queues = [Queue("proj"), Broadcast("news")]
    found = resources({"proj": {}}, task_queues=queues, supports_fanout=True, queue_name_prefix="")
    assert found.arns["broadcasts"] == [arn("bcast-*")]
    assert found.arns["topics"] == [arn("news", "sns")]
    assert found.arns["subscriptions"] == ["*"]
    topic = arn("news", "sns", region="eu-west-1")
    predefined = resources(
        {"proj": {}},
        task_queues=queues,
        supports_fanout=True,
        predefined_exchanges={"news": {"arn": topic}},
    )
    assert predefined.arns["predefined_topics"] == [topic]
    assert "topics" not in predefined.arns


@pytest.mark.parametrize("by", ["policy", "option"])
def test_the_key_of_the_dead_letter_queue_is_needed_too(by):
    policy = {"RedrivePolicy": json.dumps({"deadLetterTargetArn": arn("dead"), "maxReceiveCount": 5})}
    found = resources(
        {"dead": {"KmsMasterKeyId": "of-letters"}, "proj": policy if by == "policy" else {}},
        task_queues=[Queue("proj")],
        **({} if by == "policy" else {"dead_letter_queue": "dead"}),
    )
    assert found.arns["keys"] == [arn("key/of-letters", "kms")]
    assert found.notes == []


def test_a_queue_that_is_bound_to_a_fanout_exchange_needs_what_broadcasts_do():
    bound = Queue("proj", Exchange("news", type="fanout"))
    found = resources({"proj": {}}, task_queues=[bound], supports_fanout=True)
    assert found.arns["broadcasts"] == found.arns["queues"] == [arn("proj")]
    assert "broadcasts" not in resources({"proj": {}}, supports_fanout=True).arns


@pytest.mark.parametrize("tags", [{}, {"team": "a"}])
def test_who_creates_queues_without_tags_needs_not_tag_them(tags):
    found = resources({"proj": {}}, create=True, queue_tags=tags)
    assert found.arns["created"] == [arn("proj")]
    assert found.arns["created_letters"] == found.arns["dead_letters"] == [arn("proj-dead")]
    assert found.arns.get("tagged", []) == ([arn("proj"), arn("proj-dead")] if tags else [])


def test_planned_queues_need_no_look():
    found = resources(["proj"], planned=True, **{"sqs-creation-attributes": {"KmsMasterKeyId": "alias/mine"}})
    assert found.arns == {
        "queues": [arn("proj", account="*")],
        "queues_without_url": [arn("proj", account="*")],
        "dead_letters": [arn("proj-dead", account="*")],
        "keys": [arn("key/*", "kms", account="*")] * 2,
        "ages": ["*"],
    }
    assert found.aliases == ["alias/mine", "alias/mine"]
    assert {each: plan.sqs_name for each, plan in found.planned.items()} == {
        arn("proj", account="*"): "proj",
        arn("proj-dead", account="*"): "proj-dead",
    }


def test_planned_queues_of_others_are_at_their_place():
    predefined = {"proj": {"QueueOwnerAWSAccountId": "210987654321", "region": "eu-west-1"}}
    found = resources(["proj"], planned=True, predefined_queues=predefined)
    place = {"account": "210987654321", "region": "eu-west-1"}
    assert found.arns["queues_of_others"] == [arn("proj", **place)]
    assert found.arns["dead_letters"] == [arn("proj-dead", **place)]


def test_a_dead_letter_queue_that_is_not_planned_may_have_a_key():
    policy = {"deadLetterTargetArn": arn("dead"), "maxReceiveCount": 5}
    own = resources(["proj"], planned=True, **{"sqs-creation-attributes": {"RedrivePolicy": policy}})
    assert own.arns["dead_letters"] == [arn("dead")]
    assert own.notes == [f"the KMS key of dead-letter queue {arn('dead')}, if it has one, is not looked up"]
    of_option = resources(["own-dead"], planned=True, dead_letter_queue="dead")
    assert of_option.arns["plain_dead_letters"] == [arn("dead", account="*")]
    assert list(of_option.planned) == [arn("own-dead", account="*")]


def test_the_document_is_on_one_stream_and_the_notes_on_the_other(run_on):
    sqs = AccountSQS(FakeClock())
    sqs.fail_next("GetQueueUrl", AccessDeniedError("GetQueueUrl was answered AccessDenied"))
    done = run_on(sqs, permissions, "worker", "-Q", "proj")
    assert json.loads(done.stdout)["Version"] == "2012-10-17"
    assert done.stderr == (
        "Note: the account of queue 'proj' is not known: GetQueueUrl was answered AccessDenied\n"
    )

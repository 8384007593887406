"""`celery -A proj sqs permissions`: a policy document for IAM, with the ARNs of an app."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final, get_args

import click
from celery import Celery

from celery_sqs_visibility.aws.redrive import parse_redrive_policy
from celery_sqs_visibility.errors import QueueDoesNotExistError, SQSError
from celery_sqs_visibility.operate.app_queues import dead_letter_queue, inspect_queue, queue_names
from celery_sqs_visibility.operate.invocation import app_of, broker_of, json_option, say, show_json
from celery_sqs_visibility.operate.permission_table import BROADCASTS, Role, policy_document
from celery_sqs_visibility.policy.control_names import exchange_prefix
from celery_sqs_visibility.policy.predefined import PredefinedQueue
from celery_sqs_visibility.policy.provisioning import QueuePlan, plan_queues
from celery_sqs_visibility.policy.queue_names import (
    KEY,
    REDRIVE_POLICY,
    arn_of,
    key_in,
    partition_of,
    redrive_policy,
    sqs_name,
)
from celery_sqs_visibility.transport.broker_context import BrokerContext
from celery_sqs_visibility.transport.routing import use_here
from celery_sqs_visibility.transport.temporary_queues import is_of_a_broadcast

#: Stands for an unknown account, in a form that both IAM and people understand.
ANY: Final = "*"

ATTRIBUTES: Final = (REDRIVE_POLICY, KEY)


class AppResources:
    """ARNs of an app, by `permission_table.Statement.kind`.

    Attributes:
        arns: by kind.
        aliases: of KMS keys whose ARN is unknown.
        notes: sentences about what is unknown, and about permissions of other credentials.
        planned: the planned queues by their ARNs.

    With `plans` the queues are taken from the plans, and no request is made.
    """

    def __init__(
        self, app: Celery, broker: BrokerContext, *, create: bool, plans: Iterable[QueuePlan] | None = None
    ) -> None:
        self.arns: dict[str, list[str]] = defaultdict(list)
        self.aliases: list[str] = []
        self.notes: list[str] = []
        self.planned: dict[str, QueuePlan] = {}
        self._plans = None if plans is None else {plan.sqs_name: plan for plan in plans}
        self._app, self._broker, self._create = app, broker, create
        self._options = broker.options
        self._region = self._account = ""

    def add(self, names: Iterable[str]) -> None:
        """Inspect the queues of these names, and what the options name. Makes requests.

        Raises:
            SQSError: the settings are wrong.
        """
        self._region = min(location.region for location in self._broker.queues.locations())
        self._account = self._options.queue_owner or ""
        names = list(names)
        for name in names:
            if is_of_a_broadcast(name) and self._is_fanout(name):
                self.arns["broadcasts"].append(self._arn("sqs", self._broker.queues.prefix + BROADCASTS))
            else:
                self._add_queue(name)
        self._add_from_options()
        self._add_for_commands(names)

    def _add_queue(self, name: str) -> None:
        options = self._options
        predefined = options.predefined_queue(name)
        arn, attributes = self._look_at(name, predefined)
        self.arns["queues"].append(arn)
        if self._is_fanout(name):
            self.arns["broadcasts"].append(arn)
        if options.queue_owner or (predefined and predefined.owner and not predefined.url):
            self.arns["queues_of_others"].append(arn)
        elif predefined is None:
            self.arns["queues_without_url"].append(arn)
        if predefined is None and not options.queue_owner:
            self._add_created(arn)
            self._add_created_letters(name, attributes)
        if redrive := parse_redrive_policy(attributes):
            self.arns["dead_letters"].append(redrive.dead_letter_arn)
            self._add_key_of_letters(name, redrive.dead_letter_arn)
        elif letters := options.for_queue(name).dead_letter_queue:
            arn_of_letters, of_letters = self._look_at(letters, None)
            self._add_key(arn_of_letters, key_in(of_letters))
            self.arns["plain_dead_letters"].append(arn_of_letters)
            self._add_created(arn_of_letters)
        self._add_key(arn, key_in(attributes))
        if predefined and predefined.sts_role_arn:
            self._add_role(predefined.sts_role_arn, f"on queue {name!r}")

    def _look_at(self, name: str, predefined: PredefinedQueue | None) -> tuple[str, Mapping[str, str]]:
        """A queue's ARN and attributes, as planned, or as far as SQS shows them."""
        if self._plans is not None:
            return self._as_planned(name, predefined)
        queues = self._broker.queues
        found = inspect_queue(lambda: queues.find(name), ATTRIBUTES)
        queue = found.queue
        if queue is None:
            if not isinstance(found.error, QueueDoesNotExistError):
                self.notes.append(f"the account of queue {name!r} is not known: {found.error}")
            owner = predefined.owner if predefined else None
            region = (predefined and predefined.region) or self._region
            return self._arn("sqs", queues.canonical_name(name), account=owner, region=region), {}
        region = (predefined and predefined.region) or queue.sqs.location().region
        arn = self._arn("sqs", queue.sqs_name, account=queue.account, region=region)
        self._account = self._account or queue.account or ""
        if found.error is not None:
            self.notes.append(
                f"the dead-letter queue and the KMS key of queue {name!r}, if it has them, are not in "
                f"this policy: {found.error}"
            )
        return arn, found.attributes or {}

    def _as_planned(self, name: str, predefined: PredefinedQueue | None) -> tuple[str, Mapping[str, str]]:
        own_name, plans = self._options.name_at_sqs(name), self._plans or {}
        region = (predefined and predefined.region) or self._region
        owner = predefined.owner if predefined else None

        def arn_at(sqs_name: str) -> str:
            arn = self._arn("sqs", sqs_name, account=owner, region=region)
            if sqs_name in plans:
                self.planned[arn] = plans[sqs_name]
            return arn

        arn, plan = arn_at(own_name), plans.get(own_name)
        if plan is None or plan.dead_letters is None:
            return arn, plan.attributes if plan else {}
        policy = redrive_policy(arn_at(plan.dead_letters), plan.max_receive_count)
        return arn, {**plan.attributes, REDRIVE_POLICY: json.dumps(policy)}

    def _add_created(self, arn: str) -> None:
        if self._create:
            self.arns["created"].append(arn)
            if self._options.queue_tags:
                self.arns["tagged"].append(arn)

    def _add_created_letters(self, name: str, attributes: Mapping[str, str]) -> None:
        """Add the dead-letter queue that a queue is created with, unless it exists and has another one."""
        if not self._create or REDRIVE_POLICY in attributes:
            return
        for letters in plan_queues([name], self._options, {})[:-1]:
            arn = self._arn("sqs", letters.sqs_name)
            self.arns["created_letters"].append(arn)
            self.arns["dead_letters"].append(arn)
            if self._options.queue_tags:
                self.arns["tagged"].append(arn)

    def _add_key(self, queue_arn: str, key: str) -> None:
        """Add the key of an encrypted queue, by its ARN, id or alias."""
        if not key:
            return
        region, account = queue_arn.split(":")[3:5]
        if ":key/" not in key and "alias/" in key:
            self.aliases.append(key[key.index("alias/") :])
            key = "*"
        is_arn = key.startswith("arn:")
        self.arns["keys"].append(
            key if is_arn else self._arn("kms", f"key/{key}", account=account, region=region)
        )

    def _add_key_of_letters(self, name: str, arn: str) -> None:
        """Add the key of the dead-letter queue in a redrive policy, which sending there needs."""
        if self._plans is not None:
            if plan := self.planned.get(arn):
                self._add_key(arn, key_in(plan.attributes))
            else:
                self.notes.append(f"the KMS key of dead-letter queue {arn}, if it has one, is not looked up")
            return
        try:
            letters = dead_letter_queue(self._broker, self._broker.queues.find(name))
            attributes = letters.sqs.queue_attributes(letters.url, [KEY]) if letters is not None else {}
        except QueueDoesNotExistError:
            return  # no key: `sqs doctor` reports it
        except SQSError as error:
            self.notes.append(f"the KMS key of dead-letter queue {arn}, if it has one, is not known: {error}")
            return
        self._add_key(arn, key_in(attributes))

    def _add_role(self, arn: str, where: str) -> None:
        self.arns["roles"].append(arn)
        self.notes.append(
            f"the statement AssumeRole is for the process's own credentials; role {arn} takes "
            f"the permissions {where}, and a trust policy that lets the process assume it"
        )

    def _add_from_options(self) -> None:
        options = self._options
        if options.sts_role_arn:
            self._add_role(options.sts_role_arn, "of all other statements")
        partition = partition_of(self._region)
        if options.payload_store:
            bucket = f"arn:{partition}:s3:::{options.payload_store.bucket}"
            self.arns["buckets"].append(bucket)
            self.arns["payloads"].append(f"{bucket}/{options.payload_store.prefix}*")
        store = options.coordination_store
        if store and not store.is_redis:
            region = store.region or self._region
            self.arns["key_tables"].append(self._arn("dynamodb", f"table/{store.table}", region=region))
        if options.supports_fanout:
            self._add_topics()
        if options.remote_control:
            self.arns["control_queues"].append(self._arn("sqs", f"{options.whole_control_prefix}*"))
            self.arns["lists"].append(ANY)  # ListQueues has no resources
            self.arns["paused"] += self.arns["queues"]
            if self._app.conf.task_send_sent_event:
                monitors = exchange_prefix(options.whole_control_prefix, self._app.conf.event_exchange)
                self.arns["monitors"].append(self._arn("sqs", f"{monitors}*"))
                self.arns["monitor_lists"].append(ANY)

    def _add_for_commands(self, names: list[str]) -> None:
        """Add the ARNs that metrics sample, and those that the commands read and create."""
        options = self._options
        self.arns["ages"].append(ANY)
        if options.has_metrics:
            self.arns["sampled_ages"].append(ANY)
            for kind in self.arns.keys() & {"dead_letters", "plain_dead_letters"}:
                self.arns["sampled"] += self.arns[kind]
        if self._create and not (options.predefined_queues or options.queue_owner):
            own = [name for name in names if not is_of_a_broadcast(name)]
            self.arns["planned"] += [self._arn("sqs", p.sqs_name) for p in plan_queues(own, options, {})]

    def _add_topics(self) -> None:
        predefined = self._options.predefined_exchanges
        if predefined:
            self.arns["predefined_topics"] += [topic.arn for topic in predefined.values()]
        else:
            named = {sqs_name(name, self._options.queue_name_prefix) for name in self._fanouts()}
            self.arns["topics"] += [self._arn("sns", name) for name in sorted(named)]
        self.arns["subscriptions"].append(ANY)

    def _fanouts(self) -> list[str]:
        queues = self._app.amqp.queues.values()
        exchanges = {each.name: each.type for q in queues for each in (q.exchange, *_bound(q))}
        return [name for name, kind in exchanges.items() if kind == "fanout" and not use_here(name)]

    def _is_fanout(self, name: str) -> bool:
        queue = self._app.amqp.queues.get(name)
        return queue is not None and any(each.type == "fanout" for each in (queue.exchange, *_bound(queue)))

    def _arn(self, service: str, name: str, *, account: str | None = None, region: str = "") -> str:
        region = region or self._region
        return arn_of(service, region, account or self._account or ANY, name)


def _bound(queue: Any) -> list[Any]:
    return [binding.exchange for binding in getattr(queue, "bindings", ())]


@click.command()
@click.argument("role", type=click.Choice(get_args(Role)))
@click.option("--queue", "-Q", "queues", multiple=True, metavar="QUEUE", help="This queue; all by default.")
@click.option("--create", is_flag=True, help="Let the role create queues that are missing.")
@json_option
@click.pass_context
def permissions(ctx: click.Context, role: Role, queues: tuple[str, ...], create: bool, as_json: bool) -> None:  # noqa: FBT001 - click's
    """Print the least permissions of a worker, a producer, or an operator who calls these commands.

    A policy document for IAM, of the app's queues, their dead-letter queues and keys, and the options. What
    is not known goes to the standard error stream, a sentence each; with --json it is in the answer, as
    {"document": ..., "notes": [...]}. No permission is needed: where SQS does not tell the account, its
    place in the ARN has an asterisk.

    \b
    celery -A proj sqs permissions worker > policy.json
    aws iam put-role-policy --role-name worker --policy-name sqs \\
        --policy-document file://policy.json
    """  # noqa: D301 - click's sign for lines that stay as they are is a backspace
    app = app_of(ctx)
    with broker_of(app) as broker:
        found = AppResources(app, broker, create=create)
        found.add(dict.fromkeys(queues) or queue_names(app, broker.options))
    document = policy_document(role, found.arns, found.aliases)
    if as_json:
        show_json({"document": document, "notes": found.notes})
        return
    show_json(document)
    for note in found.notes:
        say(f"Note: {note}", err=True)

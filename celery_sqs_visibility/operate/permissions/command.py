"""`celery -A proj sqs policy`: prints a policy document for IAM."""

from __future__ import annotations

from typing import get_args

import click

from celery_sqs_visibility.operate.invocation import app_of, broker_of, json_option, say, show_json
from celery_sqs_visibility.operate.permission_table import Role, policy_document
from celery_sqs_visibility.operate.permissions.resources import AppResources, names_of


@click.command()
@click.argument("role", type=click.Choice(get_args(Role)))
@click.option("--queue", "-Q", "queues", multiple=True, metavar="QUEUE", help="This queue; all by default.")
@click.option("--create", is_flag=True, help="Let the role create queues that are missing.")
@json_option
@click.pass_context
def policy(ctx: click.Context, role: Role, queues: tuple[str, ...], create: bool, as_json: bool) -> None:  # noqa: FBT001 - click's
    """Print the least rights of a worker, a producer, or an operator who calls these commands.

    A policy document for IAM, of the app's queues, their dead-letter queues and keys, and the options. What
    is not known goes to the standard error stream, a sentence each; with --json it is in the answer, as
    {"document": ..., "notes": [...]}. No right is needed: where SQS does not tell the account, its place in
    the ARN has an asterisk.

    \b
    celery -A proj sqs policy worker > policy.json
    aws iam put-role-policy --role-name worker --policy-name sqs \\
        --policy-document file://policy.json
    """  # noqa: D301 - click's sign for lines that stay as they are is a backspace
    app = app_of(ctx)
    with broker_of(app) as broker:
        found = AppResources(app, broker, create=create)
        found.add(names_of(app, broker, queues))
    document = policy_document(role, found.arns, found.aliases)
    if as_json:
        show_json({"document": document, "notes": found.notes})
        return
    show_json(document)
    for note in found.notes:
        say(f"Note: {note}", err=True)

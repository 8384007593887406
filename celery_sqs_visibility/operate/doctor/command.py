"""`celery -A proj sqs doctor`."""

from __future__ import annotations

import click

from celery_sqs_visibility.operate.doctor.checks import findings_of
from celery_sqs_visibility.operate.doctor.gathering import gather
from celery_sqs_visibility.operate.doctor.kombu_changes import findings_of_switch, settings_to_paste
from celery_sqs_visibility.operate.doctor.kombus_app import facts_of_switch, switched_broker
from celery_sqs_visibility.operate.doctor.report import as_json as report_as_json
from celery_sqs_visibility.operate.doctor.report import is_well, show
from celery_sqs_visibility.operate.invocation import app_of, broker_of, json_option, show_json


@click.command()
@click.option("--queue", "-Q", "queues", multiple=True, metavar="QUEUE", help="This queue; all by default.")
@click.option("--from-kombu", is_flag=True, help="What changes for an app that is on kombu's transport yet.")
@json_option
@click.pass_context
def doctor(
    ctx: click.Context,
    queues: tuple[str, ...],
    from_kombu: bool,  # noqa: FBT001 - click's
    as_json: bool,  # noqa: FBT001 - click's
) -> None:
    """Check settings, queues and rights against each other.

    Prints what is wrong in the order of damage: errors lose work or do it twice, warnings may, notes cost
    money or do nothing. Each says what to paste. Nothing is changed, sent, received or created. The rights
    are those of the credentials of this command: run it where the worker runs, or with its role.

    Exit status: 0 with notes at the most, 1 with an error or a warning.
    """
    app = app_of(ctx)
    if from_kombu:
        with switched_broker(app) as (broker, refused):
            facts = facts_of_switch(gather(app, broker, queues))
        findings = findings_of_switch(facts, app.conf.broker_transport_options, refused)
        paste = settings_to_paste(app.conf.broker_transport_options, refused)
    else:
        with broker_of(app) as broker:
            facts = gather(app, broker, queues)
        findings, paste = findings_of(facts), ""
    if as_json:
        show_json(report_as_json(findings, facts, paste))
    else:
        show(findings, facts, paste)
    ctx.exit(0 if is_well(findings) else 1)

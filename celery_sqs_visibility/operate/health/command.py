"""`celery -A proj sqs health`."""

from __future__ import annotations

import click

from celery_sqs_visibility.operate.health.probe import SECONDS, run
from celery_sqs_visibility.operate.invocation import json_option


@click.command()
@click.option("-n", "--node", metavar="NODE", help="The node to ask, as w1@host, w1@%h or w1.")
@click.option(
    "--timeout", type=click.FloatRange(0.01), default=SECONDS, show_default=True, help="Seconds to wait."
)
@click.option("--ready", is_flag=True, help="Ask whether it is ready, not whether it is alive.")
@json_option
@click.pass_context
def health(ctx: click.Context, node: str | None, timeout: float, *, ready: bool, as_json: bool) -> None:
    """Ask the workers of this host how they are.

    A worker is alive while its threads, its pool and Celery's main thread make progress, even in an
    outage of SQS; it is ready while it receives. Without NODE all workers of this user are asked.

    As a probe of a container use `celery-sqs-health`, which has the same options and starts without Celery.

    Exit status: 0 all are well; 1 one is not, or does not answer; 69 there is none.
    """
    ctx.exit(run(node, timeout, ready=ready, as_json=as_json))

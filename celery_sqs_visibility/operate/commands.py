"""`celery -A proj sqs`: the group of commands, each of which is imported when it is called.

Every `celery` command imports this module (celery/bin/celery.py: entry points of `celery.commands`), so it
imports nothing but click. For `celery inspect` and `celery control` it also imports the workers' commands,
because these refuse names that their own process doesn't know (celery/bin/control.py:
`_verify_command_name`).
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Final

import click

#: Modules of the commands. Their functions have underscores instead of dashes.
MODULES: Final[dict[str, str]] = {
    "audit": "audit.command",
    "dead-letters": "dead_letters.command",
    "doctor": "doctor.command",
    "find": "find",
    "health": "health.command",
    "held": "held",
    "local": "local",
    "message": "message",
    "pause": "pause",
    "permissions": "permissions",
    "queues": "queues",
    "resume": "pause",
    "status": "status.command",
}


class LazyGroup(click.Group):
    """Imports the module of a command when the command is called or listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The names of the commands, sorted."""
        return sorted(MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command of that name; `None` if there is none."""
        if cmd_name not in MODULES:
            return None
        module = import_module(f"celery_sqs_visibility.operate.{MODULES[cmd_name]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command


if not {"inspect", "control"}.isdisjoint(sys.argv):
    import_module("celery_sqs_visibility.worker.control_commands")


@click.group(cls=LazyGroup)
@click.pass_context
def sqs(ctx: click.Context) -> None:
    """See and steer Celery on Amazon SQS.

    Exit status: 0 all is well; 1 it is not, or the command failed; 2 wrong usage; 69 nobody answers; 77 a
    permission is missing.
    """
    if os.environ.get("NO_COLOR") or getattr(ctx.obj, "no_color", False):  # `celery --no-color`
        ctx.color = False

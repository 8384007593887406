"""`celery -A proj sqs`: the group of commands, each of which is imported when it is called.

Every `celery` command imports this module (celery/bin/celery.py: entry points of `celery.commands`), so it
imports nothing but click.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

import click

#: A command's name to the module below this package that has it, as a function with underscores for dashes.
MODULES: Final[dict[str, str]] = {
    "health": "health.command",
}


class LazyGroup(click.Group):
    """Imports a command's module for the command alone, and for the list of them all."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Names, in order."""
        return sorted(MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command, or `None` if there is none of that name."""
        if cmd_name not in MODULES:
            return None
        module = import_module(f"celery_sqs_visibility.operate.{MODULES[cmd_name]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command


@click.group(cls=LazyGroup)
def sqs() -> None:
    """See and steer Celery on Amazon SQS.

    Exit status: 0 all is well; 1 it is not, or the command failed; 2 wrong usage; 69 nobody answers; 77 a
    right is missing.
    """

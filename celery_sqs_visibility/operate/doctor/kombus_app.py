"""An app that is on kombu's SQS transport yet, looked at as if it had switched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from celery import Celery

from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.operate.doctor.facts import Facts, TaskFacts
from celery_sqs_visibility.operate.invocation import CommandError, errors_as_sentences
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.transport.broker_context import BrokerContext

OURS: Final = "celery_sqs_visibility"


@contextmanager
def switched_broker(app: Celery) -> Iterator[tuple[BrokerContext, dict[str, str]]]:
    """The broker with our transport and the options that it takes; and why it refuses the others.

    Raises:
        CommandError: the app is on our transport, or not on SQS at all.
    """
    with errors_as_sentences(), app.connection_for_read() as theirs:
        scheme = str(theirs.transport_cls)
        if scheme.lower() != "sqs":
            raise CommandError(
                "the app is on celery_sqs_visibility: leave out --from-kombu"
                if OURS in scheme.replace("-", "_")
                else f"the app's broker transport is {scheme}, and --from-kombu is for kombu's 'sqs'"
            )
        taken, refused = taken_options(app.conf.broker_transport_options)
        with app.connection_for_read(transport=OURS) as ours:
            ours.transport_options = taken
            transport: Any = ours.transport
            yield transport.context, refused


def taken_options(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The options that our transport takes; and the sentence with which it refuses each of the others."""
    taken: dict[str, Any] = {}
    refused: dict[str, str] = {}
    names = list(given)
    # Twice: an option may need one that comes after it.
    for name in [*names, *names]:
        try:
            Options.parse({**taken, name: given[name]})
        except OptionError as error:
            refused[name] = str(error)
        else:
            taken[name] = given[name]
            refused.pop(name, None)
    return taken, refused


def facts_of_switch(facts: Facts) -> Facts:
    """The facts as they are once all tasks are `VisibilityTask`s."""
    return replace(facts, tasks=tuple(map(_switched, facts.tasks)))


def _switched(task: TaskFacts) -> TaskFacts:
    return replace(task, comes_back=True)

"""`doctor --from-kombu`: checks an app on kombu's SQS transport as if it had switched to this one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from celery import Celery

from celery_sqs_visibility.errors import OptionError
from celery_sqs_visibility.operate.doctor.checks import findings_of
from celery_sqs_visibility.operate.doctor.facts import Facts, Finding, Severity, tasks_listed
from celery_sqs_visibility.operate.figures import duration_text
from celery_sqs_visibility.operate.invocation import CommandError, errors_as_sentences
from celery_sqs_visibility.policy.options import Options
from celery_sqs_visibility.transport.broker_context import BrokerContext

OURS: Final = "celery_sqs_visibility"

#: kombu's visibility timeout must outlast the longest task, ours need not.
LONG_TIMEOUT_SECONDS: Final = 900


#: Options whose defaults differ from kombu's, each with kombu's and what follows from ours
#: (kombu/transport/SQS: `Channel.default_visibility_timeout`, `Transport.polling_interval` and so on).
DEFAULTS: Final = (
    (
        "visibility_timeout",
        1800,
        (
            "kombu gives it to queues that it creates. Here it goes with every receive, whatever the queue "
            "has, and is renewed while the task runs: a killed worker's tasks are back after so long."
        ),
    ),
    ("wait_time_seconds", 10, "An idle worker makes fewer requests."),
    ("polling_interval", 1, "The next poll begins at once after an empty one."),
)

#: Findings about every app.
UNCONDITIONAL: Final = (
    Finding(
        Severity.NOTE,
        "countdown and eta",
        "a task with an ETA waits in SQS, delayed or hidden, and no longer in a worker's memory",
        "It survives restarts, takes no slot, and costs a receive.",
        "nothing to do; maxReceiveCount of max_retries + 4 leaves room for it",
    ),
    Finding(
        Severity.NOTE,
        "fleet",
        "processes of both transports understand each other's messages",
        "A worker of kombu's transport does not extend messages, and publishes retries.",
        "switch the transport of one process at a time, in any order, and the task class when no "
        "worker of kombu's transport is left (docs/mixed-fleets.md)",
    ),
)


def findings_of_switch(facts: Facts, given: Mapping[str, Any], refused: Mapping[str, str]) -> list[Finding]:
    """Findings about what the switch changes, and about the app after it, the worst first."""
    changes = [
        *_refused(refused),
        *_early_acks(facts),
        *_new_retries(facts),
        *_long_timeout(given, refused),
        *_defaults(given),
        *_kept(given, refused),
        *UNCONDITIONAL,
    ]
    # `_early_acks` and `_long_timeout` report these two.
    checked = [
        _after_the_switch(finding, facts.command)
        for finding in findings_of(facts)
        if "acks_late" not in finding.problem and not finding.problem.startswith("visibility_timeout is")
    ]
    return sorted([*changes, *checked], key=lambda finding: finding.severity)


def _after_the_switch(finding: Finding, command: str) -> Finding:
    """Say that our commands only work after the switch: they refuse an app on kombu's transport."""
    if command not in finding.remedy:
        return finding
    return replace(finding, remedy=f"after the switch: {finding.remedy}")


def _refused(refused: Mapping[str, str]) -> Iterator[Finding]:
    for name, sentence in refused.items():
        yield Finding(
            Severity.ERROR,
            f"option {name}",
            f"it is refused: {sentence}",
            "Workers and producers end with this sentence; kombu reads it otherwise, or not at all.",
            f"remove {name} from broker_transport_options, and do as the sentence says",
        )


def _early_acks(facts: Facts) -> Iterator[Finding]:
    early = [task.name for task in facts.tasks if not task.acks_late]
    if early:
        yield Finding(
            Severity.WARNING,
            tasks_listed(early),
            "acks_late is False: its message is deleted before it runs, and with VisibilityTask after that",
            "A task whose worker dies runs again, where it was lost: it has to be idempotent. A task "
            "whose decorator says acks_late=False is refused.",
            "remove acks_late=False, or leave such a task its base: base=celery.Task",
        )


def _new_retries(facts: Facts) -> Iterator[Finding]:
    several = [task.name for task in facts.tasks if task.max_retries != 0 and not task.chooses]
    if several:
        yield Finding(
            Severity.WARNING,
            tasks_listed(several),
            "after every exception the message of a VisibilityTask comes back, max_retries (3) times",
            "A task that fails is FAILURE at once now, and then after its last attempt; until that, RETRY.",
            "max_retries=0 on tasks that are to run once, autoretry_for=(...) to choose exceptions, and "
            "error_visibility_timeout for the delays",
        )


def _long_timeout(given: Mapping[str, Any], refused: Mapping[str, str]) -> Iterator[Finding]:
    if _is_timeout_long(given, refused):
        yield Finding(
            Severity.WARNING,
            "option visibility_timeout",
            f"it is {duration_text(float(given['visibility_timeout']))}",
            "kombu's has to outlast the longest task. Here it is renewed while a task runs, and is how "
            "long the tasks of a killed worker take to come back.",
            "remove it, for the default of 120 s; while workers of kombu's transport are left, leave that of "
            "the queues",
        )


def _is_timeout_long(given: Mapping[str, Any], refused: Mapping[str, str]) -> bool:
    timeout = None if "visibility_timeout" in refused else given.get("visibility_timeout")
    return float(timeout or 0) > LONG_TIMEOUT_SECONDS


def _defaults(given: Mapping[str, Any]) -> Iterator[Finding]:
    ours = Options.parse({})
    for name, kombus, follows in DEFAULTS:
        if given.get(name) in (None, ""):
            yield Finding(
                Severity.NOTE,
                f"option {name}",
                f"it is not set: kombu's default is {kombus:g}, here it is {getattr(ours, name):g}",
                follows,
                "nothing to do",
            )


def _kept(given: Mapping[str, Any], refused: Mapping[str, str]) -> Iterator[Finding]:
    told = {*refused, *(["visibility_timeout"] if _is_timeout_long(given, refused) else [])}
    kept = sorted(name for name, value in given.items() if name not in told and value not in (None, ""))
    if kept:
        yield Finding(
            Severity.NOTE,
            "options",
            f"{', '.join(kept)} {'is' if len(kept) == 1 else 'are'} taken as before",
            "docs/coming-from-kombu.md says what each means here.",
            "nothing to do",
        )


def settings_to_paste(given: Mapping[str, Any], refused: Mapping[str, str]) -> str:
    """Python lines to add to the settings. They contain no values, because some are secret."""
    gone = list(refused)
    if _is_timeout_long(given, refused):
        gone.append("visibility_timeout")
    lines = ['app.conf.broker_transport = "celery_sqs_visibility"']
    if gone:
        lines += [f"for name in {gone!r}:", "    app.conf.broker_transport_options.pop(name, None)"]
    lines.append("# Once no worker of kombu's transport is left: app = Celery(..., task_cls=VisibilityTask)")
    return "\n".join(lines)


@contextmanager
def switched_broker(app: Celery) -> Iterator[tuple[BrokerContext, dict[str, str]]]:
    """The broker with our transport and the options that it accepts; and why others are refused.

    Raises:
        CommandError: the app is on our transport, or not on SQS.
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
    """Split options into those that our transport accepts, and errors for those that it refuses."""
    taken: dict[str, Any] = {}
    refused: dict[str, str] = {}
    names = list(given)
    # Twice, because an option may require a later one.
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
    """The facts as they will be when all tasks are `VisibilityTask`s."""
    return replace(facts, tasks=tuple(replace(task, comes_back=True) for task in facts.tasks))

"""The reference in docs/: `make reference` writes it from the code; `test_reference.py` compares."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from pathlib import Path

import celery_sqs_visibility
from celery_sqs_visibility import VisibilityTask, errors, events
from celery_sqs_visibility.operate.metrics import names
from celery_sqs_visibility.policy.option_parsers import option_name
from celery_sqs_visibility.policy.options import Options

DOCS = Path(__file__).resolve().parents[2] / "docs"

#: A table within a page that has other text, too.
TABLE = re.compile(r"(?<=<!-- made by `make reference` -->\n).*?(?=<!-- end -->)", re.DOTALL)

#: A paragraph about one thing in Google's style of docstrings: its name, a colon, its lines.
ENTRY = re.compile(r"^(\w+): (.*?)(?=^\w+: |\Z)", re.DOTALL | re.MULTILINE)

REFERENCE = """\
# Settings of tasks, events and exceptions

Options of the transport are in [options](options.md), metrics in [metrics](metrics.md).

## Settings of a task

Arguments of `@app.task`, or attributes of a class with the base `VisibilityTask`. A misspelt setting or a
wrong value is refused when the task is bound to its app, with an error that names the task. Type checkers
find it in `@app.task(**TaskSettings(error_visibility_timeout=60))`, with this package's `TaskSettings`.
[Retries](retries.md), [long tasks](long-tasks.md), [exclusive tasks](exclusive-tasks.md) and [AWS
events](aws-events.md) show their use.

| setting | default | meaning |
|---|---|---|
{settings}
`acks_late` is true for every `VisibilityTask`; another value is refused, because a deleted message can't
come back. Celery's other settings, such as `time_limit` and `rate_limit`, are as in Celery. The methods of
`self.visibility` are in [long tasks](long-tasks.md).

## Events

Frozen dataclasses in `celery_sqs_visibility`. [Logs and events](logs-and-events.md#events) shows how to
listen to them. They happen in the worker's main process.

| event | fields | meaning |
|---|---|---|
{events}
Every event but `SQSRequest` and `EventsDropped` has `delivery`, a `DeliveryFacts`:

| field | meaning |
|---|---|
{facts}
## Exceptions

All are in `celery_sqs_visibility`; catching them needs no import of boto3. `SQSVisibilityError` is their
base. An error that passes by itself is worth a retry; any other needs a change.

| exception | also a | passes by itself | meaning |
|---|---|---|---|
{exceptions}
| attribute | of | meaning |
|---|---|---|
{attributes}"""

OPTIONS = """\
# Transport options

Celery's `broker_transport_options`, or kombu's `transport_options`. Most projects need only these:

{first}
Durations are seconds. `None` and empty text mean the default. A misspelt option, a value out of bounds or a
contradiction is refused at the first connection: the error names the option, the value, the bound and the
nearest valid name, and `celery worker` and `celery beat` exit with status 1. Type checkers find a
misspelt one in `options: TransportOptions = {{...}}`; import `TransportOptions` from
`celery_sqs_visibility`.

## All other options

{others}"""

#: Those that the page begins with.
FIRST = (
    "visibility_timeout",
    "error_visibility_timeout",
    "shutdown_timeout",
    "predefined_queues",
    "queue_name_prefix",
    "region",
    "remote_control",
)


def pages():
    """Each page of the reference, and its text."""
    metrics = DOCS / "metrics.md"
    return {
        DOCS / "options.md": options_page(),
        DOCS / "reference.md": REFERENCE.format(
            settings=settings(),
            events=kinds_of_events(),
            facts=facts(),
            exceptions=exceptions(),
            attributes=attributes(),
        ),
        metrics: TABLE.sub(lambda _: metrics_table(), metrics.read_text()),
    }


def metrics_table():
    rows = ["| in Prometheus | in OpenTelemetry | labels | |", "|---|---|---|---|"]
    for one in names.METRICS:
        labels = ", ".join(one.labels) or "-"
        rows.append(f"| `{one.exposed}` | `{one.otel}` | {labels} | {one.help} |")
    return "\n".join(rows) + "\n"


def row(*cells):
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |\n"


def paragraphs(docstring):
    """A docstring's text and its section of attributes or arguments, by name; both without line ends."""
    text, *section = re.split(r"^(?:Attributes|Args):\n", inspect.cleandoc(docstring), flags=re.MULTILINE)
    entries = ENTRY.findall(textwrap.dedent("".join(section)))
    return " ".join(text.split()), {name: sentence(about) for name, about in entries}


def sentence(text):
    """In one line, with a capital."""
    text = " ".join(text.split())
    return text[:1].upper() + text[1:]


def public(module, root):
    """The public classes of a module that are a `root`, in the order of the module."""
    classes = (each for each in vars(module).values() if inspect.isclass(each) and issubclass(each, root))
    return [
        each
        for each in classes
        if each.__module__ == module.__name__ and each.__name__ in celery_sqs_visibility.__all__
    ]


def settings():
    _, entries = paragraphs(VisibilityTask.__doc__)
    return "".join(
        row(f'`{name}`<a id="{name}"></a>', f"`{inspect.getattr_static(VisibilityTask, name)!r}`", about)
        for name, about in entries.items()
    )


def exceptions():
    return "".join(
        row(
            f"`{kind.__name__}`",
            ", ".join(f"`{base.__name__}`" for base in kind.__bases__ if base is not Exception) or "-",
            "yes" if issubclass(kind, errors.PASSING_ERRORS) else "-",
            paragraphs(kind.__doc__)[0],
        )
        for kind in public(errors, errors.SQSVisibilityError)
    )


def attributes():
    rows = []
    for kind in [*public(errors, errors.SQSVisibilityError), errors.PublishFailure]:
        _, entries = paragraphs(kind.__doc__)
        rows += [row(f"`{name}`", f"`{kind.__name__}`", about) for name, about in entries.items()]
    return "".join(rows)


def kinds_of_events():
    rows = []
    for kind in public(events, events.Event):
        text, entries = paragraphs(kind.__doc__)
        fields = [each.name for each in dataclasses.fields(kind) if each.name != "delivery"]
        about = [f"`{name}`: {entries[name]}" for name in fields if name in entries]
        if kind not in (events.Event, events.DeliveryEvent):
            rows.append(
                row(
                    f"`{kind.__name__}`",
                    ", ".join(f"`{name}`" for name in fields) or "-",
                    " ".join([text, *about]),
                )
            )
    return "".join(rows)


def facts():
    _, entries = paragraphs(events.DeliveryFacts.__doc__)
    return "".join(row(f"`{name}`", about) for name, about in entries.items())


def main():
    for page, text in pages().items():
        page.write_text(text)


def _options_table(names: tuple[str, ...] | list[str]) -> str:
    """Options as a Markdown table, each with an anchor."""
    rows = ["| option | default | bounds | meaning |", "|---|---|---|---|"]
    rows += map(_options_row, names)
    return "\n".join(rows) + "\n"


def _options_row(name: str) -> str:
    row = Options.__dataclass_fields__[name].metadata
    option = option_name(name)
    return f'| `{option}`<a id="{option}"></a> | `{row["default"]}` | {row["bounds"]} | {row["doc"]} |'


def options_page() -> str:
    """The page docs/options.md."""
    shown = [f.name for f in dataclasses.fields(Options) if not f.metadata["internal"]]
    others = [name for name in shown if name not in FIRST]
    return OPTIONS.format(first=_options_table(FIRST), others=_options_table(others))


if __name__ == "__main__":
    main()

"""Commands for the AWS CLI, printed to be pasted."""

from __future__ import annotations

import json
import shlex

from celery_sqs_visibility.aws.port import Location


def aws_command(service: str, action: str, location: Location | None, **arguments: str) -> str:
    """A command with its region, and its endpoint unless that is Amazon's. "_" in options becomes "-"."""
    place = {} if location is None else {"region": location.region}
    if location is not None and not location.is_amazons:
        place["endpoint_url"] = location.endpoint
    given = [(name.replace("_", "-"), value) for name, value in (place | arguments).items()]
    # With "=", a value that begins with a hyphen is not taken for an option.
    words = [f"--{n}{'=' if value.startswith('-') else ' '}{shlex.quote(value)}" for n, value in given]
    return " ".join(["aws", service, action, *words])


def set_attributes(url: str, location: Location | None, **attributes: object) -> str:
    """The command that sets attributes of a queue."""
    texts = {name: json.dumps(v) if isinstance(v, dict) else str(v) for name, v in attributes.items()}
    return aws_command("sqs", "set-queue-attributes", location, queue_url=url, attributes=json.dumps(texts))


def create_queue(name: str, location: Location | None, **attributes: str) -> str:
    """The command that creates a queue."""
    texts = ",".join(f"{key}={value}" for key, value in attributes.items())
    return aws_command("sqs", "create-queue", location, queue_name=name, attributes=texts)


def create_table(name: str, region: str) -> str:
    """The commands that create a DynamoDB table for exclusive keys, at the environment's endpoint."""
    create = aws_command(
        "dynamodb",
        "create-table",
        None,
        region=region,
        table_name=name,
        billing_mode="PAY_PER_REQUEST",
        attribute_definitions="AttributeName=key,AttributeType=S",
        key_schema="AttributeName=key,KeyType=HASH",
    )
    wait = aws_command("dynamodb", "wait table-exists", None, region=region, table_name=name)
    expire = aws_command(
        "dynamodb",
        "update-time-to-live",
        None,
        region=region,
        table_name=name,
        time_to_live_specification="Enabled=true,AttributeName=expires",
    )
    return f"{create} && {wait} && {expire}"

"""The table of permissions, its policy documents, and docs/permissions.md, which has it for people."""

import json
import re
from pathlib import Path

import pytest

from celery_sqs_visibility.operate.permission_table import OPERATOR, PERMISSIONS, policy_document

PAGE = (Path(__file__).resolve().parents[3] / "docs/permissions.md").read_text()
QUEUE = "arn:aws:sqs:eu-west-1:123456789012:proj"
PERMISSION = r"`(\w+:\w+)`"


def test_the_page_and_the_table_have_the_same_permissions():
    rows = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if re.match(r"\| `\w+:", line)]
    statements = json.loads(re.search(r"```json\n(.*?)```", PAGE, re.DOTALL)[1])["Statement"]
    of_the_page = {
        (permission, on) for permissions, on, *_ in rows for permission in re.findall(PERMISSION, permissions)
    }
    of_the_page |= {(permission, "the queue") for each in statements for permission in each["Action"]}
    of_processes = [each for each in PERMISSIONS if each.roles != OPERATOR]
    of_the_table = {(permission, each.on) for each in of_processes for permission in each.actions}
    assert of_the_page == of_the_table
    of_commands = PAGE.partition("## Permissions for commands")[2].partition("\n## ")[0]
    of_operators = {
        permission for each in PERMISSIONS if each.roles >= OPERATOR for permission in each.actions
    }
    assert set(re.findall(PERMISSION, of_commands)) == of_operators


@pytest.mark.parametrize(
    ("role", "permissions"),
    [
        (
            "worker",
            "ChangeMessageVisibility DeleteMessage GetQueueAttributes GetQueueUrl ReceiveMessage SendMessage",
        ),
        ("producer", "GetQueueUrl SendMessage"),
        ("operator", "GetQueueAttributes GetQueueUrl SendMessage"),
    ],
)
def test_a_plain_queue_takes_these_permissions_and_no_others(role, permissions):
    document = policy_document(role, {"queues": [QUEUE], "queues_without_url": [QUEUE]})
    actions = {action for each in document["Statement"] for action in each["Action"]}
    assert actions == {f"sqs:{permission}" for permission in permissions.split()}
    assert {each["Resource"] for each in document["Statement"]} == {QUEUE}


def test_statements_are_for_things_that_there_are():
    assert policy_document("worker", {"topics": []}) == {"Version": "2012-10-17", "Statement": []}
    several = policy_document("producer", {"queues": [QUEUE, QUEUE, f"{QUEUE}2"]})["Statement"]
    assert [each["Resource"] for each in several] == [[QUEUE, f"{QUEUE}2"]]


def test_a_key_known_by_its_alias_is_named_in_a_condition():
    key = "arn:aws:kms:eu-west-1:123456789012:key/*"
    decrypt, _ = policy_document("producer", {"keys": [key]}, ["alias/mine"])["Statement"]
    assert decrypt["Condition"] == {"ForAnyValue:StringEquals": {"kms:ResourceAliases": ["alias/mine"]}}


def test_a_key_known_by_its_arn_is_under_no_condition_of_another():
    keys = [f"arn:aws:kms:eu-west-1:123456789012:key/{name}" for name in ("*", "1234")]
    exact, by_alias, *_ = policy_document("producer", {"keys": keys}, ["alias/mine"])["Statement"]
    assert (exact["Sid"], exact["Resource"]) == ("Decrypt", keys[1])
    assert "Condition" not in exact
    assert (by_alias["Sid"], by_alias["Resource"]) == ("DecryptByAlias", keys[0])


def test_statements_have_names_of_their_own_that_iam_takes():
    names = [each.sid for each in PERMISSIONS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch("[A-Za-z0-9]+", name) for name in names)

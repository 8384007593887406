"""docs/kombu-features.md: no option, property or name of the installed kombu is missing."""

import re
from pathlib import Path

from support.kombu_names import kombus_attributes, kombus_options, kombus_properties

from celery_sqs_visibility.transport.channel import Channel
from celery_sqs_visibility.transport.message import QoS
from celery_sqs_visibility.transport.transport import Transport

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/kombu-features.md").read_text()
FEATURES, _, NAMES = PAGE.partition("\n## Names on kombu's classes\n")
THE_SAME, _, REPLACED = NAMES.partition("\n| not here |")


def is_here(name):
    return any(hasattr(cls, name) for cls in (Channel, Transport, QoS))


def quoted(text):
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)


def test_every_option_and_property_of_kombus_is_a_feature():
    wanted = kombus_options() | kombus_properties()
    assert {"predefined_queues", "MessageGroupId", "sts_role_arn", "body_encoding"} <= wanted
    assert wanted - set(quoted(FEATURES)) == set()


def test_every_name_of_kombus_is_there_or_said_to_be_missing():
    assert kombus_attributes() - set(quoted(NAMES)) == set()
    names_here = quoted(THE_SAME.partition("The same here:")[2].partition(". ")[0])
    assert names_here
    assert [name for name in names_here if not is_here(name)] == []
    cells = re.findall(r"^\| (`.*?) \|", REPLACED, re.MULTILINE)
    assert cells
    assert [name for cell in cells for name in quoted(cell) if is_here(name)] == []

"""No text of somebody else's gives a terminal orders, or has a line look like another."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqs_visibility import operate
from celery_sqs_visibility.policy.printable import UNPRINTABLE, printable, printable_json, printable_lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\x9b31m \x7f \x00", r"\x9b31m \x7f \x00"),
        ("a\u202egnp.exe\u2066", r"a\u202egnp.exe\u2066"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\ud800", r"\ud800"),
        ("Größe ✓ 日本", "Größe ✓ 日本"),
    ],
)
def test_such_characters_are_written_as_in_a_literal(text, shown):
    assert printable(text) == shown


def test_lines_stay_lines():
    assert printable_lines("a\n\tb\r\x1b") == "a\n\tb\\r\\x1b"


@given(st.text())
def test_nothing_else_is_left_and_json_means_the_same(text):
    assert not UNPRINTABLE.search(printable(text))
    shown = printable_json(json.dumps({text: [text]}, indent=2, ensure_ascii=False))
    assert not UNPRINTABLE.search(shown.replace("\n", ""))
    assert json.loads(shown) == {text: [text]}


def test_commands_print_by_the_one_function_that_looks_at_the_text():
    """Of the others, one draws by orders to the terminal, one counts, one is the author's own text alone."""
    root = Path(operate.__file__).parent
    echoing = {
        str(path.relative_to(root)) for path in root.rglob("*.py") if "click.echo(" in path.read_text()
    }
    assert echoing == {"invocation.py", "status/command.py", "dead_letters/moves.py", "local.py"}

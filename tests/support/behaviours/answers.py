"""Answers: whether what came is what was expected, and both in words."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Facts of what came that no row needs to expect, unless it says so.
_INCIDENTAL = frozenset(
    {"message", "bodies", "counts", "system", "attributes", "values", "numbers", "found", "waited", "same"}
)


def matches(expected: Mapping[str, Any], came: Mapping[str, Any]) -> bool:
    """Whether each expected fact came, and no refusal that was not expected."""
    return all(
        (name in _INCIDENTAL and name not in expected) or _agrees(name, expected.get(name), came.get(name))
        for name in expected.keys() | came.keys()
    )


def _agrees(name: str, expected: Any, came: Any) -> bool:
    match name:
        case "message":
            return came is not None and re.search(expected, came) is not None
        case "system" | "values":
            return came is not None and all(_like(text, came.get(key)) for key, text in expected.items())
        case "failed":
            return (expected or {}) == (came or {})
        case "waited":
            return came is not None and expected[0] <= came <= expected[1]
        case _:
            return expected == came


def _like(pattern: str | None, text: str | None) -> bool:
    if pattern is None or text is None:
        return pattern == text
    return re.search(pattern, text) is not None


def told(expected: Mapping[str, Any], came: Mapping[str, Any]) -> dict[str, Any]:
    """What came, as a row has it: refusals, and those facts that the row expects."""
    kept = {
        name: value
        for name, value in came.items()
        if value not in ({}, None) and (name not in _INCIDENTAL or name in expected)
    }
    if "message" in kept:
        kept["message"] = re.escape(kept["message"][:60]).replace(r"\ ", " ")
    for name in {"system", "values"} & kept.keys():
        kept[name] = {
            key: None if (text := kept[name].get(key)) is None else f"^{re.escape(text)}$"
            for key in expected[name]
        }
    if "waited" in kept:
        kept["waited"] = [round(max(0.0, kept["waited"] - 1), 1), round(kept["waited"] + 1, 1)]
    return kept


def in_words(answer: Mapping[str, Any]) -> str:
    """An answer, as docs/fidelity.md has it."""
    if answer.get("asked") is False:
        return "cannot be asked"
    parts = [word for name, value in answer.items() if (word := _in_words(name, value, answer))]
    return "; ".join(parts) or "yes"


def _in_words(name: str, value: Any, answer: Mapping[str, Any]) -> str | None:
    match name:
        case "code":
            where = f" at step {answer['step']}" if "step" in answer else ""
            return f"refused{where}: `{value}`"
        case "bodies":
            return f"brings {', '.join(map(_shown, value))}" if value else "brings nothing"
        case "counts":
            return f"receive count {', '.join(map(str, value))}"
        case "failed":
            entries = [f"entry {position} `{code}`" for position, code in value.items()]
            return f"refused in part: {', '.join(entries)}"
        case "system" | "values":
            return ", ".join(
                f"{key} {'is missing' if text is None else f'`{text}`'}" for key, text in value.items()
            )
        case "attributes":
            return f"message attributes {', '.join(value) or 'none'}"
        case "numbers":
            return "visible {}, hidden {}, delayed {}".format(*value)
        case "found":
            return f"{value} queues"
        case "waited":
            return f"after {value[0]:g} to {value[1]:g} units"
        case "same":
            return "the same message id" if value else "another message id"
        case "message":
            return None if "code" in answer else json.dumps(value)
    return None


def _shown(body: str) -> str:
    return body if len(body) <= 12 else f"{len(body)} characters"

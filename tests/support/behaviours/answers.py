"""Answers: whether what came is what was expected, and both in words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

LONGEST_BODY = 12

#: Facts of what came that no row needs to expect, unless it says so.
_INCIDENTAL = frozenset(
    {"message", "bodies", "counts", "system", "attributes", "values", "numbers", "found", "waited", "same"}
    | {"base64"}
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
    if kept.get("code") != expected.get("code"):
        kept.pop("message", None)  # of another refusal
    if "message" in kept:
        kept["message"] = re.escape(kept["message"][:60]).replace(r"\ ", " ")
    for name in {"system", "values"} & kept.keys():
        kept[name] = {key: _told(text, kept[name].get(key)) for key, text in expected[name].items()}
    if "waited" in kept:
        kept["waited"] = [round(max(0.0, kept["waited"] - 1), 1), round(kept["waited"] + 1, 1)]
    return kept


def _told(pattern: str | None, text: str | None) -> str | None:
    """The pattern if the text is like it, else one of its own."""
    if text is None or _like(pattern, text):
        return None if text is None else pattern
    return f"^{re.escape(text)}$"


def in_words(answer: Mapping[str, Any]) -> str:
    """An answer in a sentence."""
    if answer.get("asked") is False:
        return "cannot be asked"
    parts = [_WORDS[name](value) for name, value in answer.items() if name in _WORDS]
    where = f" at step {answer['step']}" if "step" in answer else ""
    return "; ".join(filter(None, parts)) + where or "yes"


def _bodies(bodies: Sequence[str]) -> str:
    shown = [body if len(body) <= LONGEST_BODY else f"{len(body)} characters" for body in bodies]
    return f"brings {', '.join(shown)}" if bodies else "brings nothing"


def _failed(codes: Mapping[str, str]) -> str:
    entries = [f"entry {position} `{code}`" for position, code in codes.items()]
    return f"refused in part: {', '.join(entries)}" if entries else ""


def _patterns(patterns: Mapping[str, str | None]) -> str:
    return ", ".join(
        f"{key} " + ("is missing" if text is None else f"`{text}`") for key, text in patterns.items()
    )


_WORDS: dict[str, Callable[[Any], str]] = {
    "code": "refused: `{}`".format,
    "bodies": _bodies,
    "counts": lambda counts: f"receive count {', '.join(map(str, counts))}" if counts else "",
    "failed": _failed,
    "system": _patterns,
    "values": _patterns,
    "attributes": lambda attributes: f"message attributes {', '.join(attributes) or 'none'}",
    "numbers": lambda numbers: "visible {}, hidden {}, delayed {}".format(*numbers),
    "found": "{} queues".format,
    "waited": lambda bounds: f"after {bounds[0]:g} to {bounds[1]:g} units",
    "base64": lambda is_it: "handles in base64" if is_it else "handles that are not in base64",
    "same": lambda same: "the same message id" if same else "another message id",
}

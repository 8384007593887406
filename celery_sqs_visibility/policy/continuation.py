"""With which arguments a task is continued."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import Parameter, Signature
from typing import Any


def changed_arguments(
    signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any], changes: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, some of them changed: each stays positional, or by name, as it was."""
    changed, left = list(args), dict(changes)
    positional = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    ]
    for position, parameter in enumerate(positional[: len(changed)]):
        if parameter.kind is Parameter.POSITIONAL_OR_KEYWORD and parameter.name in left:
            changed[position] = left.pop(parameter.name)
    return tuple(changed), {**kwargs, **left}

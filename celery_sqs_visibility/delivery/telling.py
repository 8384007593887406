"""Telling the world of something, which must not keep us from doing what follows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any


def tell(log: Callable[..., object], sentence: str, *args: Any, **options: Any) -> None:
    """Call `log`, a method of a logger; what it raises is dropped.

    `logging` keeps the errors of handlers to itself, but lets those of filters through, and those of a logger
    class of the user's.
    """
    with suppress(Exception):
        log(sentence, *args, stacklevel=2, **options)

r"""Text that somebody else wrote, fit for terminals and logs.

A terminal obeys control characters (C0 and C1). Marks of text direction and line separators can disguise a
line as another.
"""

from __future__ import annotations

import re
from typing import Final

#: C0, DEL and C1; separators of lines; marks of direction; surrogates, which no encoding has.
UNPRINTABLE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)

#: White space of indented JSON; elsewhere JSON escapes it.
_INDENTATION: Final = "\t\n"


def printable(text: str, *, keep: str = "") -> str:
    r"""Write such characters as in a Python literal: `\x1b`, `\u202e`. Those in `keep` stay."""
    return UNPRINTABLE.sub(
        lambda found: found[0] if found[0] in keep else found[0].encode("unicode_escape").decode(), text
    )


def printable_lines(text: str) -> str:
    """Do what `printable` does, but keep line breaks and tabs."""
    return printable(text, keep=_INDENTATION)


def printable_json(text: str) -> str:
    r"""Write such characters as JSON does: `\u001b`."""
    return UNPRINTABLE.sub(
        lambda found: found[0] if found[0] in _INDENTATION else f"\\u{ord(found[0]):04x}", text
    )

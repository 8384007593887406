"""The picture of the rooms, and a list for each room, made of the contracts about floors in `pyproject.toml`.

`make picture` writes the picture into docs/architecture.md, and the lists into
docs/contributing/rooms.md; `tests/unit/test_rooms.py` holds both pages to the contracts.
"""

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "celery_sqs_visibility"
ARCHITECTURE = ROOT / "docs/architecture.md"
ROOMS = ROOT / "docs/contributing/rooms.md"

#: The picture within docs/architecture.md.
PICTURE = re.compile(r"(?<=<!-- made by `make picture` -->\n).*?(?=<!-- end -->)", re.DOTALL)

HEAD = """\
# Floors of each room

Made of the contracts in `pyproject.toml` by `make picture`. A line imports those below it, never one above.
Names with a slash are rooms of their own. In one line, names separated by | do not import each other; between
the others there are no circles.
"""


def contracts():
    """Each contract about floors: its name, the dotted name of its room, and its floors from the top."""
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    for contract in linter["contracts"]:
        if contract["type"] == "layers":
            (room,) = contract["containers"]
            yield contract["name"], room, contract["layers"]


def names(floor):
    return re.split(r"\s*[:|]\s*", floor)


def separator(floor):
    return " | " if "|" in floor else ", "


def path_of(dotted):
    path = ROOT / dotted.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def subject(dotted):
    """The first line of a module's docstring, without the full stop."""
    docstring = ast.get_docstring(ast.parse(path_of(dotted).read_text()))
    return docstring.splitlines()[0].removesuffix(".")


def label(dotted):
    return dotted.rpartition(".")[2] + ("/" if path_of(dotted).name == "__init__.py" else ".py")


def flowchart(floors):
    """A Mermaid flowchart of floors, each with the lines of its rectangle."""
    nodes = [f'    f{number}["{"<br>".join(lines)}"]' for number, lines in enumerate(floors)]
    arrows = " --> ".join(f"f{number}" for number in range(len(floors)))
    return "\n".join(["```mermaid", "flowchart TD", *nodes, f"    {arrows}", "```", ""])


def escaped(text):
    return text.replace('"', "#quot;").replace("<", "#lt;").replace("`", "")


def picture():
    """The package's floors: each module or room with its subject."""
    (floors,) = [floors for _, room, floors in contracts() if room == PACKAGE]
    return flowchart([[line(f"{PACKAGE}.{name}") for name in names(floor)] for floor in floors])


def line(dotted):
    return f"<b>{label(dotted)}</b> {escaped(subject(dotted))}"


def rooms_page():
    """The floors of every room that has a contract."""
    parts = [HEAD]
    for name, room, floors in sorted(contracts(), key=lambda each: each[1]):
        if room != PACKAGE:
            rule = name.partition(": ")[2]
            sentence = f"{rule[:1].upper()}{rule[1:]}."
            lines = [
                separator(floor).join(f"`{label(f'{room}.{each}')}`" for each in names(floor))
                for floor in floors
            ]
            listed = "".join(f"{number}. {line}\n" for number, line in enumerate(lines, 1))
            parts.append(f"## `{room.removeprefix(f'{PACKAGE}.')}/`\n\n{sentence}\n\n{listed}")
    return "\n".join(parts)


def main():
    ARCHITECTURE.write_text(PICTURE.sub(lambda _: picture(), ARCHITECTURE.read_text()))
    ROOMS.write_text(rooms_page())


if __name__ == "__main__":
    main()

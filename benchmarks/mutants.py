"""Mutation tests of core, stores, control, worker and delivery: which changes do unit tests notice?

    cd build/mutants
    python benchmarks/mutants.py control --share 0.1    # or a part of it: control/inbox
    python benchmarks/mutants.py --write docs/contributing/tests.md

`make mutants` calls it. mutmut makes and runs the mutants, with three operators more than its own: it removes
no statement, and forces neither a condition nor a result. Texts are left alone. Results are kept in
`build/mutants`, a file for each room, from which the page is written. Survivors are printed.
"""

from __future__ import annotations

import argparse
import datetime as dt
import gc
import json
import math
import platform
import random
import time
from collections import Counter
from pathlib import Path

import libcst as cst
from mutmut import __main__ as mutmut
from mutmut.configuration import config
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.mutation.mutators import mutation_operators, operator_string
from mutmut.runners.harness import PytestRunner
from mutmut.state import state
from mutmut.stats import status_by_exit_code
from mutmut.utils.file_utils import copy_src_dir, walk_mutatable_files
from mutmut.workers.isolation import ForkServerRunner

BENCHMARKS = Path(__file__).resolve().parent
EQUIVALENTS = Path(__file__).with_name("mutants_equivalent.json")
RESULTS = BENCHMARKS.parent / "build/mutants"
PACKAGE = "celery_sqs_visibility"
ROOMS = ("core", "stores", "control", "worker", "delivery")
#: Tests of a room that are not in its own directory.
OTHER_TESTS = {
    "core": [
        "tests/unit/delivery/receive/test_turn_line.py",
        "tests/unit/delivery/settle/test_copies.py",
        "tests/unit/delivery/settle/test_sending_copies.py",
        "tests/unit/delivery/test_model_of_copies.py",
    ],
    "stores": ["tests/conformance/test_exclusive_store.py"],
    "control": ["tests/unit/transport/test_control_exchanges.py"],
    "delivery": ["tests/unit/test_publish.py", "tests/unit/transport/test_transport.py"],
}
SEED = 23
KILLED = {"killed", "timeout", "segfault", "suspicious"}
BEGIN, END = "<!-- made by `make mutants` -->\n", "<!-- end -->\n"
HEAD = """\
| room | mutants | tried | killed | equivalent | survived | share killed |
|---|--:|--:|--:|--:|--:|--:|"""


def operator_removal(node):
    """A call whose result nobody takes is not made; an item is not deleted."""
    match node.body[0]:
        case cst.Expr(value=cst.Call()) | cst.Del():
            yield node.with_changes(body=[cst.Pass()])


def operator_condition(node):
    """A branch is never taken, or always."""
    test = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    for operator, value in ((cst.And(), "False"), (cst.Or(), "True")):
        if isinstance(node, cst.If) or value == "False":  # a loop without an end only hangs
            yield node.with_changes(test=cst.BooleanOperation(test, operator, cst.Name(value)))


def operator_result(node):
    """A function returns None."""
    if node.value is not None and not (isinstance(node.value, cst.Name) and node.value.value == "None"):
        yield node.with_changes(value=cst.Name("None"))


def choose_operators():
    mutation_operators[:] = [
        *(each for each in mutation_operators if each[1] is not operator_string),
        (cst.SimpleStatementLine, operator_removal),
        (cst.If, operator_condition),
        (cst.While, operator_condition),
        (cst.Return, operator_result),
    ]


class Imported(PytestRunner):
    """Leaves what it has imported out of the searches for garbage that pytest ends each of its runs with."""

    def warm_up(self):
        super().warm_up()
        gc.collect()
        gc.freeze()


class Runner(ForkServerRunner):
    """Runs fast tests first: one that waits for a mutant in vain takes long, where another fails at once.

    And each test once without a mutant: where mutmut records which of them come to a function.
    """

    def submit(self, mutant_name, tests, *limits):
        super().submit(mutant_name, sorted(tests, key=state().duration_by_test.get), *limits)

    def run_clean_tests(self, tests):  # noqa: ARG002 - mutmut's signature
        return 0

    def run_forced_fail(self):
        return 1


def mutants_of(path):
    """The outcome of each, by its name."""
    data = SourceFileMutationData(path=path)
    data.load()
    return data.exit_code_by_key


def chosen(path, share, least):
    """A share of a module's mutants, and the least number, the same in each run of the same code."""
    names = sorted(mutants_of(path))
    count = min(len(names), max(least, math.ceil(share * len(names))))
    return random.Random(f"{SEED} {path}").sample(names, count)


def mutant(name, path):
    """Its function, and the lines that it replaces, and with what, as in a diff."""
    function = name.rpartition(".")[2].partition("__mutmut_")[0].removeprefix("x")
    lines = get_diff_for_mutant(name, path=path).splitlines()
    changed = [line for line in lines if line[:1] in "+-" and line[:3] not in {"+++", "---"}]
    return {
        "name": name,
        "module": str(path.relative_to(PACKAGE)),
        "function": function.strip("ǁ").replace("ǁ", ".").removeprefix("_"),
        "change": [f"{line[0]} {line[1:].strip()}" for line in changed],
    }


def begin(part, processes):
    """Make the mutants, and say which tests try those of a room, or of a part that has tests of its own."""
    room = part.partition("/")[0]
    own = next((path for path in (f"tests/unit/{part}", f"tests/unit/{room}") if Path(path).is_dir()), None)
    config().pytest_add_cli_args_test_selection = [own] * (own is not None) + OTHER_TESTS.get(room, [])
    choose_operators()
    mutmut.get_mutant_runner = lambda count: Runner(count, Imported, {})
    copy_src_dir()
    mutmut.create_mutants(processes)


def try_mutants(part, share, least, processes):
    """Try those of a room, or of modules whose paths begin so; the results, by module."""
    began = time.monotonic()
    begin(part, processes)
    paths = [path for path in sorted(walk_mutatable_files()) if f"{PACKAGE}/{part}" in str(path)]
    names = {path: chosen(path, share, least) for path in paths if mutants_of(path)}
    mutmut._run([name for each in names.values() for name in each], processes)
    conditions = {
        "part": part,
        "date": f"{dt.datetime.now(tz=dt.UTC).date()}",
        "python": platform.python_version(),
        "share": share,
        "least": least,
        "minutes": round((time.monotonic() - began) / 60),
    }
    return {
        str(path.relative_to(PACKAGE)): {
            "mutants": len(mutants_of(path)),
            "tried": len(names[path]),
            "timeouts": outcomes(path, names[path], {"timeout"}),
            "survivors": outcomes(path, names[path], set(status_by_exit_code.values()) - KILLED),
            **conditions,
        }
        for path in names
    }


def try_survivors(part, processes):
    """Try again those that have survived, with the tests as they are now, and as much code as then."""
    room = part.partition("/")[0]
    begin(part, processes)
    results = {module: result for module, result in kept(room).items() if module.startswith(part)}
    names = [each["name"] for result in results.values() for each in result["survivors"]]
    if names:
        mutmut._run(names, processes)
    for module, result in results.items():
        again = [each["name"] for each in result["survivors"]]
        path = Path(PACKAGE) / module
        result["survivors"] = outcomes(path, again, set(status_by_exit_code.values()) - KILLED)
        result["timeouts"] += outcomes(path, again, {"timeout"})
    return results


def outcomes(path, names, statuses):
    """Those of the mutants with such an outcome."""
    codes = mutants_of(path)
    return [mutant(name, path) for name in sorted(names) if status_by_exit_code[codes[name]] in statuses]


def keep(room, results):
    path = RESULTS / f"{room}.json"
    path.write_text(json.dumps({**kept(room), **results}, indent=1, ensure_ascii=False) + "\n")


def kept(room):
    path = RESULTS / f"{room}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def key(mutant):
    return mutant["module"], mutant["function"], *mutant["change"]


def equivalents():
    """Reasons, by mutant."""
    return {key(each): each["reason"] for each in json.loads(EQUIVALENTS.read_text())}


def counts(result, reasons):
    same = sum(key(each) in reasons for each in result["survivors"])
    alive = len(result["survivors"])
    return Counter(
        mutants=result["mutants"],
        tried=result["tried"],
        killed=result["tried"] - alive,
        equivalent=same,
        survived=alive - same,
    )


def row(name, count):
    numbers = [count[each] for each in ("mutants", "tried", "killed", "equivalent", "survived")]
    could_be = count["tried"] - count["equivalent"]
    share = f"{100 * count['killed'] / could_be:.0f} %" if could_be else ""
    return " | ".join([f"| {name}", *map(str, numbers), f"{share} |"])


def tables(results, reasons):
    """The page's lines, of the results by room."""
    rooms = {
        room: sum((counts(result, reasons) for result in of_room.values()), Counter())
        for room, of_room in results.items()
    }
    rows = [row(f"`{room}/`", count) for room, count in rooms.items()]
    return [*map(condition, results.values()), "", HEAD, *rows, row("all", sum(rooms.values(), Counter()))]


def condition(of_room):
    last = max(of_room.values(), key=lambda each: each["date"])
    command = f"make mutants MODULES={last['part']} SHARE={last['share']:g} LEAST={last['least']}"
    return f"- `{command}`: {last['date']}, Python {last['python']}, {last['minutes']} minutes"


def print_results(results, reasons):
    for module, result in results.items():
        print(module, dict(counts(result, reasons)))
        for each in result["survivors"]:
            if key(each) not in reasons:
                print(f"  {each['function']}", *each["change"], sep="\n    ")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="?", help="a room, or the begin of modules' paths")
    parser.add_argument("--share", type=float, default=0.25, help="of each module's mutants")
    parser.add_argument("--least", type=int, default=5, help="mutants of a module, however small the share")
    parser.add_argument("--again", action="store_true", help="only those that survived the last time")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--write", type=Path, help="the page whose tables are replaced")
    options = parser.parse_args()
    reasons = equivalents()
    if part := options.modules:
        if options.again:
            results = try_survivors(part, options.processes)
        else:
            results = try_mutants(part, options.share, options.least, options.processes)
        keep(part.partition("/")[0], results)
        print_results(results, reasons)
    if options.write:
        text = "\n".join(tables({room: kept(room) for room in ROOMS if kept(room)}, reasons)) + "\n"
        before, rest = options.write.read_text().split(BEGIN)
        options.write.write_text(before + BEGIN + text + END + rest.split(END)[1])


if __name__ == "__main__":
    main()

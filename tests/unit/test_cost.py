"""What a task costs, in calls and bytecodes, stays within its bounds; `make cost` writes them anew."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
BOUNDS = json.loads(Path(__file__).with_name("cost_bounds.json").read_text())
BOUND = BOUNDS.get(".".join(version("celery").split(".")[:2]), {"versions": {}, "build": "", "figures": {}})

#: A change that costs more, or saves more, is to show it in its own diff.
WITHIN = 0.02
#: The same work counted twice.
SPREAD = 0.005
MESSAGES = 200

INSTALLED = {name: version(name) for name in BOUND["versions"]}
#: The kind of work that `make quick` counts, too.
COMMON = "VisibilityTask, prefork"
further = [pytest.mark.slow("each counts hundreds of messages")]
counted_here = [
    pytest.mark.skipif(
        sys.version_info[:2] != (3, 11), reason="costs are counted on Python 3.11: bytecodes of others differ"
    ),
    pytest.mark.skipif(
        not INSTALLED or BOUND["versions"] != INSTALLED,
        reason=f"the bounds are of {BOUND['versions']}, installed are {INSTALLED}: `make cost` counts anew",
    ),
]


class Within:
    """Equal to a figure that is within a part of it; shows how far another is from it."""

    def __init__(self, kind, figures, part=WITHIN):
        self._kind, self._figures, self._part = kind, figures, part

    def __eq__(self, counted):
        return all(
            abs(counted[unit] - figure) <= self._part * figure
            for unit, figure in self._figures.items()
            if unit in counted
        )

    __hash__ = None

    def __repr__(self):
        return (
            f"<{self._kind}: {self._figures}, within {self._part:.1%}. Cheaper, or worth it? `make cost` "
            "writes the bounds anew, and your diff shows what your change costs.>"
        )


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=counted_here + further * (kind != COMMON)) for kind in BOUND["figures"]],
)
def test_each_kind_of_work_costs_what_its_bound_says(benchmark_module, kind):
    cost = benchmark_module("cost").count(kind, MESSAGES)
    assert cost.figures == Within(kind, BOUND["figures"][kind])


def test_every_kind_of_work_has_a_bound_for_every_supported_celery(benchmark_module):
    kinds = set(benchmark_module("cost_kinds").KINDS)
    assert [(celery, set(bound["figures"])) for celery, bound in BOUNDS.items()] == [
        (celery, kinds) for celery in ("5.5", "5.6", "5.7")
    ]


@pytest.mark.slow("it counts twice")
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="costs are counted on Python 3.11")
def test_a_count_is_the_same_each_time(benchmark_module):
    first, second = (benchmark_module("cost").count(COMMON, 100) for _ in range(2))
    assert second.figures == Within("the first count", first.figures, SPREAD)


@pytest.mark.slow("valgrind")
def test_instructions_are_what_their_bound_says(benchmark_module):
    instructions = benchmark_module("cost_instructions")
    if why_not := instructions.why_not():
        pytest.skip(why_not)
    if BOUND["build"] != instructions.build():
        pytest.skip(f"instructions were counted with {BOUND['build']}, and this is {instructions.build()}")
    if "instructions" not in BOUND["figures"][COMMON]:
        pytest.skip("`make cost` counts instructions on the newest Celery only")
    counted = {"instructions": benchmark_module("cost").count_instructions(COMMON, 100)}
    assert counted == Within(COMMON, BOUND["figures"][COMMON])


CHARGED = """
from cost_counter import Counter

counter = Counter()
fakes, work = {"__name__": "celery_sqs_visibility.aws.fake_queue"}, {"__name__": "celery.work"}
exec("def fake():\\n    return [str(i) for i in range(100)]", fakes)
exec("import textwrap\\ndef work():\\n    fake()\\n    return textwrap.dedent('x')", work)
work["fake"] = fakes["fake"]
counter.start()
work["work"]()
counter.stop()
(tally,) = counter.tallies.values()
print(*counter.tallies, tally.calls, 20 < tally.bytecodes < 200, tally.c_calls > 0)
"""


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="costs are counted on Python 3.11")
def test_a_function_is_charged_with_what_it_calls_in_pythons_library_and_the_fake_sqs_costs_nothing():
    command = [sys.executable, "-c", CHARGED]  # a counter wants no thread beside it
    counted = subprocess.run(command, cwd=BENCHMARKS, check=True, capture_output=True, text=True, timeout=60)
    assert counted.stdout == "('celery.work', 'work') 2 True True\n"

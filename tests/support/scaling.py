"""`benchmarks/scaling.py`, for tests: the formulae of docs/scaling.md."""

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# It is not on the path, since other benchmarks have names that tests have too.
spec = importlib.util.spec_from_file_location("benchmarks_scaling", ROOT / "benchmarks/scaling.py")
scaling = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(scaling)

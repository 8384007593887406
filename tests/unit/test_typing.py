"""A user's project type-checks, and its generic bases make tasks on every Celery."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from celery_sqs_visibility import VisibilityTask

ROOT = Path(__file__).resolve().parents[2]
PROJECT = ROOT / "tests/typed/shop.py"
CACHE = ROOT / ".mypy_cache/typed"


@pytest.fixture(scope="module")
def shop():
    spec = importlib.util.spec_from_file_location("typed_shop", PROJECT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    module.app.close()


@pytest.mark.slow("mypy reads the whole package")
def test_a_users_project_passes_mypy_strict():
    pytest.importorskip("mypy")  # not in the environments of `make matrix`
    # `--config-file=`: as users run it, without this repository's settings.
    mypy = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", CACHE, PROJECT]
    told = subprocess.run(mypy, capture_output=True, text=True, timeout=300, check=False)
    assert told.stdout.startswith("Success"), told.stdout + told.stderr


def test_generic_bases_make_tasks_that_run(shop):
    runs = [
        shop.reindex.apply(["bucket"]),
        shop.count.apply(["bucket"]),
        shop.import_object.apply(["bucket", 6]),
    ]
    assert [run.get() for run in runs] == [6, 6, 6]


def test_a_base_with_parameters_is_the_class_itself(shop):
    assert VisibilityTask[[str], int] is VisibilityTask
    assert shop.ShopTask[..., int] is shop.ShopTask
    assert shop.Reindex.__mro__[1] is VisibilityTask
    assert isinstance(shop.count, VisibilityTask)

"""The example of docs/testing.md, as it stands, on the same nodes as the other tests here."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NODES = os.environ.get("SQS_TEST_NODES", "process")
RUN_SECONDS = 540

# Above the example's own conftest, so that its vendor comes first, and these nodes in place of the vendor's.
CONFTEST = f"""
pytest_plugins = ["celery_sqs_visibility.testing.pytest_celery", "e2e.{NODES}_nodes"]
"""


@pytest.mark.timeout(RUN_SECONDS + 60)
def test_the_example_passes(request, tmp_path):
    shutil.copytree(ROOT / "examples/orders", tmp_path / "orders")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\naddopts = -p no:cacheprovider\n")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (tmp_path, ROOT / "tests", ROOT)))}
    if NODES == "docker":
        env |= {"BASE": request.getfixturevalue("celery_base_worker_image").id, "PIP_NO_INDEX": "1"}
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "orders/tests"],
        cwd=tmp_path,
        env=env,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_SECONDS,
    )
    assert ended.returncode == 0, ended.stdout
    assert "2 passed" in ended.stdout

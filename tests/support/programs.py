"""Programs that some tests need: without one, a test is skipped, with the package that brings it."""

from __future__ import annotations

import shutil

import pytest

#: Debian's packages.
PACKAGES = {
    "chromedriver": "chromium-driver",
    "chromium": "chromium",
    "jq": "jq",
    "promtool": "prometheus",
    "postgres": "postgresql",
    "redis-server": "redis-server",
}

_required = False


def require_all() -> None:
    """From now on, a test whose program is missing fails."""
    global _required  # noqa: PLW0603 - pytest's configuration of this process
    _required = True


def program(name: str) -> str:
    """The path of a program. Without it, the test ends here."""
    return shutil.which(name) or missing(name)


def missing(name: str) -> str:
    """End the test, which needs that program."""
    end = pytest.fail if _required else pytest.skip
    end(f"{name} is missing: apt-get install {PACKAGES[name]}")

"""The model of copies, in worlds of chance."""

import pytest
from support.models.copies import Copies
from support.models.copying_worker import DENIED
from support.models.steps import live_through


@pytest.mark.parametrize("most", [5, 500])
@pytest.mark.parametrize("denied", DENIED)
def test_copies_in_worlds_of_chance(denied, most):
    for seed in range(3):
        live_through(Copies(denied, most), seed, steps=150)

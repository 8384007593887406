"""The model of a store that hangs, in worlds of chance."""

import pytest
from support.models.steps import live_through
from support.models.stores import Stores


@pytest.mark.parametrize("seed", range(4))
def test_in_worlds_of_chance(app, monkeypatch, seed):
    live_through(Stores(app, monkeypatch), seed, steps=40)

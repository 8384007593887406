"""The model of the waits for a key, in worlds of chance."""

import pytest
from support.models.keys import wait_for_keys


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_in_worlds_of_chance(app, monkeypatch, first):
    for seed in range(first, first + 20):
        wait_for_keys(app, monkeypatch, seed)

import pytest
from support.lambda_function import World


@pytest.fixture
def make(monkeypatch, system_clock):
    worlds = []

    def make(name="q", options=None, **queue):
        worlds.append(World(monkeypatch, system_clock, name, options, **queue))
        return worlds[-1]

    yield make
    for world in worlds:
        world.app.close()


@pytest.fixture
def world(make):
    return make()

"""The steps of a model, tried at random: by hypothesis, which shortens what it finds, and in many worlds."""

import random
from types import SimpleNamespace

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule


def step(*, often=1.0, when=lambda _world: True, **choices):
    """What may happen `when` that holds, with one of the choices for each argument, so `often` by chance."""

    def decorate(method):
        strategies = {name: st.sampled_from(values) for name, values in choices.items()}
        made = precondition(when)(rule(**strategies)(method))
        made.step = SimpleNamespace(name=method.__name__, often=often, when=when, choices=choices)
        return made

    return decorate


def steps_of(model):
    """The steps of a model's class."""
    found = [getattr(model, name) for name in dir(model)]
    return [each.step for each in found if hasattr(each, "step")]


def live_through(world, seed, steps):
    """So many steps, after each of which all is to be well, and the world's end; the same for a seed."""
    chance, state = random.Random(seed), random.getstate()
    random.seed(seed)  # of pauses
    possible = steps_of(type(world))
    try:
        for _ in range(steps):
            may = [each for each in possible if each.when(world)]
            (one,) = chance.choices(may, [each.often for each in may])
            arguments = {name: chance.choice(values) for name, values in one.choices.items()}
            getattr(world, one.name)(**arguments)
            world.all_is_well()
        world.end_everything()
    finally:
        random.setstate(state)
        world.close()

"""A chord of idempotent tasks holds under every schedule: no member counts twice, none is missing."""

from __future__ import annotations

import pytest
from celery import chord

from celery_sqs_visibility.testing import simulate
from celery_sqs_visibility.testing.simulation import SEED_VARIABLE


@pytest.mark.parametrize("backend", ["cache+memory://", "file://{}"], ids=["it counts ends", "it is polled"])
def test_a_correct_chord_whose_members_run_twice_raises_no_alarm(app, backend, tmp_path, monkeypatch):
    monkeypatch.delenv(SEED_VARIABLE, raising=False)
    app.conf.result_backend = backend.format(tmp_path)

    @app.task(max_retries=20)
    def member(number):
        simulations[-1].effect(number)
        return number

    @app.task(max_retries=20)
    def body(numbers):
        simulations[-1].sums.append(sum(numbers))

    simulations = []

    @simulate(seeds=80)
    def test(sim):
        simulations.append(sim)
        sim.sums = []
        sim.run(chord([member.s(1), member.s(2)], body.s()))
        assert set(sim.sums) == {3}

    test()
    again = [sim for sim in simulations if len(sim.effects) > 2]
    assert len(again) > 10

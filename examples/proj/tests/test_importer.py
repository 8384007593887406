"""The importer under what SQS, workers and deploys may do: `pytest examples/proj/tests`."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from celery_sqs_visibility import s3_object
from celery_sqs_visibility.testing import Simulation, SimulationFailedError, simulate
from proj import tasks
from proj.celery import app
from proj.records import Order, Records
from proj.tasks import import_object, valid_orders

NAME = "shop/day.csv"
RECORD = {"s3": {"bucket": {"name": "shop"}, "object": {"key": "day.csv", "size": 40}}}
LINES = [b"a,1.00\n", b"b,two\n", b"c,3.50\n", b"d,4\n", b"e,5\n"]
ORDERS = [(1, "a", 100), (3, "c", 350), (4, "d", 400), (5, "e", 500)]


@simulate(seeds=200)
def test_an_object_is_imported_once_whatever_happens(sim: Simulation) -> None:
    records = Records(str(sim.directory / "proj.sqlite3"), sim.now)
    sim.replace(tasks, "Records", lambda _path: records)
    sim.replace(tasks, "download", lambda _bucket, _key: iter(LINES))
    sim.replace(tasks, "LINES_AT_A_TIME", 2)
    for step in ("claim", "keep", "finish", "give_back"):
        sim.wrap(Records, step, key=lambda _self, name, *_, step=step: f"{step} {name}")

    sim.run(import_object.s(RECORD))

    assert records.orders(NAME) == ORDERS
    assert records.state(NAME) == "processed"


@app.task(error_visibility_timeout=[10, 60, 300], max_retries=5)
def import_naively(record: dict[str, Any]) -> None:
    """Add orders, without knowing which were added before."""
    bucket, key, _ = s3_object(record)
    for order in valid_orders(f"{bucket}/{key}", enumerate(LINES, start=1)):
        add(order)


def add(order: Order) -> None:
    """Stands for an INSERT: each test puts one in its place."""
    raise NotImplementedError


@simulate(seeds=200)
def naive_import(sim: Simulation) -> None:
    orders: list[Order] = []
    sim.replace(sys.modules[__name__], "add", lambda order: sim.effect(order, lambda: orders.append(order)))
    sim.run(import_naively.s(RECORD))
    assert orders == ORDERS


def test_a_naive_importer_is_found_out() -> None:
    with pytest.raises(SimulationFailedError, match="Replay it with"):
        naive_import()

"""The example project's tests of its importer."""

import pytest
from celery import _state
from proj import tasks
from proj.records import Claim, Records
from proj.tests.test_importer import (
    LINES,
    RECORD,
    naive_import,
    test_an_object_is_imported_once_whatever_happens,
)

from celery_sqs_visibility.testing import Fault, SimulationFailedError, simulate, turned_time

# Importing proj made its app the current one of this process, in which other tests have theirs.
_state._set_current_app(None)

__all__ = ["test_an_object_is_imported_once_whatever_happens"]


def test_a_naive_importer_is_found_out_by_one_of_the_first_ten_schedules():
    with pytest.raises(SimulationFailedError) as raised:
        naive_import()
    assert raised.value.seed < 10
    assert "took place" in str(raised.value) or "effect (1, 'a', 100)" in str(raised.value)


class Watched(Records):
    """Records that note what each worker is told, and may tell some that another has the object."""

    def __init__(self, path, now, taken=0):
        super().__init__(path, now)
        self.claims, self._taken = [], taken

    def claim(self, name, seconds):
        taken = len(self.claims) < self._taken
        self.claims.append(Claim.TAKEN if taken else super().claim(name, seconds))
        return self.claims[-1]


def test_a_second_notification_waits_for_a_long_import_without_an_attempt(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(tasks, "download", lambda _bucket, _key: iter(LINES))
    caplog.set_level("INFO", logger="proj.tasks")
    with turned_time() as time:
        records = Watched(str(tmp_path / "proj.sqlite3"), time.now, taken=30)
        monkeypatch.setattr(tasks, "Records", lambda _path: records)
        account = time.run(tasks.import_object.s(RECORD))
        assert (account.failures, account.dead_letter, time.dead_letters()) == ([], None, [])
    assert len(records.claims) == 31
    assert records.claims[-1] is Claim.OURS
    told = [line for line in caplog.messages if line.startswith("shop/day.csv")]
    assert told[:30] == ["shop/day.csv: skipped for 60 s, since another worker imports it"] * 30
    assert told[30] == "shop/day.csv: import begins after line 0"
    assert told[-1] == "shop/day.csv: imported, 4 orders, 1 skipped"


@simulate(seeds=200, faults=[Fault.DEATH])
def test_the_object_of_a_dead_worker_is_free_when_its_message_comes_back(sim):
    def slow(_bucket, _key):
        for line in LINES:
            sim.pass_time(13)  # so that workers die at many times after an extension
            yield line

    records = Watched(str(sim.directory / "proj.sqlite3"), sim.now)
    sim.replace(tasks, "Records", lambda _path: records)
    sim.replace(tasks, "download", slow)
    sim.replace(tasks, "LINES_AT_A_TIME", 1)
    for step in ("keep", "give_back"):
        sim.wrap(Records, step, key=lambda _self, name, *_, step=step: f"{step} {name}")
    sim.run(tasks.import_object.s(RECORD))
    assert Claim.TAKEN not in records.claims

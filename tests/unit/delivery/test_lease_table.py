"""The table in which running tasks see their leases: rows, requests, and what a forked child sees."""

import os
import select
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bytecodes import bytecodes
from support.processes import SOON

from celery_sqs_visibility.delivery import lease_table as module
from celery_sqs_visibility.delivery.lease_table import (
    ROWS,
    UNWATCHED,
    LeaseTable,
    LeaseTableView,
    find_lease,
    open_lease_table,
    spawned_lease_table,
)

# The child does nothing that another thread of the test could hold a lock for.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

NOW = 1000.0


@contextmanager
def new_table():
    table = LeaseTable()
    yield table
    for descriptor in (*table._pipe, table._fd):
        os.close(descriptor)


@pytest.fixture
def table():
    with new_table() as table:
        yield table


@pytest.fixture
def requests():
    return []


@pytest.fixture
def lease(table, requests):
    return table.take(NOW, requests.append)


def ignore(_until):
    """A request that nobody hears."""


def in_child(work, meanwhile=lambda: None):
    """What `work()` says in a forked child, after `meanwhile()` in its parent: True or False."""
    told, tell = os.pipe()
    answer, say = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.read(told, 1)
            os.write(say, b"1" if work() else b"0")
        finally:
            os._exit(0)
    os.close(say)
    try:
        meanwhile()
        os.write(tell, b"!")
        return os.read(answer, 1) == b"1"
    finally:
        for end in (told, tell, answer):
            os.close(end)
        os.waitpid(pid, 0)


def test_a_lease_is_found_by_its_key_and_reads_as_lost_when_it_is_over(table, lease):
    found = table.lease(lease.key)
    for each in (lease, found):
        assert (each.deadline, each.lost, each.over, each.requested_deadline) == (NOW, False, False, 0)
    lease.deadline = NOW + 5
    assert found.deadline == NOW + 5
    lease.end()
    assert found.over
    assert found.lost


def test_a_row_is_used_again_under_another_generation_and_ended_once_by_each(table, lease):
    lease.lost = True
    lease.request(NOW + 5)
    lease.end()
    again = table.take(NOW + 60, ignore)
    assert again.key[0] == lease.key[0]
    assert again.key != lease.key
    assert lease.over
    assert (again.deadline, again.lost, again.requested_deadline) == (NOW + 60, False, 0)
    lease.end()
    assert not again.over
    assert table.take(NOW, ignore).key[0] != again.key[0]


def test_a_sign_of_life_counts_for_its_own_lease_alone(table, lease):
    assert (lease.last_sign, lease.horizon) == (UNWATCHED, float("inf"))
    table.lease(lease.key).last_sign = NOW + 5
    assert lease.last_sign == NOW + 5
    lease.end()
    again = table.take(NOW, ignore, NOW + 60)
    lease.last_sign = NOW + 6
    lease.retries = 5
    assert (again.key[0], again.last_sign, again.horizon) == (lease.key[0], UNWATCHED, NOW + 60)
    assert again.retries is None


def test_a_full_table_has_no_row_until_one_is_free(table, lease):
    others = [table.take(NOW, ignore) for _ in range(ROWS - 1)]
    assert None not in others
    assert table.take(NOW, ignore) is None
    lease.end()
    assert table.take(NOW, ignore).key[0] == lease.key[0]
    assert table.take(NOW, ignore) is None


def test_a_request_is_passed_on_at_once_in_the_tables_own_process_until_it_is_answered(
    table, lease, requests
):
    others = []
    table.take(NOW, others.append).request(NOW + 7)
    assert (others, requests) == ([NOW + 7], []), "each lease has its own"
    lease.request(NOW + 30)
    assert requests == [NOW + 30]
    lease.answer(NOW + 30)
    table.on_readable()  # woken for nothing
    assert requests == [NOW + 30]
    assert lease.requested_deadline == 0


def test_an_answer_to_the_request_before_leaves_the_present_one_open(lease):
    lease.request(NOW + 30)
    lease.request(NOW + 60)
    lease.answer(NOW + 30)
    assert lease.requested_deadline == NOW + 60


def test_a_lease_may_end_while_requests_are_passed_on(table):
    taken = [table.take(NOW, lambda _until: [lease.end() for lease in taken]) for _ in range(3)]
    with Path(table.name).open("r+b") as shared:
        silent = LeaseTableView(shared.fileno())  # a spawned child's, which wakes nobody
    for lease in taken:
        silent.lease(lease.key).request(NOW + 1)
    table.pass_on_requests()
    assert all(lease.over for lease in taken)


def test_a_forked_child_sees_what_its_parent_writes_later(table, lease):
    def write():
        lease.deadline, lease.lost = NOW + 60, True
        table.stop()

    theirs = table.lease(lease.key)
    assert in_child(lambda: theirs.deadline == NOW + 60 and theirs.lost and table.stopping, write)


def test_a_childs_request_makes_the_parents_descriptor_readable_and_is_passed_on(table, lease, requests):
    assert select.select([table.fileno()], [], [], 0)[0] == []
    assert in_child(lambda: table.lease(lease.key).request(NOW + 30) is None)
    assert requests == []
    assert select.select([table.fileno()], [], [], SOON)[0]
    table.on_readable()
    assert requests == [NOW + 30]
    assert select.select([table.fileno()], [], [], 0)[0] == []


def test_a_child_that_asks_is_not_kept_waiting_by_a_full_pipe(table, lease):
    with suppress(BlockingIOError):
        while True:
            os.write(table._pipe[1], bytes(4096))
    assert in_child(lambda: table.lease(lease.key).request(NOW + 30) is None)
    assert lease.requested_deadline == NOW + 30


def test_there_is_one_table_a_worker_and_it_is_told_anew_that_nothing_stops(monkeypatch):
    monkeypatch.setattr(module, "_lease_table", None)
    first = open_lease_table()
    first.stop()
    assert open_lease_table() is first
    assert module.lease_table() is first
    assert not first.stopping
    assert in_child(lambda: open_lease_table() is not first), "inherited by another worker"


def test_a_process_that_inherited_no_table_opens_it_by_its_name_while_its_worker_lives(table, lease):
    lease_table = spawned_lease_table(lease.key)
    seen = lease_table.lease(lease.key)
    assert (seen.deadline, seen.lost) == (NOW, False)
    seen.request(NOW + 30)
    assert lease.requested_deadline == NOW + 30
    table.stop()
    assert lease_table.stopping
    lease.end()
    assert seen.lost
    assert spawned_lease_table((0, 1.0, "/proc/0/fd/none")) is None


def test_where_there_is_no_memory_without_a_file_the_file_is_removed_at_exit(monkeypatch):
    monkeypatch.delattr("os.memfd_create", raising=False)
    told = []
    monkeypatch.setattr("atexit.register", lambda *call: told.append(call))
    with new_table() as table:
        lease = table.take(NOW, ignore)
        assert spawned_lease_table(lease.key).lease(lease.key).deadline == NOW
        assert Path(table.name).exists()
        ((remove, *arguments),) = told
        assert in_child(lambda: remove(*arguments) is None)
        assert Path(table.name).exists(), "a child's exit is not the worker's"
        remove(*arguments)
        assert not Path(table.name).exists()
        remove(*arguments)


@given(st.lists(st.integers(0, 5)))
def test_no_two_leases_share_a_row_and_none_is_lost_from_use(moves):
    taken, most = [], 0
    with new_table() as table:
        for move in moves:
            if move < len(taken):
                taken.pop(move).end()
            else:
                taken.append(table.take(NOW + len(taken), ignore))
            most = max(most, len(taken))
            numbers = [lease.key[0] for lease in taken]
            assert len(set(numbers)) == len(numbers)
            assert all(number < most for number in numbers)
            assert not any(lease.over for lease in taken)


def test_a_key_is_held_by_one_lease_of_a_row(table, lease):
    lease.holds_key = True
    assert lease.holds_key
    lease.end()
    successor = table.take(NOW, print)
    assert successor.key[0] == lease.key[0]
    assert not successor.holds_key
    lease.holds_key = True  # its run is late
    assert not successor.holds_key
    assert find_lease(None) is None


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="bytecodes are counted on Python 3.11")
def test_a_run_in_this_process_asks_for_itself_alone_however_many_others_ask():
    def work(others):
        with new_table() as table:
            heard = []
            for _ in range(others):
                table.take(NOW, heard.append).request(NOW + 60)
            lease = table.take(NOW, heard.append)
            cost = bytecodes(lambda: lease.request(NOW + 30))
            assert heard == [NOW + 60] * others + [NOW + 30]
            return cost

    assert work(1000) == work(0)


def test_a_request_of_a_lease_that_has_just_ended_is_passed_on_to_nobody(table, lease, requests):
    lease.end()
    table.notify(lease.key)
    assert requests == []


def test_a_full_pipe_is_a_woken_reader(table):
    with suppress(BlockingIOError):
        while True:
            os.write(table._pipe[1], bytes(1))
    table.wake()
    assert select.select([table.fileno()], [], [], 0)[0]
